"""Two partitions of warps that share one number: what racecheck says of Triton's own handover to them.

PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool racecheck python warp_specialize.py
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def _default(out_ptr, number):
    gl.store(out_ptr, number)


@gluon.jit
def _worker(out_ptr, number):
    gl.store(out_ptr + 1, number)


@gluon.jit
def _kernel(in_ptr, out_ptr):
    number = gl.sum(gl.load(in_ptr + gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))), 0)
    gl.warp_specialize(
        [(_default, (out_ptr, number)), (_worker, (out_ptr, number))], worker_num_warps=[1], worker_num_regs=[24]
    )


numbers = torch.arange(128, dtype=torch.int32, device="cuda")
out = torch.zeros(2, dtype=torch.int32, device="cuda")
_kernel[(1,)](numbers, out, num_warps=4)
print(out.tolist(), int(numbers.sum()))
