"""Repeat one launch and check whether the bits of its output change, on this GPU or in the interpreter.

    python -m compare study stress --kernels triton/native.sm90_prefill --workload q2ks8k --launches 2000

It finds compilers that reuse a register too early, which a single launch may not show. Add a failing kernel to REFUSED
in common/spec/toolchain.py with its compiler versions. TRITON_PTXAS_PATH selects another ptxas.

Exit codes: 0 no bit changed; 1 one did; 2 usage.
"""

import argparse

import torch

from common import gpus, interpreter
from common.oracle.integrity import words
from compare.bench.arena import Arena
from compare.bench.gate import Rejected
from compare.bench.subject import Subject
from compare.competitors import registry
from compare.exits import OK, WRONG, refusing
from compare.workloads import GrammarError, Workload, parse_lens, parse_shape
from compare.workloads.numbers import at_least_one

HELP = "whether a repeated launch ever gives other bits"
NAN = float("nan")


def changed(subject: Subject, launches: int) -> list[int]:
    """Numbers of the launches whose output bits differ from the first launch. The output is NaN before each."""
    [out] = subject.arena.outs
    subject.launch(0)
    first = words(out).clone()
    differs = torch.zeros(launches, dtype=torch.bool, device=out.device)
    for number in range(1, launches):
        out.fill_(NAN)
        subject.launch(0)
        differs[number] = (words(out) != first).any()
    return differs.nonzero().flatten().tolist()


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--kernels", default="triton/auto", help="comma-separated ids or globs (default triton/auto)")
    new.add_argument("--workload", default="q2ks8k", help="lengths, as of `run` (default q2ks8k)")
    new.add_argument("--shape", default="32:8:128", help="query heads:KV heads:head size (default 32:8:128)")
    new.add_argument("--launches", type=at_least_one, default=2000, help="of each kernel (default 2000)")


@refusing(registry.UnknownKernel, GrammarError)
def main(asked: argparse.Namespace) -> int:
    interpreter.begin()
    kernels = registry.select(asked.kernels)
    row = Workload(asked.workload, parse_lens(asked.workload), parse_shape(asked.shape, 16, "bf16"))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    arena, wrong = Arena(row, 1, device), False
    for kernel_id in kernels:
        try:
            found = changed(Subject(kernel_id, arena, gpus.detect()), asked.launches)
        except (Rejected, registry.Unavailable) as error:
            print(f"{kernel_id}: not launched: {error}")
            continue
        wrong |= bool(found)
        first = f", number {found[0] + 1} before all" if found else ""
        print(
            f"{kernel_id}: {len(found)} of {asked.launches} launches have other bits than the first{first}", flush=True
        )
    return WRONG if wrong else OK
