"""Run compute-sanitizer over our kernels on tiny cases: memcheck for out-of-bounds accesses, racecheck for races.

    python -m compare study sanitize --kernels 'helion/*' --jobs 8 --out DIR
    python -m compare study sanitize --kernels triton/parallel_softmax --set block_m=64,num_stages=5,gather=run

Each tool gets one process; with --jobs each kernel gets one, several in parallel. PyTorch's caching allocator is off,
because it would hide accesses behind the end of a tensor. Each kernel runs with its DEFAULT config, changed by --set.

With --out each log is appended to DIR/<tool>.log and each verdict to DIR/verdicts.jsonl. The same command skips kernels
with a clean verdict for their source and config. A tool that could not start is logged as `not run` with its error, one
that ran out of time with its output so far.
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
from compare.competitors import registry, sources
from compare.exits import USAGE, say
from compare.record import folder as run_folder
from compare.record.fields import FLAG, NUMBER, TEXT, checked, object_of
from compare.record.store import Busy
from compare.tune.records import Log
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
VERDICTS = "verdicts.jsonl"
_LINE = {"tool": TEXT, "clean": FLAG, "commit": TEXT, "seconds": NUMBER, "set": TEXT, "kernels": object_of(TEXT)}


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


def _verdict(said: Any) -> dict[str, Any]:
    return checked(said, _LINE, "verdict", ("tool", "clean", "kernels"))


class Kept:
    """Logs and verdicts of earlier calls in a folder; without a folder nothing is kept.

    changes: to each kernel's DEFAULT; a verdict counts only for the same changes.
    """

    def __init__(self, folder: Path | None, changes: str = "") -> None:
        self._folder, self._verdicts, self.changes = folder, None, changes
        if folder is not None:
            run_folder.ensure_writable(folder)
            self._verdicts = Log(folder / VERDICTS, _verdict)

    def close(self) -> None:
        if self._verdicts:
            self._verdicts.close()

    def clean(self, tool: str, kernel_id: str) -> bool:
        lines = self._verdicts.lines if self._verdicts else []
        return any(
            (line["clean"], line["tool"], line.get("set", "")) == (True, tool, self.changes)
            and line["kernels"].get(kernel_id) == sources.of_kernel(kernel_id)
            for line in lines
        )

    def add(self, tool: str, kernels: Sequence[str], log: str, clean: bool, seconds: float) -> None:
        if self._folder is None or self._verdicts is None:
            return
        with open(self._folder / f"{tool}.log", "a", encoding="utf-8") as file:
            file.write(f"commit {run_folder.commit()}, {len(kernels)} kernels, {seconds:.0f} s\n{log}")
        about: dict[str, Any] = {
            "tool": tool,
            "clean": clean,
            "commit": run_folder.commit(),
            "seconds": round(seconds, 1),
        } | ({"set": self.changes} if self.changes else {})
        self._verdicts.add(**about, kernels={kernel_id: sources.of_kernel(kernel_id) for kernel_id in kernels})


def sanitize(tool: str, kernels: Sequence[str], jobs: int, kept: Kept) -> bool:
    """Run a tool on the kernels without a clean verdict, keep its logs, and return whether it reported nothing."""
    left = [kernel_id for kernel_id in kernels if not kept.clean(tool, kernel_id)]
    if len(left) < len(kernels):
        print(f"{tool}: {len(kernels) - len(left)} kernels were clean before", flush=True)
    groups = [left] if jobs == 1 else [[kernel_id] for kernel_id in left]

    def timed(group: list[str]) -> tuple[str, bool, float]:
        begin = time.monotonic()
        return *watch(tool, ",".join(group), kept.changes), time.monotonic() - begin

    worst = True
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(timed, group): group for group in groups if group}
        for future in as_completed(running):
            log, clean, seconds = future.result()
            group, lines = running[future], log.splitlines()
            kept.add(tool, group, log, clean, seconds)
            what = group[0] if len(group) == 1 else f"{len(group)} kernels"
            print(f"{tool} of {what}: {lines[0]}; {lines[-1]}; {seconds:.0f} s", flush=True)
            worst &= clean
    return worst


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--kernels", default="triton/*,triton/native*,helion/*", help="comma-separated ids or globs")
    new.add_argument("--set", default="", metavar="FIELD=VALUE,...", help="in each kernel's DEFAULT config")
    new.add_argument("--jobs", type=at_least_one, default=1, help="processes at a time, of one kernel each")
    new.add_argument("--tools", default=",".join(TOOLS), help=f"of {', '.join(TOOLS)} (default both)")
    new.add_argument("--out", type=Path, metavar="DIR", help="logs, and verdicts to go on from")
    new.add_argument("--inside", type=int, help=argparse.SUPPRESS)


def main(asked: argparse.Namespace) -> int:
    """0 nothing reported by any tool; 1 a report, or a tool that did not run or finish; 2 usage."""
    if asked.inside is not None:
        inside(asked.inside, asked.kernels, changes=asked.set)
        return 0
    tools = tuple(filter(None, asked.tools.split(",")))
    if not tools or not set(tools) <= set(TOOLS):
        print(f"--tools: found {asked.tools!r}, allowed {', '.join(TOOLS)}", file=sys.stderr)
        return USAGE
    try:
        kernels = registry.select(asked.kernels)
        for kernel_id in kernels:
            of_default(kernel_id, asked.set)
        kept = Kept(asked.out, asked.set)
    except (registry.UnknownKernel, run_folder.CannotWrite, Busy) as error:
        say(error)
        return USAGE
    except ValueError as error:
        print(f"--set: {error}", file=sys.stderr)
        return USAGE
    try:
        return 0 if all([sanitize(tool, kernels, asked.jobs, kept) for tool in tools]) else 1
    finally:
        kept.close()
