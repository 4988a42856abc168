"""vLLM's Triton kernel on the named cases: which it keeps, which it refuses, which it gets wrong.

    TRITON_INTERPRET=1 python -m compare study vllm      on a CPU, every small case
    python -m compare study vllm                         on the GPU that is here, the large ones too
    python -m compare study vllm SCRIPT...               run scripts that import the kernel, with its two files alone

Needs vLLM, or its two kernel files on the path (compare.competitors.baselines.vllm_files). Judged like any kernel,
without LSE, which it does not return. Behind docs/claims.md. Exit codes: 0; 1 where a case was wrong or broken; 2
usage; 5 where the kernel is not here.
"""

from __future__ import annotations

import argparse
import collections
import sys
from typing import Any

import torch

from common import interpreter
from common.cases.named import CASES, Case
from common.cases.trial import tried
from common.spec import SpecError
from compare import exits
from compare.competitors import registry
from compare.competitors.baselines import vllm_files

HELP = "vLLM's Triton kernel on the named cases"

KERNEL = "baseline/vllm_triton"
KEPT, REFUSED, WRONG, BROKEN = "kept", "refused", "wrong", "broken"


def judge(kernel: Any, case: Case, device: str) -> tuple[str, str]:
    """(KEPT, REFUSED, WRONG or BROKEN, why) of one kernel without LSE on one case."""
    try:
        found = tried(kernel, case, kernel.DEFAULT, device=device, lse=False)
    except SpecError as refusal:
        return REFUSED, str(refusal)
    except RuntimeError as error:  # of the compiler, the interpreter or the device
        return BROKEN, f"{type(error).__name__}: {error}"[:200]
    return (KEPT, "") if found.ok else (WRONG, found.reason)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="run these in place of the cases")


def main(asked: argparse.Namespace) -> int:
    """0; 1 where a case was wrong or broken; 2 usage; 5 where the kernel is not here."""
    if asked.scripts:
        vllm_files.run(asked.scripts)
        return exits.OK
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kernel = registry.load(KERNEL)
    except registry.Unavailable as error:
        print(f"{KERNEL}: unavailable: {error}", file=sys.stderr)
        return exits.NOTHING
    if device == "cpu":
        interpreter.install()
    counted: collections.Counter[str] = collections.Counter()
    for case in CASES:
        if case.large and device == "cpu":
            continue
        outcome, why = judge(kernel, case, device)
        counted[outcome] += 1
        if outcome in (WRONG, BROKEN):
            print(f"{case.name}: {outcome}: {why}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counted.items())))
    return exits.WRONG if counted[WRONG] + counted[BROKEN] else exits.OK
