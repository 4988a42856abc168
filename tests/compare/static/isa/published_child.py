"""A published wrong-code case, run: the machine code that a compiler bug leaves behind writes nothing.

triton-lang/triton#9036 (December 2025, closed unmerged): TritonGPURemoveLayoutConversions prunes loop arguments and
does not count the bounds of a nested loop as a use, so an argument that nothing else reads is replaced by its first
value. The compiler says nothing; the pass is the same for every GPU. Prints JSON for gfx942.
"""

import json

import torch
import triton
import triton.language as tl

from common.gpus import resolve
from compare.static.crosscompile import executing
from compare.static.isa.execute import execute

ROUNDS, UNTOUCHED = 8, -7


@triton.jit
def count_up(out_ptr, bounds_ptr, ROUNDS: tl.constexpr, READ_BOUND: tl.constexpr):
    """out[i] = i + 2 where that is above 3. READ_BOUND: the bound is stored, too, which is a use that the pass sees."""
    bound = 2
    for i in range(0, ROUNDS):
        count = 0
        for _ in range(0, bound):
            count += 1
        if count > 3:
            tl.store(out_ptr + i, count)
        if READ_BOUND:
            tl.store(bounds_ptr + i, bound)
        bound = bound + 1


def run(read_bound):
    out, bounds = (torch.full((ROUNDS,), UNTOUCHED, dtype=torch.int32) for _ in range(2))
    with executing(resolve("mi300"), execute) as launches:
        count_up[(1,)](out, bounds, ROUNDS, read_bound)
    carried = "iter_args(%bound" in launches[0].ttgir
    return {"out": out.tolist(), "carried": carried, "sha256": launches[0].sha256}


print(json.dumps({"pruned": run(False), "read": run(True), "triton": triton.__version__}))
