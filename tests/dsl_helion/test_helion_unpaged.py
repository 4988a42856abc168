"""Un-paged prefill: the scratch holds what it must and no more, and a launch reads nothing else of it."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from common.cases.ask import with_scales
from common.cases.batch import make_batch
from common.spec import Features
from dsl_helion import binding, unpaged
from dsl_helion.copy_pages import copy_pages
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

CONFIG = unpaged.Config(unpaged.Prefill(32, 16, copy_programs=3), unpaged.DEFAULT.decode)


@pytest.mark.parametrize(
    ("features", "new_kv"),
    [
        (Features(sliding_window=19), True),
        pytest.param(Features(causal=False), True, marks=pytest.mark.slow),
        pytest.param(Features(causal=False), False, marks=pytest.mark.slow),
    ],
    ids=["window-new", "non-causal-new", "non-causal-copied"],
)
def test_a_scratch_full_of_nan_changes_nothing(features: Features, new_kv: bool) -> None:
    batch = make_batch(LENS, SHAPE, new_kv=new_kv, pad_tokens=3)
    judge(unpaged, prefill(CONFIG, new_kv=new_kv), batch, features)


@pytest.mark.slow
def test_new_keys_are_read_in_place_of_pages_where_no_context_is_expected() -> None:
    judge_new_keys(unpaged, CONFIG)


@pytest.mark.slow
def test_new_keys_are_not_read_where_a_context_is_expected() -> None:
    judge_new_keys_unread(unpaged, CONFIG)


def test_sequences_beyond_the_scratch_are_read_through_their_pages() -> None:
    """There is room for the first sequence."""
    judge(unpaged, CONFIG, make_batch(LENS, SHAPE), Features(), 16)


@pytest.mark.slow
@pytest.mark.parametrize("new_kv", [False, True], ids=["copied", "new"])
def test_segments_of_a_long_context_are_merged(new_kv: bool) -> None:
    judge_segments(unpaged, CONFIG, new_kv)


@pytest.mark.slow
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


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU with tensor descriptors, as far as Helion's code is concerned; the code that it generates."""
    from helion._compat import _supports_tensor_descriptor  # noqa: F401  the name must exist
    from helion.autotuner.config_spec import ConfigSpec
    from helion.runtime.kernel import BoundKernel

    code, generate, supports = [], BoundKernel.to_triton_code, ConfigSpec.supports_config_key

    def to_triton_code(self: BoundKernel, *args: object, **options: object) -> str:
        code.append(generate(self, *args, **options))
        return code[-1]

    monkeypatch.setattr("helion._compat._supports_tensor_descriptor", lambda: True)
    monkeypatch.setattr(
        ConfigSpec, "supports_config_key", lambda self, key: key == "host_tensor_descriptors" or supports(self, key)
    )
    monkeypatch.setattr(BoundKernel, "to_triton_code", to_triton_code)
    monkeypatch.setattr(unpaged, "_unpaged", binding.kernel(unpaged._unpaged_kernel))
    monkeypatch.setattr(binding, "_compiled", {})
    return code


def test_blocks_of_descriptors_are_the_same_keys(described: list[str]) -> None:
    batch = make_batch(LENS, SHAPE, new_kv=True, pad_tokens=3)
    for new_kv in (False, True):
        judge(unpaged, prefill(CONFIG, new_kv=new_kv), batch, Features(sliding_window=19))
    attention = [text.count("desc.load(") for text in described if "_unpaged_kernel" in text]
    assert attention == [4, 0, 0, 4]  # copied and new: K and V, without and with a mask; paged and context: none


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Addresses of every element that a kernel has loaded."""
    from triton.runtime.interpreter import InterpreterBuilder

    addresses, load = [], InterpreterBuilder.create_masked_load

    def create_masked_load(self: object, ptrs: Any, mask: Any, *rest: object) -> object:
        live = np.broadcast_to(mask.data.astype(bool), ptrs.data.shape)
        addresses.append(torch.from_numpy(ptrs.data[live].astype(np.int64)))
        return load(self, ptrs, mask, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", create_masked_load)
    return addresses


def amid_nan(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy of [tokens, heads, lanes] with 64 rows of NaN on both sides, and all of it."""
    whole = torch.full((tensor.shape[0] + 128, *tensor.shape[1:]), float("nan"), dtype=tensor.dtype)
    whole[64:-64] = tensor
    return whole[64:-64], whole


@pytest.mark.parametrize("tile_size", [16, 32, 64])
@pytest.mark.parametrize("features", [Features(sliding_window=9), Features(causal=False)], ids=["window", "non-causal"])
def test_no_tile_of_the_new_keys_reaches_beyond_them(
    features: Features, tile_size: int, read: list[torch.Tensor]
) -> None:
    """37 rows of heads without descriptors: the last prompt's last tile of 16 or 32 keys would end 15 rows behind them,
    and begins earlier, of 32 among rows of another. Of 64 keys the rows are no tile, so they are copied."""
    batch = make_batch(LENS[:3], dataclasses.replace(SHAPE, head_size=80), new_kv=True)
    batch.key[:20] = batch.value[:20] = float("nan")  # of a sequence with context, whose pages count
    (key, keys), (value, values) = amid_nan(batch.key), amid_nan(batch.value)
    batch = dataclasses.replace(batch, key=key, value=value)
    judge(unpaged, prefill(CONFIG, tile_size=tile_size, new_kv=True), batch, features)
    at = torch.cat(read)
    for inner, whole in ((key, keys), (value, values)):
        near = at[(at >= whole.data_ptr()) & (at < whole.data_ptr() + whole.nbytes)]
        assert bool(len(near)) == (tile_size <= len(key))
        outside = (near < inner.data_ptr()) | (near >= inner.data_ptr() + inner.nbytes)
        assert not outside.any()
