"""compute-sanitizer over every own kernel on tiny named cases: out-of-bounds accesses (memcheck) and races (racecheck).

    python -m compare study sanitize --kernels 'helion/*' --jobs 8 --out DIR
    python -m compare study sanitize --kernels triton/parallel_softmax --set block_m=64,num_stages=5,gather=run

One process a tool, or with --jobs one a kernel, several at a time: Helion generates code for seconds a case, and keeps
it in the process. Without PyTorch's caching allocator, which would hide an access behind the end of a tensor in memory
that the cache still holds. Each kernel runs as its DEFAULT, with what --set changes in it.

With --out each log is appended to DIR/<tool>.log as its process ends, beside a line of DIR/verdicts.jsonl; the same
command goes on with the kernels that no line of this source and config calls clean. A tool that refuses to run is
logged as `not run`, with its error; one that ran out of time with what it had said.
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
from compare.workloads.numbers import at_least_one, positive

HELP = "accesses out of bounds and races, by compute-sanitizer"

# page and tile borders, garbage tails, empty sequences, odd sizes, every phase
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
    """The named case; for kernels of one GPU, which have heads of 128 in 16 bits alone, made so."""
    import torch

    from common.cases.named import BY_NAME

    case = BY_NAME[name]
    return replace(case, head_size=128, dtype=torch.bfloat16) if kernel_id in registry.NATIVE else case


def inside(count: int, patterns: str, device: str = "cuda", changes: str = "") -> None:
    """What the sanitizer watches: the first `count` cases on every kernel; the outputs are not judged here.

    changes: of each kernel's DEFAULT (`space.of_default`).
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


def watch(tool: str, patterns: str, limit_s: float = LIMIT_S, changes: str = "") -> tuple[str, bool]:
    """The log of one process under a tool, and whether it found nothing (or could not run)."""
    command = [
        "compute-sanitizer",
        "--tool",
        tool,
        "--error-exitcode",
        "9",
        sys.executable,
        "-m",
        "compare.__main__",
        "study",
        "sanitize",
    ]
    command += ["--inside", str(TOOLS[tool]), "--kernels", patterns, "--set", changes]
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        status, log = _run(command, environment, limit_s)
    except FileNotFoundError as error:
        return f"not run: {type(error).__name__}: {error}\n", False
    except Lost as lost:
        return f"not finished: stopped after {limit_s:.0f} s\n{_said(lost.log_tail)}", False
    log = _said(log)
    clean = status == 0 and any(line in log for line in ("ERROR SUMMARY: 0 errors", "0 hazards displayed"))
    return f"exit status {status}{'' if clean else ': not clean'}\n{log}", clean


def _run(command: list[str], environment: dict[str, str], limit_s: float) -> tuple[int, str]:
    """Exit status and output. Raises Lost, with the output so far, when the tool and its child have been ended."""
    code, output, _ = process.once(command, environment, b"", limit_s, merged=True)
    return code, output.decode(errors="replace")


def _said(output: str) -> str:
    return "".join(line for line in output.splitlines(keepends=True) if line.strip())


def _verdict(said: Any) -> dict[str, Any]:
    return checked(said, _LINE, "verdict", ("tool", "clean", "kernels"))


class Kept:
    """What a folder holds of earlier calls: logs, and a verdict a process. Without a folder nothing is kept.

    changes: of each kernel's DEFAULT; a verdict holds for the same ones alone.
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


def sanitize(tool: str, kernels: Sequence[str], jobs: int, limit_s: float, kept: Kept) -> bool:
    """Whether the tool found nothing on any kernel that was not clean before; what it said is kept as it comes."""
    left = [kernel_id for kernel_id in kernels if not kept.clean(tool, kernel_id)]
    if len(left) < len(kernels):
        print(f"{tool}: {len(kernels) - len(left)} kernels were clean before", flush=True)
    groups = [left] if jobs == 1 else [[kernel_id] for kernel_id in left]

    def timed(group: list[str]) -> tuple[str, bool, float]:
        begin = time.monotonic()
        return *watch(tool, ",".join(group), limit_s, kept.changes), time.monotonic() - begin

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
    new.add_argument("--limit", type=positive, default=LIMIT_S, metavar="S", help="of a process (default 240 s)")
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
        return 0 if all([sanitize(tool, kernels, asked.jobs, asked.limit, kept) for tool in tools]) else 1
    finally:
        kept.close()
