"""compute-sanitizer over every own kernel on tiny named cases: out-of-bounds accesses (memcheck) and races (racecheck).

One process a tool, without PyTorch's caching allocator, which would hide an access behind the end of a tensor in
memory that the cache still holds. A tool that refuses to run is logged as `not run`, with its error.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from compare import registry, rundir

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
LIMIT_S = 240.0


def inside(count: int, patterns: str) -> None:
    """What the sanitizer watches: the first `count` cases on every kernel; the outputs are not judged here."""
    import torch

    from common.cases import BY_NAME, build, outputs
    from common.guards import Guards
    from common.kernel import Capacity
    from common.spec import UnsupportedFeature

    for kernel_id in registry.select(patterns):
        kernel = registry.load(kernel_id)
        for name in CASES[:count]:
            batch, features = build(BY_NAME[name], "cuda", Guards("cuda"))
            out, lse = outputs(BY_NAME[name], batch, Guards("cuda"), float("nan"))
            workspace = kernel.workspace(batch.shape, Capacity.of(batch), kernel.DEFAULT)
            try:
                kernel.launch(batch, features, out, kernel.DEFAULT, workspace, lse=lse)
                torch.cuda.synchronize()
                print(f"{kernel_id} {name} ran", flush=True)
            except UnsupportedFeature as error:
                print(f"{kernel_id} {name} unsupported: {error}", flush=True)


def watch(tool: str, patterns: str) -> tuple[str, bool]:
    """The log of one tool, and whether it found nothing (or could not run)."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "compare.sanitize"]
    command += ["--inside", str(TOOLS[tool]), "--kernels", patterns]
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        return f"not run: {type(error).__name__}: {error}\n", False
    log = "".join(line for line in (ended.stdout + ended.stderr).splitlines(keepends=True) if line.strip())
    clean = ended.returncode == 0 and any(line in log for line in ("ERROR SUMMARY: 0 errors", "0 hazards displayed"))
    return f"exit status {ended.returncode}{'' if clean else ': not clean'}\n{log}", clean


def main(argv: list[str] | None = None) -> int:
    """0 nothing reported by any tool; 1 a report, or a tool that did not run."""
    new = argparse.ArgumentParser(prog="python -m compare.sanitize", description=__doc__.splitlines()[0])
    new.add_argument("--kernels", default="triton/*,helion/*", help="comma-separated ids or globs")
    new.add_argument("--out", type=Path, metavar="DIR", help="one log a tool goes here")
    new.add_argument("--inside", type=int, help=argparse.SUPPRESS)
    asked = new.parse_args(argv)
    if asked.inside is not None:
        inside(asked.inside, asked.kernels)
        return 0
    worst = 0
    for tool in TOOLS:
        log, clean = watch(tool, asked.kernels)
        print(f"{tool}: {log.splitlines()[0]}; {log.splitlines()[-1]}", flush=True)
        worst = worst if clean else 1
        if asked.out is not None:
            asked.out.mkdir(parents=True, exist_ok=True)
            (asked.out / f"{tool}.log").write_text(f"commit {rundir.commit()}\n{log}")
    return worst


if __name__ == "__main__":
    sys.exit(main())
