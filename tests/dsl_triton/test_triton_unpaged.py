"""Un-paged prefill: the scratch holds what it must and no more, and a launch reads nothing else of it."""

import dataclasses

import pytest
import torch

from common.batch import make_batch
from common.case_features import with_scales
from common.fills import INVISIBLE
from common.kernel import Capacity
from common.reference import reference
from common.spec import AttentionShape, Features, PagedBatch
from common.tolerance import check
from dsl_triton import unpaged
from dsl_triton.copy_pages import copy_pages

SHAPE = AttentionShape(4, 2, 16, 16, torch.float32)
LENS = [(20, 50), (0, 3), (17, 17), (19, 70)]
PREFILL = unpaged.Prefill(16, 16, copy_programs=3)
CONFIG = unpaged.Config(PREFILL, unpaged.DEFAULT.decode)
NEW = dataclasses.replace(CONFIG, prefill=dataclasses.replace(PREFILL, new_kv=True))


def poisoned(batch: PagedBatch, num_keys: int, config: unpaged.Config = CONFIG) -> unpaged.Workspace:
    capacity = dataclasses.replace(Capacity.of(batch), num_keys=num_keys)
    scratch = unpaged.workspace(batch.shape, capacity, config)
    for tensor in (scratch.key, scratch.value, scratch.scales):
        tensor.fill_(float("nan"))
    return scratch


def judge(batch: PagedBatch, features: Features, num_keys: int = 200, config: unpaged.Config = CONFIG) -> None:
    """The long queries alone: the short ones' launch has tests of its own."""
    out = torch.full_like(batch.query, float("nan"))
    lse = torch.full(batch.query.shape[:2], float("nan"))
    unpaged.attend_unpaged(batch, features, out, config.prefill, poisoned(batch, num_keys, config), lse)
    verdict = check(out, lse, batch, features, unpaged.CONTRACT, reference(batch, features))
    assert verdict.ok, verdict.reason


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
    judge(make_batch(LENS, SHAPE, new_kv=new_kv, pad_tokens=3), features, config=NEW if new_kv else CONFIG)


def test_new_keys_are_read_where_no_context_is_expected() -> None:
    """Elsewhere the pages are: of the sequences that have a context after all, and of all where one is expected."""
    batch = make_batch(LENS, SHAPE, new_kv=True)
    batch.key[:20] = batch.value[:20] = batch.key[37:] = batch.value[37:] = float("nan")
    unread = make_batch(LENS, SHAPE, new_kv=True)
    unread.key.fill_(float("nan"))
    judge(unread, Features())
    for block in batch.block_table[2, :2].tolist():  # of the prompt without context
        batch.key_cache[block] = batch.value_cache[block] = float("nan")
    out = torch.full_like(batch.query, float("nan"))
    unpaged.attend_unpaged(batch, Features(), out, NEW.prefill, poisoned(batch, 200, NEW), None)
    verdict = check(out, None, batch, Features(), unpaged.CONTRACT, reference(unread, Features()))
    assert verdict.ok, verdict.reason


def test_sequences_beyond_the_scratch_are_read_through_their_pages() -> None:
    """There is room for the first sequence."""
    judge(make_batch(LENS, SHAPE), Features(), 16)


@pytest.mark.parametrize("new_kv", [False, True], ids=["copied", "new"])
def test_segments_of_a_long_context_are_merged(new_kv: bool) -> None:
    """Three segments of 70 keys, one of the prompt of 17, whose rows nobody merges; room for the first sequence."""
    config = dataclasses.replace(CONFIG, prefill=dataclasses.replace(PREFILL, num_segments=3, new_kv=new_kv))
    sinks = Features(sinks=torch.tensor([1.0, -1.0, 0.0, 3.0]))
    judge(make_batch(LENS, SHAPE, new_kv=new_kv), sinks, 60, config)


def test_short_queries_are_served_beside() -> None:
    batch = make_batch([(1, 9), (20, 30), (3, 0)], SHAPE)
    out = torch.full_like(batch.query, float("nan"))
    unpaged.launch(batch, Features(), out, CONFIG, poisoned(batch, 64))
    verdict = check(out, None, batch, Features(), unpaged.CONTRACT, reference(batch, Features()))
    assert verdict.ok, verdict.reason


SPANS = torch.tensor([[[40, 44]], [[0, 0]], [[2, 9]], [[20, 55]]], dtype=torch.int32)  # the last begins left of it


@pytest.mark.parametrize("spans", [None, SPANS], ids=["window", "spans"])
def test_keys_before_a_window_may_hold_anything(spans: torch.Tensor | None) -> None:
    """They lie in a copied tile, whose V is loaded whole: the copy leaves them out."""
    batch = make_batch(LENS, SHAPE, new_kv=True, pad_tokens=3)
    features = Features(sliding_window=19, spans=spans)
    INVISIBLE["unseen-nan"](batch, features)
    judge(batch, features)
    judge(batch, features, config=NEW)


@pytest.mark.parametrize("num_keys", [200, 60], ids=["copied", "the-last-through-its-pages"])
@pytest.mark.parametrize("cache", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
def test_scales_per_token_are_copied_beside_their_keys(cache: torch.dtype, num_keys: int) -> None:
    batch = make_batch(LENS, dataclasses.replace(SHAPE, kv_dtype=cache, head_size=64))
    features = with_scales(Features(sliding_window=33), batch, "tokens", 1.0, torch.Generator().manual_seed(1))
    judge(batch, features, num_keys)


def test_regions_are_whole_tiles_one_behind_the_other() -> None:
    """20 of 50, 17 of 17 and 19 of 70 query tokens: 4, 2 and 5 tiles of 16 keys, zeros behind each last key."""
    batch = make_batch(LENS, SHAPE)
    scratch = poisoned(batch, 200)
    copy_pages(batch, Features(), scratch.key, scratch.value, (None, None), scratch.key.shape[0] // 32, PREFILL)
    for cache, copied in ((batch.key_cache, scratch.key), (batch.value_cache, scratch.value)):
        rows = copied.view(SHAPE.num_kv_heads, -1, SHAPE.head_size)
        at = 0
        for seq, tiles in ((0, 4), (2, 2), (3, 5)):
            seq_len = int(batch.seq_lens[seq])
            position = torch.arange(seq_len)
            keys = cache[batch.block_table[seq].long()[position // 16], position % 16].transpose(0, 1)
            assert torch.equal(rows[:, at : at + seq_len], keys)
            assert not rows[:, at + seq_len : at + 16 * tiles].any()
            at += 16 * tiles
        assert bool(rows[:, at:].isnan().all())
