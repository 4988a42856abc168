"""Which K and V each die of an MI300 reads: its eight dies (XCDs) have an L2 of their own, and the hardware deals
programs over them in turn: program i runs on die i modulo 8 (AMD, CDNA 3 white paper; ROCm workload tuning guide).

A key that programs of several dies read is fetched by each: the bytes are what all L2 together must take from the
last-level cache or memory. A remap of the grid, which gives each die a run of neighbouring programs, changes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.spec.metadata import SHORT_QUERY, cdiv
from compare.workloads import Workload

XCDS = 8


@dataclass(frozen=True)
class Reads:
    """The keys begin .. end of one KV head of a sequence, which one program reads."""

    sequence: int
    kv_head: int
    begin: int
    end: int


@dataclass(frozen=True)
class Traffic:
    """distinct: K and V bytes of the batch. each: what the programs of each die read, a byte once a die."""

    distinct: int
    each: tuple[int, ...]

    @property
    def amplification(self) -> float:
        """How often a byte is fetched, over all dies: 1 at best, 8 where every die reads everything."""
        return sum(self.each) / self.distinct if self.distinct else 0.0


def _q_blocks(workload: Workload, rows: int, least: int) -> Iterator[tuple[int, int, int]]:
    """(sequence, first visible key, end) of every Q Block of queries of more than `least` tokens."""
    shape, window = workload.shape, workload.ask.sliding_window
    tokens = max(rows // shape.queries_per_kv, 1)
    for number, (query, seq) in enumerate(workload.lens):
        if query <= least:
            continue
        for first in range(0, query, tokens):
            last = min(first + tokens, query) - 1
            begin = 0 if window is None else max(seq - query + first - window + 1, 0)
            yield number, begin, (seq - query + last + 1 if workload.ask.causal else seq)


def prompts(workload: Workload, part: Mapping[str, Any], least: int = 0) -> list[Reads]:
    """Programs of a launch over Q Blocks in launch order (dsl_*/q_block.py): KV heads fastest, the last block first.

    part: the config of the launch, `block_m` in it. least: query tokens up to which a sequence is another launch's.
    """
    blocks = list(_q_blocks(workload, part["block_m"], least))[::-1]
    heads = range(workload.shape.num_kv_heads)
    return [Reads(number, head, begin, end) for number, begin, end in blocks for head in heads]


def segments(workload: Workload, part: Mapping[str, Any]) -> list[Reads]:
    """Programs of a launch over segments of short queries (dsl_*/parallel_softmax.py): KV heads, then segments."""
    keys, count, programs = part["tile_size"], part["num_segments"], []
    for number, begin, end in _q_blocks(workload, part["block_m"], 0):
        if workload.lens[number][0] > SHORT_QUERY:
            continue
        first = begin // keys
        each = cdiv(cdiv(end, keys) - first, count) * keys
        for segment in range(count):
            low = first * keys + segment * each
            for head in range(workload.shape.num_kv_heads):
                programs.append(Reads(number, head, max(low, begin), max(min(low + each, end), max(low, begin))))
    return programs


def remapped(programs: Sequence[Reads]) -> list[Reads]:
    """The same work in another order: each die gets a run of neighbours, as long as the others' or one longer."""
    share, longer = divmod(len(programs), XCDS)
    begins = [die * share + min(die, longer) for die in range(XCDS)]
    return [programs[begins[i % XCDS] + i // XCDS] for i in range(len(programs))]


def traffic(programs: Sequence[Reads], workload: Workload) -> Traffic:
    """What each die reads of K and V, and how much there is."""
    key_bytes = 2 * workload.shape.head_size * workload.shape.dtype.itemsize
    each = tuple(key_bytes * _distinct(programs[die::XCDS]) for die in range(XCDS))
    return Traffic(key_bytes * _distinct(programs), each)


def _distinct(programs: Sequence[Reads]) -> int:
    """Keys that at least one program reads."""
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for one in programs:
        ranges[one.sequence, one.kv_head].append((one.begin, one.end))
    total = 0
    for found in ranges.values():
        reached = 0
        for begin, end in sorted(found):
            total += max(end - max(begin, reached), 0)
            reached = max(reached, end)
    return total
