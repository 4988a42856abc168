"""Launch a decode of each of a few lengths as for an H200 that need not be here; nothing is compiled:

    python kept_child.py

Prints in JSON how many kernels Helion generated and how many were loaded in their place, and the keys of Triton's
cache that their launches have. DIPTYCH_HELION_CACHE is the folder.
"""

import json

import helion._hardware
import torch

import common.serving.reach
from common import gpus
from common.absent import gpu_target, helion_as
from common.spec import AttentionShape
from compare.static import jit
from dsl_helion import kept
from dsl_helion.auto import plan_paged_attention

SHAPE = AttentionShape(16, 1, 64, 16, torch.bfloat16)


def main():
    gpu, bound = gpus.resolve("h200"), set()
    common.serving.reach.gpu_of = lambda device: gpu
    kept.target = lambda device: gpu.name
    target = gpu_target(gpu.arch)
    hopper = helion._hardware.HardwareInfo("cuda", "NVIDIA H200", "13.0", "sm90")  # where Helion has starts of its own
    helion._hardware.get_hardware_info = lambda *device: hopper
    with helion_as(gpu), jit.intercepted(lambda launch: bound.add(jit.bind(launch, target).key)):
        plan_paged_attention(SHAPE, 2, 2, 256, "cpu").warmup()
    print(json.dumps({**kept.counts, "keys": sorted(bound)}))


if __name__ == "__main__":
    main()
