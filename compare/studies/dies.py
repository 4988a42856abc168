"""`python -m compare.studies.dies --gpu mi300`: two questions about an AMD GPU that compiled code and arithmetic
answer.

Which bytes of K and V does each die read, as the grids are and after a remap? And what do 8 warps instead of 4 cost
the prompt's kernel in registers, spills and repeated products? The page is written to docs/results/<gpu>/static.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from common import gpus
from common.gpus import Gpu
from common.spec import AttentionShape
from compare.analysis.tables import Table
from compare.exits import USAGE
from compare.static.compile import CompileJob, compile_in_child
from compare.studies import xcd
from compare.workloads import Workload, parse_lens

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
            segments = 4 if kind == "decode" else 1
            part = PROMPT | {"block_m": 16 if kind == "decode" else 128, "num_segments": segments}
            programs = xcd.segments(row, part) if kind == "decode" else xcd.prompts(row, part)
            both = [xcd.traffic(order, row) for order in (programs, xcd.remapped(programs))]
            yield [
                f"{kind} {label}", name, len(programs), f"{both[0].distinct / 2**20:.0f}",
                *(f"{t.amplification:.2f}" for t in both), *(f"{max(t.each) / 2**20:.1f}" for t in both),
            ]  # fmt: skip


def warp_lines(gpu: Gpu) -> Iterator[list[Any]]:
    """The prompt's kernel of `split` in both DSLs with 4 and 8 warps, by head size."""
    lens = parse_lens("8q256s4k")
    for dsl in ("triton", "helion"):
        jobs = []
        for width in WIDTHS:
            for warps in WARPS:
                prefill = PROMPT | {"num_warps": warps, "tile_size": 64 if width == 64 else 32}
                shape = AttentionShape(32, 8, width, 16, torch.bfloat16)
                jobs.append(CompileJob(f"{dsl}/split", lens, shape, {"prefill": prefill}))
        for job, outcome in zip(jobs, compile_in_child(jobs, gpu), strict=True):
            facts = next((f for f in outcome.facts if f["kernel"].endswith("_prefill_kernel")), None)
            first = [f"{dsl}/split", job.shape.head_size, job.config["prefill"]["num_warps"]]
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
            f"Written by `python -m compare.studies.dies --gpu {gpu.name}`. Nothing here ran on hardware.",
            "## Bytes of K and V per die",
            "Program i runs on die i modulo 8, and each die has an L2 of its own (compare/studies/xcd.py). `fetched`:"
            " bytes that all dies read over the distinct bytes, 1 at best. `remapped`: each die gets a run of "
            "neighbouring programs. KV heads are the fastest axis of our grids.",
            dies.markdown,
            "## Warps of the prompt's kernel",
            "128 rows; an MFMA takes 32 of them, so four warps have one each, and eight repeat the first product.",
            warps.markdown,
        ]
    )


def main(argv: list[str] | None = None) -> int:
    """0; 2 usage."""
    parser = argparse.ArgumentParser(prog="python -m compare.studies.dies", description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="mi300", help="mi300, mi325, mi350 or mi355 (default mi300)")
    asked = parser.parse_args(argv)
    try:
        gpu = gpus.resolve(asked.gpu)
    except gpus.UnknownGpu as error:
        print(error, file=sys.stderr)
        return USAGE
    if gpu.arch not in WITH_DIES:
        print(f"gpu: found {gpu.name} ({gpu.arch}), allowed one of {', '.join(WITH_DIES)}", file=sys.stderr)
        return USAGE
    out = ROOT / "docs" / "results" / gpu.name / "static.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(gpu) + "\n")
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
