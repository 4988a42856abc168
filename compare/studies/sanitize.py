"""Run compute-sanitizer over our kernels on tiny cases: memcheck for out-of-bounds accesses, racecheck for races.

    python -m compare study sanitize --kernels 'helion/*' --jobs 8 --out DIR
    python -m compare study sanitize --kernels triton/parallel_softmax --set block_m=64,num_stages=5,gather=run

Each tool and kernel gets a process; --jobs runs several in parallel. PyTorch's caching allocator is off, because it
would hide accesses behind the end of a tensor. Each kernel runs with its DEFAULT config, changed by --set.

--out appends each log to DIR/<tool>.log. A tool that could not start is logged as `not run` with its error, one that
ran out of time with its output so far.
Exit codes: 0 nothing reported by any tool; 1 a report, or a tool that did not run or finish; 2 usage.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import process
from common.process import Lost
from compare.competitors import registry
from compare.exits import OK, USAGE, WRONG, say
from compare.record import folder as run_folder
from compare.tune.space import of_default
from compare.workloads.numbers import at_least_one

HELP = "accesses out of bounds and races, by compute-sanitizer"

# page and tile borders, garbage tails, empty sequences, odd sizes, every class of batch
CASES = (
    "query-15-16-17",
    "context-page-plus-1",
    "one-empty-sequence",
    "sequence-at-page",
    "speculative-2-to-9",
    "context-not-a-multiple",
    "query-0",
    "sequence-1",
)
TOOLS = {"memcheck": 8, "racecheck": 2}  # cases of CASES that each tool sees
LIMIT_S = 240.0  # of a process


def fitting(kernel_id: str, name: str) -> Any:
    """The named case; native kernels get it with bf16 and a head size of 128, which is all that they support."""
    import torch

    from common.cases.named import BY_NAME

    case = BY_NAME[name]
    return replace(case, head_size=128, dtype=torch.bfloat16) if kernel_id in registry.NATIVE else case


def inside(count: int, patterns: str, device: str = "cuda", changes: str = "") -> None:
    """The watched process: launch every kernel on the first `count` cases. Outputs are not judged.

    changes: to each kernel's DEFAULT (`space.of_default`).
    """
    import torch

    from common.cases.named import build, outputs
    from common.cases.trial import ready
    from common.oracle.integrity import Guards
    from common.spec import UnsupportedFeature

    for kernel_id in registry.select(patterns):
        kernel = registry.load(kernel_id)
        config = of_default(kernel_id, changes)
        for name in CASES[:count]:
            case = fitting(kernel_id, name)
            batch, features = build(case, device, Guards(device))
            out, lse = outputs(case, batch, Guards(device), float("nan"))
            try:
                workspace = ready(kernel, batch, features, config)
                kernel.launch(batch, features, out, config, workspace, lse=lse)
                if device == "cuda":
                    torch.cuda.synchronize()
                print(f"{kernel_id} {name} ran", flush=True)
            except UnsupportedFeature as error:
                print(f"{kernel_id} {name} unsupported: {error}", flush=True)


def watch(tool: str, patterns: str, changes: str = "") -> tuple[str, bool]:
    """Run one process under a tool; returns its log and whether it ran and reported nothing."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "compare.__main__"]
    command += ["study", "sanitize", "--inside", str(TOOLS[tool]), "--kernels", patterns, "--set", changes]
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        status, log = _run(command, environment)
    except FileNotFoundError as error:
        return f"not run: {type(error).__name__}: {error}\n", False
    except Lost as lost:
        return f"not finished: stopped after {LIMIT_S:.0f} s\n{_said(lost.log_tail)}", False
    log = _said(log)
    clean = status == 0 and any(line in log for line in ("ERROR SUMMARY: 0 errors", "0 hazards displayed"))
    return f"exit status {status}{'' if clean else ': not clean'}\n{log}", clean


def _run(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Exit status and output of a command. Raises Lost with the output so far if it ran out of time."""
    code, output, _ = process.once(command, environment, b"", LIMIT_S, merged=True)
    return code, output.decode(errors="replace")


def _said(output: str) -> str:
    return "".join(line for line in output.splitlines(keepends=True) if line.strip())


def sanitize(tool: str, kernels: Sequence[str], jobs: int, changes: str, out: Path | None) -> bool:
    """Run a tool on each kernel, append its logs to `out`, and return whether it reported nothing."""

    def timed(kernel_id: str) -> tuple[str, bool, float]:
        begin = time.monotonic()
        return *watch(tool, kernel_id, changes), time.monotonic() - begin

    every = True
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(timed, kernel_id): kernel_id for kernel_id in kernels}
        for future in as_completed(running):
            kernel_id, (log, clean, seconds) = running[future], future.result()
            lines = log.splitlines()
            print(f"{tool} of {kernel_id}: {lines[0]}; {lines[-1]}; {seconds:.0f} s", flush=True)
            if out is not None:
                with (out / f"{tool}.log").open("a", encoding="utf-8") as file:
                    file.write(f"commit {run_folder.commit()}, {kernel_id}, {seconds:.0f} s\n{log}")
            every &= clean
    return every


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--kernels", default="triton/*,triton/native*,helion/*", help="comma-separated ids or globs")
    new.add_argument("--set", default="", metavar="FIELD=VALUE,...", help="in each kernel's DEFAULT config")
    new.add_argument("--jobs", type=at_least_one, default=1, help="processes at a time (default 1)")
    new.add_argument("--tools", default=",".join(TOOLS), help=f"of {', '.join(TOOLS)} (default both)")
    new.add_argument("--out", type=Path, metavar="DIR", help="folder of the logs")
    new.add_argument("--inside", type=int, help=argparse.SUPPRESS)


def main(asked: argparse.Namespace) -> int:
    """0 nothing reported by any tool; 1 a report, or a tool that did not run or finish; 2 usage."""
    if asked.inside is not None:
        inside(asked.inside, asked.kernels, changes=asked.set)
        return OK
    tools = tuple(filter(None, asked.tools.split(",")))
    if not tools or not set(tools) <= set(TOOLS):
        print(f"--tools: found {asked.tools!r}, allowed {', '.join(TOOLS)}", file=sys.stderr)
        return USAGE
    try:
        kernels = registry.select(asked.kernels)
        for kernel_id in kernels:
            of_default(kernel_id, asked.set)
        if asked.out is not None:
            run_folder.ensure_writable(asked.out)
    except (registry.UnknownKernel, run_folder.CannotWrite) as error:
        say(error)
        return USAGE
    except ValueError as error:
        print(f"--set: {error}", file=sys.stderr)
        return USAGE
    return OK if all([sanitize(tool, kernels, asked.jobs, asked.set, asked.out) for tool in tools]) else WRONG
