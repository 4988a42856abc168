"""Compile time, each DSL alike: importing a kernel, its first call, and a call in one more dtype.

    python -m compare study costs --gpu auto --out DIR

Every kernel runs in a fresh process with empty caches, then in another one with these caches
(compare.studies.costs.compile). DIR/costs.jsonl gets a row as soon as it is measured; each row has `status` and the
machine, `ran_on`. Without the GPU the times are those of this CPU, compiling for the GPU that is named.
Exit codes: 0; 1 a row failed; 2 usage; 5 nothing selected; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from common import gpus
from common.gpus import Gpu
from common.process import cores
from compare.competitors import registry
from compare.exits import INTERRUPTED, NOTHING, OK, USAGE, WRONG, say
from compare.record import folder as run_folder
from compare.studies.costs import compile as compile_cost

HELP = "compile time, cold and warm: each DSL alike"
KERNELS = "*/q_block,*/parallel_softmax,*/static_grid,*/unpaged"  # under two minutes on an H200 and 16 cores
WORKLOAD = "32q1s2k"
CORES_PER_LANE = 4  # a compiler, its children and a margin: shared cores would distort times


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows of a costs run; of a repeated measurement, the last. Raises ValueError naming a broken line."""
    path, found = folder / "costs.jsonl", {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            names = ("cost", "kernel", "dsl", "workload", "state", "arm", "run")
            found[tuple(row.get(name) for name in names)] = row
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return list(found.values())


def processor() -> str:
    """The CPU's name and the number of cores that this process may use."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{model or platform.processor() or platform.machine()}, {cores()} cores"


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--gpu", default="auto", help="the GPU to compile for (default: the one that is here)")
    new.add_argument("--out", type=Path, required=True, help="folder of costs.jsonl; rows are appended")
    new.add_argument("--kernels", default=KERNELS, help=f"comma-separated ids or globs (default {KERNELS})")


def main(asked: argparse.Namespace) -> int:
    """0; 1 a row failed; 2 usage; 5 nothing selected; 130 interrupted."""
    here = gpus.detect()
    try:
        if asked.gpu == "auto" and here is None:
            raise ValueError("--gpu: found auto and no GPU, allowed the name of the GPU to compile for")
        gpu = here if asked.gpu == "auto" else gpus.resolve(asked.gpu)
        own = [k for k in registry.select(asked.kernels) if k in registry.OWN and not k.endswith("/auto")]
    except ValueError as error:  # the registry's and the GPU table's errors are ValueErrors
        say(error)
        return USAGE
    console = Console(stderr=True)
    if gpu != here:
        console.print(f"{gpu.name} is not here: compiled for it on {processor()}")
    if not own:
        return NOTHING
    try:
        return _run(console, own, gpu, gpu == here, asked.out)
    except KeyboardInterrupt:
        console.print(f"interrupted: finished rows are in {asked.out / 'costs.jsonl'}", markup=False)
        return INTERRUPTED


def _run(console: Console, kernels: Sequence[str], gpu: Gpu, here: bool, out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    ran_on = f"{processor()}, {gpu.name}" if here else processor()
    about = {"ran_on": ran_on, "commit": run_folder.commit(), "versions": run_folder.versions()}
    lanes, failed = max(cores() // CORES_PER_LANE, 1), False
    with (out / "costs.jsonl").open("a", encoding="utf-8") as file:
        for row in compile_cost.measure(kernels, WORKLOAD, gpu, here=here, lanes=lanes):
            file.write(json.dumps(row | about) + "\n")
            file.flush()
            failed |= row["status"] != "ok"
            console.print(" ".join(f"{k}={v}" for k, v in row.items()), markup=False, highlight=False)
    return WRONG if failed else OK
