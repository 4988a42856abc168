"""Warm a small plan up through Triton's own JIT and compiler for an H200 that is not here:

    python ahead_child.py DSL [KERNEL THAT DOES NOT COMPILE]

The driver loads nothing and writes launches down. Prints in JSON how many launches each of two warm-ups gave to the
driver, the kernels that the calling thread compiled and those that other threads did, which of them were not on the
disk, how many Helion generated, and what a warm-up raised.
"""

import importlib
import json
import sys
import threading
from unittest import mock

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver

import common.serving.reach
from common import gpus
from common.absent import helion_as
from common.serving import tape
from common.serving.ahead import stand_in_caches
from common.spec import AttentionShape

SHAPE = AttentionShape(8, 2, 64, 16, torch.bfloat16)
launched: list[str] = []
compiled: dict[bool, list[str]] = {True: [], False: []}  # by whether the calling thread compiled
made: list[str] = []  # kernels that were not on the disk


class Launcher:
    def __init__(self, source, metadata):
        self.name = source.name

    def __call__(self, *args):
        launched.append(self.name)


class Utils:
    def load_binary(self, name, code, shared, device):
        return object(), object(), 32, 0, 1024

    def get_device_properties(self, device):
        return {"max_shared_mem": 232448}


class Driver(CudaDriver):
    """What the JIT asks a driver."""

    def __init__(self):
        self.utils, self.launcher_cls = Utils(), Launcher
        self.get_current_device, self.get_current_stream = lambda: 0, lambda device: 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_device_interface(self):
        return torch.cpu


def main(dsl, broken=""):
    gpu, me, original = gpus.resolve("h200"), threading.get_ident(), triton.compile
    driver.set_active(Driver())
    common.serving.reach.gpu_of = lambda device: gpu

    def listener(*, src, cache_hit, **_):
        compiled[threading.get_ident() == me].append(src.name)
        if not cache_hit:
            made.append(src.name)

    def compile(src, *args, **kwargs):
        if broken and src.name.startswith(broken):
            raise RuntimeError("no such instruction")
        return original(src, *args, **kwargs)

    knobs.compilation.listener = listener
    patches = {
        "has_jit": lambda device: True, "current_device": lambda: -1, "current_stream": lambda device: 0,
        "begin_thread": lambda device: None,
    }  # fmt: skip
    said, (key, value) = {"launched": []}, stand_in_caches(SHAPE, True)
    module = importlib.import_module(f"dsl_{dsl}.auto")  # with Helion, whose questions `helion_as` answers
    if dsl == "helion":
        kept = importlib.import_module("dsl_helion.kept")
        kept.generate_for(gpu, lambda key: True)
    with helion_as(gpu), mock.patch.multiple(tape, **patches):
        jit = sys.modules["triton.runtime.jit"].JITFunction
        with mock.patch.object(jit, "compile", property(lambda self: compile, lambda self, _: None), create=True):
            try:
                for _ in range(2):
                    plan = module.plan_paged_attention(SHAPE, 32, 2, 64, "cpu")
                    calls = plan.warmup(key_cache=key, value_cache=value)
                    said["launched"].append(len(launched))
                    launched.clear()
            except RuntimeError as error:
                said["raised"] = str(error)
                calls = 0
    said |= {"calls": calls, "made": made, "generated": 0 if dsl == "triton" else kept.counts["generated"]}
    print(json.dumps(said | {"here": sorted(compiled[True]), "threads": sorted(compiled[False])}))


if __name__ == "__main__":
    main(*sys.argv[1:])
