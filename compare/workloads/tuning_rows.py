"""The rows that trees are fitted to: a log-uniform draw of batch sizes, query and context lengths and decode shares.

Drawn once, with a seed of their own, and bounded, so that any GPU of the table holds a row and a slow kernel still ends
soon. The suites by which kernels are judged have other lengths.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from common.spec import AttentionShape
from compare.workloads.cost import cost
from compare.workloads.workload import LLAMA_3_8B, SPECULATIVE_MAX, Ask, Workload

ROWS, SEED = 48, 20_000
MAX_SEQS, MAX_QUERY, MAX_CONTEXT = 512, 16 * 1024, 128 * 1024
TILE = 128  # keys: contexts are log-uniform behind it, for below a tile their length changes nothing
# A row needs at most 3 ms of an H200 at what it was measured to reach: 4,570 GB/s of K and V, 793 TFLOP/s of products.
# A kernel at a seventh of both ends in 21 ms. K and V then take less than 14 GB, query and out less than 1.1 GB.
MAX_MS, GBPS, TFLOPS, MAX_TOKENS = 3.0, 4570, 793, 32 * 1024

_KINDS = ("decode", "prefill", "mixed", "speculative")
_OTHERS = (  # shapes of every third round of the kinds
    (AttentionShape(64, 8, 128, 32), Ask()),
    (AttentionShape(28, 4, 128, 16), Ask()),
    (AttentionShape(16, 1, 128, 64), Ask()),
    (AttentionShape(64, 8, 64, 16), Ask(sliding_window=1024, sinks=True)),
)


def _log_uniform(generator: torch.Generator, low: float, high: float) -> int:
    """An integer of low .. high whose logarithm is uniform."""
    share = float(torch.rand((), generator=generator, dtype=torch.float64))
    return min(int(high), max(int(low), round(math.exp(math.log(low) + share * math.log(high / low)))))


def _context(generator: torch.Generator) -> int:
    """0 .. MAX_CONTEXT."""
    return _log_uniform(generator, TILE, MAX_CONTEXT + TILE) - TILE


def lengths(generator: torch.Generator, count: int, query: int, context: int) -> list[tuple[int, int]]:
    """`count` sequences of `query` new tokens; contexts uniform in [0.5, 1] of `context`, which the first has."""
    shares = torch.rand(count, generator=generator, dtype=torch.float64) * 0.5 + 0.5
    contexts = [context, *shares.mul(context).long().tolist()[1:]]
    return [(query, query + held) for held in contexts]


def _lens(generator: torch.Generator, kind: str) -> list[tuple[int, int]]:
    """One draw of a class; decodes come first, as engines order them."""
    count = _log_uniform(generator, 1 if kind != "mixed" else 2, MAX_SEQS)
    context = _context(generator)
    if kind == "decode":
        return lengths(generator, count, 1, context)
    if kind == "speculative":
        return lengths(generator, count, _log_uniform(generator, 2, SPECULATIVE_MAX), context)
    query = _log_uniform(generator, SPECULATIVE_MAX + 1, MAX_QUERY)
    whole = float(torch.rand((), generator=generator)) < 0.5  # half of the prompts have no context
    held = 0 if whole else _context(generator)
    if kind == "prefill":
        return lengths(generator, count, query, held)
    share = float(torch.rand((), generator=generator))
    decodes = min(max(round(share * count), 1), count - 1)
    return [*lengths(generator, decodes, 1, context), *lengths(generator, count - decodes, query, held)]


def least_ms(row: Workload) -> float:
    """What the row needs of an H200 at what it was measured to reach; a kernel takes two to seven times as long."""
    needed = cost(row)
    return max(needed.kv_bytes / GBPS, needed.flops / TFLOPS / 1e3) / 1e6


def fits(row: Workload) -> bool:
    """Whether the row is inside the bounds above."""
    return least_ms(row) <= MAX_MS and row.stats.num_tokens <= MAX_TOKENS


def _label(number: int, row: Workload) -> str:
    stats = row.stats
    return f"t{number:02}-{row.kind}-{stats.num_seqs}x{stats.max_query_len}of{stats.max_seq_len}"


def draw(count: int = ROWS) -> list[Workload]:
    """The first `count` rows: the classes take turns, so that any leading part holds all; draws out of bounds are
    repeated."""
    generator = torch.Generator().manual_seed(SEED)
    rows: list[Workload] = []
    while len(rows) < count:
        number = len(rows)
        turn = number // len(_KINDS)
        shape, ask = _OTHERS[turn // 3 % len(_OTHERS)] if turn % 3 == 2 else (LLAMA_3_8B, Ask())
        row = Workload("", tuple(_lens(generator, _KINDS[number % len(_KINDS)])), shape, ask)
        if fits(row):
            rows.append(replace(row, label=_label(number, row)))
    return rows
