"""Un-paged prefill: the scratch holds what it must and no more, and a launch reads nothing else of it."""

import dataclasses

import pytest
import torch

from common.cases.ask import with_scales
from common.cases.batch import make_batch
from common.spec import Features
from dsl_triton import unpaged
from dsl_triton.copy_pages import copy_pages
from unpaged_cases import (
    LENS,
    SHAPE,
    SPANS,
    judge,
    judge_keys_before_a_window,
    judge_new_keys,
    judge_new_keys_unread,
    judge_regions,
    judge_segments,
    judge_short_queries,
    prefill,
)

CONFIG = unpaged.Config(unpaged.Prefill(16, 16, copy_programs=3), unpaged.DEFAULT.decode)


@pytest.mark.parametrize(
    ("features", "new_kv"),
    [
        (Features(sliding_window=19), True),
        (Features(causal=False), True),
        (Features(causal=False), False),
    ],
    ids=["window-new", "non-causal-new", "non-causal-copied"],
)
def test_a_scratch_full_of_nan_changes_nothing(features: Features, new_kv: bool) -> None:
    batch = make_batch(LENS, SHAPE, new_kv=new_kv, pad_tokens=3)
    judge(unpaged, prefill(CONFIG, new_kv=new_kv), batch, features)


def test_new_keys_are_read_in_place_of_pages_where_no_context_is_expected() -> None:
    judge_new_keys(unpaged, CONFIG)


def test_new_keys_are_not_read_where_a_context_is_expected() -> None:
    judge_new_keys_unread(unpaged, CONFIG)


def test_sequences_beyond_the_scratch_are_read_through_their_pages() -> None:
    """There is room for the first sequence."""
    judge(unpaged, CONFIG, make_batch(LENS, SHAPE), Features(), 16)


@pytest.mark.parametrize("new_kv", [False, True], ids=["copied", "new"])
def test_segments_of_a_long_context_are_merged(new_kv: bool) -> None:
    judge_segments(unpaged, CONFIG, new_kv)


def test_short_queries_are_served_beside() -> None:
    judge_short_queries(unpaged, CONFIG)


@pytest.mark.parametrize("spans", [None, SPANS], ids=["window", "spans"])
def test_keys_before_a_window_may_hold_anything(spans: torch.Tensor | None) -> None:
    judge_keys_before_a_window(unpaged, CONFIG, spans)


@pytest.mark.parametrize("num_keys", [200, 60], ids=["copied", "the-last-through-its-pages"])
@pytest.mark.parametrize("cache", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
def test_scales_per_token_are_copied_beside_their_keys(cache: torch.dtype, num_keys: int) -> None:
    batch = make_batch(LENS, dataclasses.replace(SHAPE, kv_dtype=cache, head_size=64))
    features = with_scales(Features(sliding_window=33), batch, "tokens", 1.0, torch.Generator().manual_seed(1))
    judge(unpaged, CONFIG, batch, features, num_keys)


def test_regions_are_whole_tiles_one_behind_the_other() -> None:
    judge_regions(unpaged, copy_pages, CONFIG)
