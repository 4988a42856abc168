"""Counts a small kernel for gfx942 in a process that does not interpret; prints JSON.

The kernel: program i of `grid` loads 1024 floats in words of 16 bytes, adds one, and stores them.
"""

import json

import torch
import triton
import triton.language as tl

from common.gpus import resolve
from compare.static.counts.counting import counting
from compare.static.counts.l2 import L2


@triton.jit
def _add(x, out, ROWS: tl.constexpr):
    at = tl.program_id(0) % ROWS * 1024 + tl.arange(0, 1024)
    tl.store(out + tl.program_id(0) * 1024 + tl.arange(0, 1024), tl.load(x + at) + 1)


def main() -> None:
    x, out = torch.zeros(4 * 1024), torch.zeros(16 * 1024)
    with counting(resolve("mi300")) as found:
        _add[(16,)](x, out, ROWS=4, num_warps=4)
    (one,) = found
    l2 = one.l2(L2(dies=8))
    print(json.dumps({
        "out": float(out.sum()), "programs": one.programs, "loads": dict(one.loads),
        "lines": one.lines, "fetched": l2.times, "each": l2.each, "waits": one.waits,
        "instructions": sum(one.instructions.values()), "kinds": sum(one.kinds.values()),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
