"""Two questions about an AMD GPU that compiled code and arithmetic answer.

    python -m compare study dies --gpu mi300

Which bytes of K and V does each die read, as the grids are and after a remap? And what do 8 warps instead of 4 cost
the prompt's kernel in registers, spills and repeated products? The page is written to docs/results/<gpu>/static.md.
Exit codes: 0; 2 usage.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from common import gpus
from common.gpus import Gpu
from common.spec import AttentionShape
from common.spec.metadata import SHORT_QUERY, cdiv
from compare.analysis.tables import Table
from compare.exits import USAGE, say
from compare.static.compile import Compilation, compile_in_child
from compare.workloads import Workload, parse_lens

HELP = "bytes per die of an AMD GPU, and its prompt kernel by warps"

# Which K and V each die of an MI300 reads: its eight dies (XCDs) have an L2 of their own, and the hardware deals
# programs over them in turn: program i runs on die i modulo 8 (AMD, CDNA 3 white paper; ROCm workload tuning guide).
#
# A key that programs of several dies read is fetched by each: the bytes are what all L2 together must take from the
# last-level cache or memory. A remap of the grid, which gives each die a run of neighbouring programs, changes them.


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


ROOT = Path(__file__).resolve().parents[2]
WITH_DIES = ("gfx942", "gfx950")
HEADS = {"32:8": (32, 8), "28:4": (28, 4), "16:1": (16, 1)}
LOADS = {"prompt": "q8k", "decode": "64q1s4k"}
WARPS, WIDTHS = (4, 8), (64, 128, 256)
PROMPT = {"block_m": 128, "tile_size": 32, "num_warps": 4, "num_stages": 2}  # of an untuned MI300's q_block, 128 lanes


def _row(label: str, heads: tuple[int, int], head_size: int = 128) -> Workload:
    return Workload(label, parse_lens(label), AttentionShape(*heads, head_size, 16, torch.bfloat16))


def die_lines() -> Iterator[list[Any]]:
    """Per load and heads: how often a byte of K and V is fetched over all dies, and the most that one die reads."""
    for kind, label in LOADS.items():
        for name, heads in HEADS.items():
            row = _row(label, heads)
            count = 4 if kind == "decode" else 1
            part = PROMPT | {"block_m": 16 if kind == "decode" else 128, "num_segments": count}
            programs = segments(row, part) if kind == "decode" else prompts(row, part)
            both = [traffic(order, row) for order in (programs, remapped(programs))]
            yield [
                f"{kind} {label}", name, len(programs), f"{both[0].distinct / 2**20:.0f}",
                *(f"{t.amplification:.2f}" for t in both), *(f"{max(t.each) / 2**20:.1f}" for t in both),
            ]  # fmt: skip


def warp_lines(gpu: Gpu) -> Iterator[list[Any]]:
    """The prompt's kernel of `split` in both DSLs with 4 and 8 warps, by head size."""
    batch = "8q256s4k"
    for dsl in ("triton", "helion"):
        jobs = []
        for width in WIDTHS:
            for warps in WARPS:
                prefill = PROMPT | {"num_warps": warps, "tile_size": 64 if width == 64 else 32}
                shape = AttentionShape(32, 8, width, 16, torch.bfloat16)
                row = Workload(batch, parse_lens(batch), shape)
                jobs.append(Compilation(row, f"{dsl}/split", {"prefill": prefill}))
        for job, outcome in zip(jobs, compile_in_child(jobs, gpu), strict=True):
            facts = next((f for f in outcome.facts if f["kernel"].endswith("_prefill_kernel")), None)
            first = [f"{dsl}/split", job.workload.shape.head_size, job.config["prefill"]["num_warps"]]
            yield [*first, *_code(facts)] if facts else [*first, outcome.reason, *[""] * 6]


def _code(facts: dict[str, Any]) -> list[Any]:
    held = facts["occupancy"] or {}
    return [
        facts["registers"], facts["spills"], facts["scratch_bytes"], f"{facts['shared_bytes'] / 1024:.4g}",
        f"{facts['matrix_redundancy']:.2f}", f"{held.get('programs')} x {facts['num_warps']}", held.get("limit"),
    ]  # fmt: skip


def page(gpu: Gpu) -> str:
    """The page in markdown."""
    dies = Table(
        (("load", False), ("heads", False), ("programs", True), ("K and V, MiB", True), ("fetched, as launched", True),
         ("remapped", True), ("most of one die, MiB, as launched", True), ("remapped", True)),
        list(die_lines()),
    )  # fmt: skip
    warps = Table(
        (("kernel", False), ("head size", True), ("warps", True), ("registers", True), ("spills", True),
         ("scratch B", True), ("shared KiB", True), ("matrix work / asked for", True), ("programs x warps", False),
         ("limited by", False)),
        list(warp_lines(gpu)),
    )  # fmt: skip
    return "\n\n".join(
        [
            f"# {gpu.title}: what compiled code and arithmetic say",
            f"Written by `python -m compare study dies --gpu {gpu.name}`. Nothing here ran on hardware.",
            "## Bytes of K and V per die",
            "Program i runs on die i modulo 8, and each die has an L2 of its own (compare/studies/dies.py). `fetched`:"
            " bytes that all dies read over the distinct bytes, 1 at best. `remapped`: each die gets a run of "
            "neighbouring programs. KV heads are the fastest axis of our grids.",
            dies.markdown,
            "## Warps of the prompt's kernel",
            "128 rows; an MFMA takes 32 of them, so four warps have one each, and eight repeat the first product.",
            warps.markdown,
        ]
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", default="mi300", help="mi300, mi325, mi350 or mi355 (default mi300)")


def main(asked: argparse.Namespace) -> int:
    """0; 2 usage."""
    try:
        gpu = gpus.resolve(asked.gpu)
    except gpus.UnknownGpu as error:
        say(error)
        return USAGE
    if gpu.arch not in WITH_DIES:
        print(f"gpu: found {gpu.name} ({gpu.arch}), allowed one of {', '.join(WITH_DIES)}", file=sys.stderr)
        return USAGE
    out = ROOT / "docs" / "results" / gpu.name / "static.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(gpu) + "\n")
    print(out)
    return 0
