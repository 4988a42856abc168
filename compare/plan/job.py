"""Cells and jobs, their hash, and the estimated seconds of a cell that is not timed."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from compare.workloads import Workload

# Seconds of the CPU's interpreter per program and tile; Helion's generated code takes about four times that.
STEP_SECONDS = 0.006
HELION_FACTOR = 4.0
BLOCK_ROWS = 16  # rows of a default Q Block
CHECK_LAUNCHES = 3  # what the gate launches where nothing is timed
MODELLED = ("gfx90a", "gfx942", "gfx950")  # arches whose code compare.static.isa executes
MODEL_STEP_SECONDS = 0.01  # of the functional model per program and tile: waves at one instruction go together


@dataclass(frozen=True)
class Cell:
    """One kernel on one workload. `id` is 16 hex digits over both and the GPU."""

    id: str
    workload: Workload
    kernel: str


@dataclass(frozen=True)
class Job:
    """All cells of one workload: one worker takes them together, because timing interleaves them."""

    workload: Workload
    cells: tuple[Cell, ...]

    def only(self, cell_ids: Iterable[str]) -> "Job":
        wanted = set(cell_ids)
        return Job(self.workload, tuple(cell for cell in self.cells if cell.id in wanted))


def _hash(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def jobs(workloads: Sequence[Workload], kernels: Sequence[str], gpu: str | None, every: int = 1) -> tuple[Job, ...]:
    """Every kernel on every workload. gpu: the name that was asked for, None for the CPU alone.

    every: each kernel takes one row of so many, the same rung of both DSLs the same rows, and no row is left out where
    there are that many rungs.
    """
    rungs = list(dict.fromkeys(kernel.split("/")[-1] for kernel in kernels))
    planned = []
    for number, workload in enumerate(workloads):
        row = workload.id  # a hash over all lengths: once a row
        cells = (
            Cell(_hash([row, kernel, gpu]), workload, kernel)
            for kernel in kernels
            if (number + rungs.index(kernel.split("/")[-1])) % every == 0
        )
        planned.append(Job(workload, tuple(cells)))
    return tuple(planned)


def plan_hash(planned: Sequence[Job]) -> str:
    """A hash of the cells in their order."""
    return _hash([cell.id for job in planned for cell in job.cells])


def interpreter_steps(kernel: str, workload: Workload) -> int:
    """Program x tile steps of one launch in the interpreter.

    naive: a program per (token, query head), a page a step. The others, and kernels from outside, are taken for Q
    Blocks of 16 rows and tiles of 64 keys.
    """
    shape, steps = workload.shape, 0
    for query_len, seq_len in workload.lens:
        if kernel.endswith("/naive"):
            steps += query_len * shape.num_query_heads * -(-seq_len // shape.block_size)
        else:
            tiles = -(-seq_len // 64)
            tokens_per_block = max(BLOCK_ROWS // shape.queries_per_kv, 1)
            steps += (-(-query_len // tokens_per_block) + 1) * shape.num_kv_heads * tiles
    return steps


def model_seconds(kernel: str, workload: Workload) -> float:
    """Estimated seconds of one cell in the functional model of an absent GPU, without compiling it."""
    return interpreter_steps(kernel, workload) * MODEL_STEP_SECONDS * CHECK_LAUNCHES


def interpreter_seconds(kernel: str, workload: Workload) -> float:
    """Estimated seconds of one checked cell on a CPU; baselines are torch calls and count as nothing."""
    if kernel.startswith("baseline/"):
        return 0.0
    factor = HELION_FACTOR if kernel.startswith("helion/") else 1.0
    return interpreter_steps(kernel, workload) * STEP_SECONDS * factor * CHECK_LAUNCHES
