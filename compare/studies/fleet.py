"""How well rows are dealt to a large fleet, by simulation: time against the bound, the driver's own time, its memory.

    python -m compare study fleet                                     10,000 cells over 64 GPUs of four kinds
    python -m compare study fleet --out docs/results/fleet.md         the page
    python -m compare study fleet --cells 1000000 --memory-cells 0

The deal, the driver and its files are those of `run --fleet`; seats answer at once, with rows like a real one, and the
clock is virtual. Exit codes: 0; 2 for usage.
"""

from __future__ import annotations

import argparse
import heapq
import random
import resource
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from compare.exits import OK
from compare.fleet.drive import Drive
from compare.fleet.shares import Share, cut
from compare.record.records import Evidence, Record, Status, Timing, WorkloadInfo
from compare.record.store import Store
from compare.workloads.numbers import count, seed

HELP = "how well rows are dealt to a large fleet, by simulation"
KINDS, KERNELS, PROCESSES, MOST = 4, 12, 3, 16
CELL_S, SPREAD, START_S, SHARE_S = 2.0, 0.6, 40.0, 5.0  # of a cell, its log-normal spread, a seat's start, a share's


@dataclass(frozen=True)
class Case:
    """slow: how much longer the slowest seat takes. lost: seats that die half way."""

    name: str
    slow: float = 1.0
    lost: int = 0


CASES = (
    Case("equal GPUs"),
    Case("one of each kind takes twice as long", slow=2.0),
    Case("one of each kind is lost", lost=1),
)


def makespan(costs: Sequence[float], seats: int, case: Case) -> tuple[float, float]:
    """(seconds until the last row of a kind is done, the bound: the work over the seats' speeds, or the longest row)"""
    speeds = [1.0] * (seats - 1) + [1.0 / case.slow]
    shares = cut([KERNELS] * len(costs), seats, MOST)
    free = [(START_S, number) for number in range(seats)]
    dies = {number: START_S + sum(costs) / seats / 2 for number in range(case.lost)}
    waiting, end = list(shares), 0.0
    while waiting:
        now, number = heapq.heappop(free)
        share = waiting.pop(0)
        done = now + (SHARE_S + sum(costs[row] for row in share.rows)) / speeds[number]
        if done > dies.get(number, done):
            waiting.append(Share(share.rows))  # found out at its death; nobody waits for it before that
            continue
        end = max(end, done)
        heapq.heappush(free, (done, number))
    return end, START_S + max(sum(costs) / sum(speeds), max(costs))


class Instant:
    """A seat that answers at once, a record a cell and process."""

    starts = 1

    def __init__(self, name: str, line: Record) -> None:
        self.name, self.line = name, line

    def do(self, rows: Sequence[int]) -> Iterator[str]:
        for row in rows:
            for kernel in range(KERNELS):
                yield self.line.replace(cell_id=f"{row * KERNELS + kernel:016x}", seat=self.name).to_json()

    def again(self) -> bool:
        return False


def record() -> Record:
    """A measured row, as large as those of a run: 70 samples of each process."""
    sizes = dict.fromkeys(("num_seqs", "num_tokens", "num_decodes", "max_query_len", "max_seq_len", "total_seq_len"), 8)
    sizes |= {"num_query_heads": 32, "num_kv_heads": 8, "head_size": 128, "block_size": 16}
    load = WorkloadInfo(id="0" * 16, label="8q1s2k", kind="decode", dtype="bf16", **sizes)
    samples = tuple(100.0 + number / 7 for number in range(70))
    times = Timing("graph", "cold", 100.0, 99.0, 101.0, 70, 128, 8, 1 << 30, samples_us=samples)
    return Record("run", "0" * 16, load, "triton/auto", Status.OK, (Evidence.MEASURED,), timing=times)


def driven(rows: int, seats: int, keep: bool) -> tuple[float, float, list[int]]:
    """(the driver's seconds a record, those of its processor, its memory in MiB at each tenth). keep: rows go to the
    disk, as in a run."""
    line, seen, memory = record(), 0, []
    drive = Drive([Instant(f"box:{number}", line) for number in range(seats)], cut([KERNELS] * rows, seats, MOST))
    begin, busy, every = time.perf_counter(), time.process_time(), max(rows * KERNELS // 10, 1)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "cells.jsonl") as store:
        for found in drive.results():
            kept = Record.from_json(found.what)
            if keep:
                store.append(kept)
            seen += 1
            if seen % every == 0:
                memory.append(resident())
    return (time.perf_counter() - begin) / seen, (time.process_time() - busy) / seen, memory


def resident() -> int:
    """MiB of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() >> 20


def page(cells: int, gpus: int, memory_cells: int, number: int, command: str) -> str:
    rows, seats = cells // KINDS // KERNELS, gpus // KINDS
    draw = random.Random(number)
    lines = [
        "# A large fleet, simulated",
        "",
        f"{cells:,} cells ({KERNELS} kernels a row) over {gpus} GPUs of {KINDS} kinds. Written by"
        f" `{command}`; the clock of the first table is virtual.",
        "",
        "| case | time, s | bound, s | above it |",
        "|:--|--:|--:|--:|",
    ]
    for case in CASES:
        found = []
        for _ in range(KINDS):
            costs = [draw.lognormvariate(0, SPREAD) * CELL_S * KERNELS for _ in range(rows)]
            found.append(makespan(costs, seats, case))
        last, bound = max(time for time, _ in found), max(bound for _, bound in found)
        lines.append(f"| {case.name} | {last:.0f} | {bound:.0f} | {100 * (last / bound - 1):.1f}% |")
    lines += [
        "",
        f"The bound counts {START_S:g} s of a seat's start, and no time between shares ({SHARE_S:g} s each).",
        "",
    ]
    each, busy, _ = driven(rows * KINDS, gpus, keep=True)
    told = f"{1000 * busy:.2f} ms of its processor a record (allowed 5 ms a cell), the seats' share of it included"
    lines.append(f"The driver took {told}; with the fsync of each record to this disk {1000 * each:.2f} ms.")
    if memory_cells:
        *_, memory = driven(memory_cells // KERNELS, gpus, keep=False)
        told = ", ".join(map(str, memory))
        lines.append(f"Its memory at each tenth of {memory_cells:,} records, MiB: {told}.")
    return "\n".join(lines) + "\n"


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--cells", type=count, default=10_000, help="of the simulated run (default 10000)")
    new.add_argument("--gpus", type=count, default=64, help="of four kinds (default 64)")
    new.add_argument("--memory-cells", type=count, default=1_000_000, help="streamed to look at memory (0: none)")
    new.add_argument("--seed", type=seed, default=0, help="of what rows take")
    new.add_argument("--out", type=Path, metavar="FILE", help="write the page there")


def main(asked: argparse.Namespace) -> int:
    sizes = max(asked.cells, KINDS * KERNELS), max(asked.gpus, KINDS), asked.memory_cells, asked.seed
    text = page(*sizes, shlex.join(["python", "-m", "compare", "study", "fleet", *asked.words]))
    if asked.out:
        asked.out.write_text(text, encoding="utf-8")
    print(text, end="")
    return OK
