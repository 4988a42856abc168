"""What must stay the same to the bit when a batch is changed in a known way, on the Q Block kernels of both DSLs.

A relation turns a batch into another one and says of which rows and heads of the first result the second consists.
Both take one config, so one path through the kernel. How far a result may be from the right one is the oracle's matter.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import EllipsisType

import pytest
import torch
from torch import Tensor

from common.cases.case import build, named
from common.cases.fills import INVISIBLE
from common.cases.trial import ready
from common.mutants.emulation import Edits, Schedule, emulate
from common.oracle.integrity import same_bits
from common.spec import Features, PagedBatch
from common.spec.kernel import asked_of
from common.spec.metadata import BatchStats, lens_of
from compare.competitors import registry

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("a GPU is here: its results are held to the oracle in tests/gpu", allow_module_level=True)

MIXED = named("relations", lens=((3, 21), (1, 30), (20, 20)), dtype=torch.float16)
WINDOW = MIXED.but(name="relations-window", lens=((3, 40), (1, 30), (5, 50)), sliding_window=9)
CAPPED = MIXED.but(name="relations-sinks", sinks="near", softcap=15.0)
SHARED = MIXED.but(name="relations-shared", lens=((3, 40), (1, 50), (2, 36)), shared_pages=2)
QUANTISED = MIXED.but(name="relations-fp8", kv_dtype=torch.float8_e4m3fn)
GARBAGE = 2**31 - 1


@dataclass(frozen=True)
class Other:
    """A batch and its features; `rows` and `heads` of the first result are its rows and heads, `gain` times them."""

    batch: PagedBatch
    features: Features
    rows: Tensor | EllipsisType = ...
    heads: Tensor | EllipsisType = ...
    gain: float = 1.0


def used_pages(batch: PagedBatch) -> list[Tensor]:
    """The part of each sequence's row in the block table that names its pages."""
    lengths = batch.seq_lens.tolist()
    return [row[: -(-n // batch.shape.block_size)] for row, n in zip(batch.block_table, lengths, strict=True)]


def on_pages(batch: PagedBatch, caches: list[Tensor], new_id: Callable[[Tensor], Tensor]) -> PagedBatch:
    """The batch over other caches, where page i is page new_id(i)."""
    moved = batch.replace(block_table=batch.block_table.clone(), key_cache=caches[0], value_cache=caches[1])
    for row in used_pages(moved):
        row.copy_(new_id(row.long()))
    return moved


def pages_permuted(batch: PagedBatch, features: Features) -> Other:
    old = torch.randperm(len(batch.key_cache), generator=torch.Generator().manual_seed(1))
    caches = [cache[old] for cache in (batch.key_cache, batch.value_cache)]
    return Other(on_pages(batch, caches, lambda page: torch.argsort(old)[page]), features)


def pages_moved(batch: PagedBatch, features: Features) -> Other:
    """Five pages of NaN in front of all."""
    caches = [torch.cat([torch.full_like(c[:1], math.nan).expand(5, -1, -1, -1), c])
              for c in (batch.key_cache, batch.value_cache)]  # fmt: skip
    return Other(on_pages(batch, caches, lambda page: page + 5), features)


def pages_private(batch: PagedBatch, features: Features) -> Other:
    """A page that two sequences share becomes two."""
    flat = torch.cat(used_pages(batch)).long()
    assert len(flat.unique()) < len(flat)
    fresh = iter(range(len(flat)))
    caches = [batch.key_cache[flat], batch.value_cache[flat]]
    return Other(on_pages(batch, caches, lambda page: torch.tensor([next(fresh) for _ in page])), features)


def unseen_poisoned(batch: PagedBatch, features: Features) -> Other:
    poisoned = batch.replace(**{name: getattr(batch, name).clone() for name in ("query", "key_cache", "value_cache")})
    INVISIBLE["unseen-nan"](poisoned, features)
    return Other(poisoned, features)


def table_widened(batch: PagedBatch, features: Features) -> Other:
    tail = torch.full_like(batch.block_table[:, :1], GARBAGE).expand(-1, 9)
    return Other(batch.replace(block_table=torch.cat([batch.block_table, tail], 1)), features)


def table_of_64_bits(batch: PagedBatch, features: Features) -> Other:
    assert batch.block_table.dtype == torch.int32
    return Other(batch.replace(block_table=batch.block_table.long()), features)


def heads_major(batch: PagedBatch, features: Features) -> Other:
    caches = [cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in (batch.key_cache, batch.value_cache)]
    return Other(batch.replace(key_cache=caches[0], value_cache=caches[1]), features)


def v_behind_k(batch: PagedBatch, features: Features) -> Other:
    row, size = torch.cat([batch.key_cache, batch.value_cache], -1), batch.shape.head_size
    return Other(batch.replace(key_cache=row[..., :size], value_cache=row[..., size:]), features)


def hints(**changes: int) -> Callable[[PagedBatch, Features], Other]:
    return lambda batch, features: Other(batch.replace(stats=replace(batch.stats, **changes)), features)


def requests_appended(batch: PagedBatch, features: Features) -> Other:
    """Requests without tokens, and rows of padding."""
    lens = lens_of(batch.query_start_loc, batch.seq_lens)
    longer = batch.replace(
        query=torch.cat([batch.query, torch.full_like(batch.query[:1], math.nan).expand(4, -1, -1)]),
        query_start_loc=torch.cat([batch.query_start_loc, batch.query_start_loc[-1:].expand(3)]),
        seq_lens=torch.cat([batch.seq_lens, torch.zeros_like(batch.seq_lens)]),
        block_table=torch.cat([batch.block_table, torch.full_like(batch.block_table, GARBAGE)]),
        stats=BatchStats.of([*lens, *[(0, 0)] * 3]),
    )
    return Other(longer, features)


def sequences_reversed(batch: PagedBatch, features: Features) -> Other:
    lens, starts = lens_of(batch.query_start_loc, batch.seq_lens)[::-1], batch.query_start_loc.tolist()
    rows = torch.cat([torch.arange(*starts[seq : seq + 2]) for seq in reversed(range(batch.num_seqs))])
    ends = torch.tensor([0, *(n for n, _ in lens)]).cumsum(0).int()
    turned = batch.replace(
        query=batch.query[rows], query_start_loc=ends, seq_lens=batch.seq_lens.flip(0),
        block_table=batch.block_table.flip(0), stats=BatchStats.of(lens),
    )  # fmt: skip
    return Other(turned, features, rows=rows)


def kv_heads_reversed(batch: PagedBatch, features: Features) -> Other:
    heads = torch.arange(batch.query.shape[1]).view(batch.shape.num_kv_heads, -1).flip(0).flatten()
    caches = {name: getattr(batch, name).flip(2) for name in ("key_cache", "value_cache")}
    return Other(batch.replace(query=batch.query[:, heads], **caches), features, heads=heads)


def values_times_8(batch: PagedBatch, features: Features) -> Other:
    return Other(batch.replace(value_cache=batch.value_cache * 8), features, gain=8.0)


def query_and_keys_negated(batch: PagedBatch, features: Features) -> Other:
    return Other(batch.replace(query=-batch.query, key_cache=-batch.key_cache), features)


def query_halved_keys_doubled(batch: PagedBatch, features: Features) -> Other:
    return Other(batch.replace(query=batch.query / 2, key_cache=batch.key_cache * 2), features)


def query_times_4(batch: PagedBatch, features: Features) -> Other:
    return Other(batch.replace(query=batch.query * 4, softmax_scale=batch.softmax_scale / 4), features)


def value_scale_doubled(batch: PagedBatch, features: Features) -> Other:
    return Other(batch, replace(features, value_scale=torch.full((1,), 2.0)), gain=2.0)


RELATIONS = {
    "twice": (MIXED, Other), "pages-permuted": (MIXED, pages_permuted), "pages-moved": (MIXED, pages_moved),
    "pages-private": (SHARED, pages_private), "unseen-slots-poisoned": (WINDOW, unseen_poisoned),
    "table-widened": (MIXED, table_widened), "table-of-64-bits": (MIXED, table_of_64_bits),
    "heads-major": (MIXED, heads_major), "v-behind-k": (MIXED, v_behind_k),
    "hints-too-small": (CAPPED, hints(max_query_len=1, max_seq_len=1, total_seq_len=3)),
    "hints-too-large": (CAPPED, hints(max_query_len=4096, max_seq_len=131072)),
    "requests-appended": (MIXED, requests_appended), "sequences-reversed": (MIXED, sequences_reversed),
    "kv-heads-reversed": (MIXED, kv_heads_reversed), "values-times-8": (MIXED, values_times_8),
    "query-and-keys-negated": (MIXED, query_and_keys_negated),
    "query-halved-keys-doubled": (MIXED, query_halved_keys_doubled), "query-times-4": (MIXED, query_times_4),
    "value-scale-doubled": (QUANTISED, value_scale_doubled),
}  # fmt: skip
# Helion traces a kernel for each head, page, feature and rank of K: these need no second trace of one batch.
HELION_DAILY = {
    "twice", "pages-permuted", "pages-moved", "table-widened", "requests-appended", "sequences-reversed",
    "values-times-8", "query-and-keys-negated",
}  # fmt: skip


def interpreted(kernel) -> Callable:
    def attend(batch: PagedBatch, features: Features, out: Tensor, lse: Tensor) -> None:
        workspace = ready(kernel, batch, features, kernel.DEFAULT)
        kernel.launch(batch, features, out, kernel.DEFAULT, workspace, lse=lse)

    return attend


def emulated(edits: Edits) -> Callable:
    return lambda batch, features, out, lse: emulate(batch, features, out, Schedule(32, 1), lse=lse, edits=edits)


def result(attend: Callable, batch: PagedBatch, features: Features) -> tuple[Tensor, Tensor]:
    out = torch.full((*batch.query.shape[:2], batch.shape.value_lanes), math.nan, dtype=batch.query.dtype)
    lse = torch.full(tuple(batch.query.shape[:2]), math.nan)
    attend(batch, features, out, lse)
    rows = int(batch.query_start_loc[-1])
    return out[:rows], lse[:rows]


def differs(attend: Callable, name: str) -> str:
    """What of the two results differs; empty where the relation holds."""
    case, change = RELATIONS[name]
    batch, features = build(case)
    other = change(batch, features)
    wanted = [whole[other.rows][:, other.heads] for whole in result(attend, batch, features)]
    out, lse = result(attend, other.batch, other.features)
    found = out / other.gain
    if other.gain != 1.0:  # a subnormal has fewer bits than its multiple
        found = torch.where(wanted[0].abs() < torch.finfo(out.dtype).smallest_normal, wanted[0], found)
    pairs = {"out": (found, wanted[0]), "lse": (lse, wanted[1])}
    return ", ".join(what for what, pair in pairs.items() if not same_bits(*(x.contiguous() for x in pair)))


def cells():
    """Both Q Block kernels on each relation, Helion's every day on some; Triton's other kernels on a few."""
    yield from (("triton/q_block", name) for name in RELATIONS)
    yield from ((f"triton/{rung}", "pages-permuted") for rung in ("naive", "parallel_softmax", "split"))
    yield from (("triton/split", name) for name in ("hints-too-small", "hints-too-large"))
    for name in RELATIONS:
        yield pytest.param("helion/q_block", name, marks=[] if name in HELION_DAILY else [pytest.mark.slow])


@pytest.mark.parametrize(("kernel_id", "name"), list(cells()))
def test_a_relation_holds(kernel_id, name):
    kernel = registry.load(kernel_id)
    assert asked_of(*build(RELATIONS[name][0])) <= kernel.SUPPORTS
    assert differs(interpreted(kernel), name) == ""


class PageId(Edits):
    """Takes the next page in memory for a sequence's second."""

    def pages(self, at, kind, index, pages):
        return torch.where(index == 1, (pages + 1) % at.batch.key_cache.shape[0], pages)


class FirstSequence(Edits):
    def scale(self, at, scale):
        return scale * (1.1 if at.seq == 0 else 1.0)


class FirstHead(Edits):
    def kv_heads(self, at, heads):
        return torch.zeros_like(heads)


class UnseenMultiplied(Edits):
    def wanted(self, at, key, seen):
        return torch.ones_like(key, dtype=torch.bool)


class SharedPageOnce(Edits):
    def pages(self, at, kind, index, pages):
        shared = at.seq == 1 and bool(at.batch.block_table[0, 0] == at.batch.block_table[1, 0])
        return pages.flip(0) if shared and kind == "value" else pages


class ScaleOfVTwice(Edits):
    def kv_scale(self, at, kind, scale):
        return scale if scale is None or kind == "key" else scale.square()


@pytest.mark.parametrize(
    ("name", "edits"),
    [
        ("pages-permuted", PageId), ("sequences-reversed", FirstSequence), ("kv-heads-reversed", FirstHead),
        ("unseen-slots-poisoned", UnseenMultiplied), ("pages-private", SharedPageOnce),
        ("value-scale-doubled", ScaleOfVTwice),
    ],
)  # fmt: skip
def test_a_wrong_kernel_breaks_a_relation(name, edits):
    assert differs(emulated(edits()), name)
