"""The grids of a decode on an H200 by a Helion kernel, as JSON: in a process in which torch.distributed runs, as in
vLLM's, with a torch that cannot tell symmetric memory, as 2.11 cannot.
"""

import json

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from common.gpus import resolve
from common.spec import AttentionShape
from common.spec.kernel import Capacity, asked_of
from compare.competitors import registry
from compare.static import jit
from compare.static.helion_target import helion_as
from compare.workloads import Workload

SHAPE, LENS = AttentionShape(32, 8, 128, 16, torch.bfloat16), ((1, 1024),) * 256


def main() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if hasattr(symm_mem, "is_symm_mem_tensor"):
        del symm_mem.is_symm_mem_tensor
    gpu, kernel, row = resolve("h200"), registry.load("helion/parallel_softmax"), Workload("", LENS, SHAPE)
    batch = row.batches(1, "cpu", fill=False)[0]
    features, grids = row.features(batch), []
    asked = ("helion/parallel_softmax", kernel, SHAPE, batch.stats, gpu, "default", asked_of(batch, features))
    config, _ = registry.default_config(*asked, features.sees)
    workspace = kernel.workspace(SHAPE, Capacity.of(batch), config)
    with helion_as(gpu), jit.intercepted(lambda launch: grids.append(launch.grid)):
        kernel.launch(batch, features, torch.empty_like(batch.query), config, workspace)
    print(json.dumps([list(grid) for grid in grids]))


if __name__ == "__main__":
    main()
