"""What the compiler makes of each ablation and of the rung that it varies.

    python -m compare study ablations > docs/ablation-facts.md

Every kernel is compiled for a GPU that need not be here (compare.static.compile), with the untuned config, and its code
object read. The output is docs/ablation-facts.md. Exit codes: 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from common.gpus import Gpu, resolve
from compare.competitors.registry import ABLATIONS
from compare.exits import OK
from compare.static.compile import Compilation, Outcome, compile_in_child
from compare.workloads import LLAMA_3_8B, Workload

HELP = "what the compiler makes of each ablation and of its rung"

GPUS = ("h200", "mi300")
DECODE, PREFILL = ((1, 2048),) * 8, ((2048, 2048),)
SMALL = {
    "block_m": 16,
    "tile_size": 16,
    "num_warps": 8,
    "num_stages": 2,
}  # the config of the element-wise products, with a product
COLUMNS = ("kernel", "registers", "spilled", "shared KB", "pipelined loads", "matrix instructions", "instructions")


@dataclass(frozen=True)
class Entry:
    """One line of the table. config: None for what an untuned user gets."""

    kernel: str
    lens: tuple[tuple[int, int], ...] = DECODE
    config: dict[str, Any] | None = None
    note: str = ""

    @property
    def job(self) -> Compilation:
        return Compilation(Workload(self.kernel, self.lens, LLAMA_3_8B), self.kernel, self.config, heuristics="default")


def entries(dsl: str) -> list[Entry]:
    """The ablations of one DSL, each behind its rung as it is compared."""
    mine = {kernel.rpartition(".")[2]: kernel for kernel in ABLATIONS if kernel.startswith(dsl)}
    softmax = [Entry(f"{dsl}/parallel_softmax")]
    softmax += [Entry(mine[name]) for name in ("last_arriver", "barrier") if name in mine]
    fused = [Entry(f"{dsl}/q_block", note=", decode"), Entry(f"{dsl}/q_block", PREFILL, note=", prefill")]
    fused += [Entry(mine["fused"]), Entry(mine["cumulative"], note=", decode")]
    return [*softmax, *fused, Entry(f"{dsl}/q_block", DECODE, SMALL, ", 16 keys"), Entry(mine["elementwise"])]


def facts(gpu: Gpu, chosen: list[Entry]) -> Iterator[tuple[Entry, Outcome]]:
    """Each entry compiled for `gpu`, one after another in a process of its own."""
    yield from zip(chosen, compile_in_child([entry.job for entry in chosen], gpu), strict=True)


def _products(found: dict[str, Any]) -> int:
    return sum(found["matrix"].values())


def line(entry: Entry, found: Outcome) -> str:
    """One row; a launch of two kernels has two values in a cell."""
    name = f"{entry.kernel}{entry.note}"
    if found.status != "ok":
        return f"| {name} | {found.status}: {found.reason} |" + " |" * (len(COLUMNS) - 2)
    cells = [
        (f["registers"], f["spills"], round(f["shared_bytes"] / 1024), f["pipelined"], _products(f), f["instructions"])
        for f in found.facts
    ]
    return f"| {name} | " + " | ".join(" + ".join(map(str, column)) for column in zip(*cells, strict=True)) + " |"


def table(gpu: Gpu) -> Iterator[str]:
    """Markdown, a line at a time."""
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "|---" * len(COLUMNS) + "|"
    for entry, found in facts(gpu, entries("triton") + entries("helion")):
        yield line(entry, found)


def versions() -> str:
    """What the counts depend on beside the sources."""
    return ", ".join(f"{name} {version(name)}" for name in ("triton", "helion"))


def document() -> Iterator[str]:
    """docs/ablation-facts.md, a line at a time."""
    yield "# What the compiler makes of the ablations\n"
    yield f"Written by `python -m compare study ablations` with {versions()}, for GPUs that need not be there."
    yield "Llama-3-8B's shape, bf16, untuned configs, 8 decodes over 2048 keys unless a row says otherwise. Registers"
    yield "and spilled ones are of a thread, the other counts of the whole code; `+` joins the kernels of a launch. A"
    yield "pipelined load is one that a loop issues iterations ahead, into a buffer of shared memory."
    for name in GPUS:
        gpu = resolve(name)
        yield f"\n## {gpu.arch}\n"
        yield from table(gpu)


def options(parser: argparse.ArgumentParser) -> None:
    """None."""


def main(asked: argparse.Namespace) -> int:
    for text in document():
        print(text, flush=True)
    return OK
