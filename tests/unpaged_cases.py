"""What a DSL's `unpaged` owes: the scratch holds what it must and no more, and a launch reads nothing else of it."""

import dataclasses
from types import ModuleType
from typing import Any

import torch

from common.cases.batch import make_batch
from common.cases.fills import INVISIBLE
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity

SHAPE = AttentionShape(4, 2, 16, 16, torch.float32)
LENS = [(20, 50), (0, 3), (17, 17), (19, 70)]
SPANS = torch.tensor([[[40, 44]], [[0, 0]], [[2, 9]], [[20, 55]]], dtype=torch.int32)  # the last begins left of it


def prefill(config: Any, **changes: Any) -> Any:
    """The config, other fields of its prefill."""
    return dataclasses.replace(config, prefill=dataclasses.replace(config.prefill, **changes))


def poisoned(unpaged: ModuleType, config: Any, batch: PagedBatch, num_keys: int) -> Any:
    """A workspace for `num_keys` keys of long queries, full of NaN."""
    capacity = dataclasses.replace(Capacity.of(batch), num_keys=num_keys)
    scratch = unpaged.workspace(batch.shape, capacity, config)
    for tensor in (scratch.key, scratch.value, scratch.scales):
        tensor.fill_(float("nan"))
    return scratch


def judge(
    unpaged: ModuleType,
    config: Any,
    batch: PagedBatch,
    features: Features,
    num_keys: int = 200,
    meant: PagedBatch | None = None,
) -> None:
    """The long queries alone: the short ones' launch has tests of its own. meant: what `batch` is, without its NaN."""
    meant = meant or batch
    out = torch.full_like(batch.query, float("nan"))
    lse = torch.full(batch.query.shape[:2], float("nan"))
    unpaged.attend_unpaged(batch, features, out, config.prefill, poisoned(unpaged, config, batch, num_keys), lse)
    verdict = check(out, lse, meant, features, unpaged.CONTRACT, reference(meant, features))
    assert verdict.ok, verdict.reason


def judge_short_queries(unpaged: ModuleType, config: Any) -> None:
    batch = make_batch([(1, 9), (20, 30), (3, 0)], SHAPE)
    out = torch.full_like(batch.query, float("nan"))
    unpaged.launch(batch, Features(), out, config, poisoned(unpaged, config, batch, 64))
    verdict = check(out, None, batch, Features(), unpaged.CONTRACT, reference(batch, Features()))
    assert verdict.ok, verdict.reason


def judge_new_keys(unpaged: ModuleType, config: Any) -> None:
    """Where no context is expected, a prompt without one reads none of its pages, one with it none of its new keys."""
    batch = make_batch(LENS, SHAPE, new_kv=True)
    for new in (batch.key, batch.value):
        new[:20] = new[37:] = float("nan")
    for block in batch.block_table[2, :2].tolist():  # of the prompt without context
        batch.key_cache[block] = batch.value_cache[block] = float("nan")
    judge(unpaged, prefill(config, new_kv=True), batch, Features(), meant=make_batch(LENS, SHAPE, new_kv=True))


def judge_new_keys_unread(unpaged: ModuleType, config: Any) -> None:
    """Where a context is expected, pages alone count."""
    batch = make_batch(LENS, SHAPE, new_kv=True)
    for new in (batch.key, batch.value):
        new.fill_(float("nan"))
    judge(unpaged, config, batch, Features())


def judge_keys_before_a_window(unpaged: ModuleType, config: Any, spans: torch.Tensor | None) -> None:
    """They lie in a copied tile, whose V is loaded whole: the copy leaves them out."""
    batch = make_batch(LENS, SHAPE, new_kv=True, pad_tokens=3)
    features = Features(sliding_window=19, spans=spans)
    INVISIBLE["unseen-nan"](batch, features)
    for new_kv in (False, True):
        judge(unpaged, prefill(config, new_kv=new_kv), batch, features)


def judge_segments(unpaged: ModuleType, config: Any, new_kv: bool) -> None:
    """Three segments of 70 keys, one of the prompt of 17, whose rows nobody merges; room for the first sequence."""
    sinks = Features(sinks=torch.tensor([1.0, -1.0, 0.0, 3.0]))
    config = prefill(config, num_segments=3, new_kv=new_kv)
    judge(unpaged, config, make_batch(LENS, SHAPE, new_kv=new_kv), sinks, 60)


def judge_regions(unpaged: ModuleType, copy_pages: Any, config: Any) -> None:
    """20 of 50, 17 of 17 and 19 of 70 query tokens: 4, 2 and 5 tiles of 16 keys, zeros behind each last key."""
    batch = make_batch(LENS, SHAPE)
    scratch = poisoned(unpaged, config, batch, 200)
    tiles = scratch.key.shape[0] // 32
    copy_pages(batch, Features(), scratch.key, scratch.value, (None, None), tiles, config.prefill)
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
