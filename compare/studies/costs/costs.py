"""Costs beside speed, each DSL alike: compile time, launches, memory.

    python -m compare study costs --gpu auto --out DIR                       what this machine can measure

DIR/costs.jsonl gets a row as soon as it is measured; each row has `cost`, `status` and the machine, `ran_on`. Without
the GPU the part `launch` is left out, and compile times are those of this CPU, compiling for the GPU that is named.
Exit codes: 0; 1 a row failed; 2 usage; 3 only parts that need the GPU, which is absent; 5 nothing selected; 130.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from common import gpus
from common.gpus import Gpu
from common.process import cores
from compare.competitors import registry
from compare.exits import INTERRUPTED, NO_GPU, NOTHING, USAGE
from compare.record import folder as run_folder
from compare.studies.costs import compile as compile_cost
from compare.studies.costs import launch
from compare.workloads import GrammarError, Workload, parse_lens

HELP = "compile time, launches, memory: each DSL alike"

PARTS = ("compile", "launch", "scratch")
WITH_GPU, WITHOUT_GPU = ("compile", "launch"), ("compile", "scratch")
NEED_GPU = ("launch",)
KERNELS = "*/q_block,*/parallel_softmax,*/static_grid,*/unpaged,*/auto"  # under two minutes on an H200 and 16 cores
BESIDE = ("baseline/flash_attn3", "baseline/vllm_triton")  # also in `launch`, where installed
WORKLOADS = "32q1s2k,q2k"
COMPILED = "32q1s2k"  # the batch of the compile times
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


@dataclass(frozen=True)
class Asked:
    """What to measure. here: whether the GPU is in this machine."""

    gpu: Gpu
    here: bool
    kernels: tuple[str, ...]
    workloads: tuple[Workload, ...]
    out: Path


def _compile(asked: Asked) -> Iterator[dict[str, Any]]:
    lanes = max(cores() // CORES_PER_LANE, 1)
    own = [kernel for kernel in asked.kernels if not kernel.endswith("/auto")]
    yield from compile_cost.measure(own, COMPILED, asked.gpu, here=asked.here, lanes=lanes)


def _launch(asked: Asked) -> Iterator[dict[str, Any]]:
    for kernel in (*asked.kernels, *BESIDE):
        yield from (launch.launch(kernel, row, asked.gpu) for row in asked.workloads)


def _scratch(asked: Asked) -> Iterator[dict[str, Any]]:
    for kernel in asked.kernels:
        yield from (launch.scratch(kernel, row, asked.gpu) for row in asked.workloads)


MEASURES: dict[str, Callable[[Asked], Iterator[dict[str, Any]]]] = dict(
    zip(PARTS, (_compile, _launch, _scratch), strict=True)
)


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--gpu", default="auto", help="the GPU meant; auto: the one that is here")
    new.add_argument("--out", type=Path, required=True, help="folder of costs.jsonl; rows are appended")
    new.add_argument("--only", help=f"comma-separated parts, of {', '.join(PARTS)}")
    new.add_argument("--kernels", default=KERNELS)
    new.add_argument("--workload", default=WORKLOADS)


def _asked(arguments: argparse.Namespace) -> Asked:
    """Check the command line. Raises typed errors of the GPU table, the registry and the grammar, or ValueError."""
    here = gpus.detect()
    if arguments.gpu == "auto" and here is None:
        raise ValueError("--gpu: found auto and no GPU, allowed the name of the GPU to compile for")
    gpu = here if arguments.gpu == "auto" else gpus.resolve(arguments.gpu)
    kernels = tuple(k for k in registry.select(arguments.kernels) if k in registry.OWN)
    rows = tuple(Workload(text, parse_lens(text)) for text in arguments.workload.split(","))
    return Asked(gpu, gpu == here, kernels, rows, arguments.out)


def _parts(only: str | None, asked: Asked) -> tuple[str, ...]:
    if only is None:
        return WITH_GPU if asked.here else WITHOUT_GPU
    named = tuple(dict.fromkeys(only.split(",")))
    if unknown := [name for name in named if name not in PARTS]:
        raise ValueError(f"--only: found {', '.join(unknown)}, allowed {', '.join(PARTS)}")
    return named


def main(arguments: argparse.Namespace) -> int:
    """0; 1 a row failed; 2 usage; 3 only parts that need the GPU, which is absent; 5 nothing selected; 130."""
    console = Console(stderr=True)
    try:
        asked = _asked(arguments)
        chosen = _parts(arguments.only, asked)
    except (ValueError, GrammarError) as error:  # the registry's and the GPU table's errors are ValueErrors
        console.print(str(error), markup=False, style="red")
        return USAGE
    runnable = [part for part in chosen if asked.here or part not in NEED_GPU]
    if not asked.here:
        console.print(f"{asked.gpu.name} is not here: compiled for it on {processor()}; no {' and no '.join(NEED_GPU)}")
    if not runnable or not asked.kernels:
        return NO_GPU if chosen and asked.kernels else NOTHING
    try:
        return _run(console, asked, runnable, arguments.out)
    except KeyboardInterrupt:
        console.print(f"interrupted: finished rows are in {arguments.out / 'costs.jsonl'}", markup=False)
        return INTERRUPTED


def _run(console: Console, asked: Asked, parts: Sequence[str], out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    ran_on = f"{processor()}, {asked.gpu.name}" if asked.here else processor()
    about = {"ran_on": ran_on, "commit": run_folder.commit(), "versions": run_folder.versions()}
    failures = 0
    with (out / "costs.jsonl").open("a", encoding="utf-8") as file:
        for part in parts:
            console.print(part, style="bold")
            for row in MEASURES[part](asked):
                file.write(json.dumps(row | about) + "\n")
                file.flush()
                failures += row["status"] not in ("ok", "unavailable", "unsupported")
                shown = {k: v for k, v in row.items() if k not in ("cost", "curve", "versions")}
                console.print("  " + " ".join(f"{k}={v}" for k, v in shown.items()), markup=False, highlight=False)
    return int(failures > 0)
