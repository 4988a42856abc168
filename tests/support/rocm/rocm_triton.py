"""Triton of a ROCm machine whose GPU is its interpreter: launches are counted, captured and timed by rocm_graphs."""

import os
import sys

import rocm_graphs
import rocm_project
from rocm_graphs import STATE

MEASURING = ("compare.bench.worker", "compare.tune.worker")  # the children that launch


def interprets():
    """Whether this process launches kernels: they are interpreted, where those of others are compiled."""
    return any(name in sys.orig_argv for name in MEASURING)


def interpreter(module):
    original = module.InterpretedFunction.run

    def run(self, *args, grid, warmup, **kwargs):
        if kwargs.get("launch_pdl") or kwargs.get("launch_cooperative_grid"):
            rocm_project.note(f"{self.fn.__name__} launched with {sorted(kwargs)}")
        if not (warmup or STATE.ahead):
            rocm_graphs.launched(lambda: original(self, *args, grid=grid, warmup=False, **kwargs))

    module.InterpretedFunction.run = run


def cuda_utils(module):
    class CudaUtils:
        def __init__(self):
            rocm_project.note("triton's driver for NVIDIA")
            raise AssertionError("libcuda.so cannot found!")

    module.CudaUtils = CudaUtils


if interprets():
    os.environ["TRITON_INTERPRET"] = "1"

AFTER = {"triton.runtime.interpreter": interpreter, "triton.backends.nvidia.driver": cuda_utils}
