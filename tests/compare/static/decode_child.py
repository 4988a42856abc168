"""How a decode of an H200 in bf16 is compiled, in a process that does not interpret.

Arguments: a kernel, its config over the default's as JSON, and `distributed` where torch.distributed is to run, as in
vLLM's, with a torch that cannot tell symmetric memory, as 2.11 cannot. JSON to stdout: [kernel, its grid, the shape of
each tile of K and V that its loops copy to shared memory without swizzling] of each launch.
"""

import json
import re
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from common.gpus import resolve
from common.spec import AttentionShape
from common.spec.kernel import Capacity, asked_of
from compare.competitors import registry
from compare.static.crosscompile import executing
from compare.workloads import Workload

SHAPE, LENS = AttentionShape(32, 8, 128, 16, torch.bfloat16), ((1, 8192),) * 32
FLAT = re.compile(r"(#\w+) = #ttg\.swizzled_shared<\{vec = 1, perPhase = 1, maxPhase = 1,")
BUFFER = re.compile(r"ttg\.local_alloc : \(\) -> !ttg\.memdesc<((?:\d+x)+)\w+, (#\w+), #smem, mutable>")


def unswizzled(ttgir: str) -> list[str]:
    flat = set(FLAT.findall(ttgir))
    buffers = [size for size, layout in BUFFER.findall(ttgir) if layout in flat]
    return [size for size in buffers if size.count("x") > 2]  # stages, keys, lanes; page ids: two


def main(kernel_id: str, given: str, distributed: str = "") -> None:
    if distributed:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        if hasattr(symm_mem, "is_symm_mem_tensor"):
            del symm_mem.is_symm_mem_tensor
    gpu, kernel, row = resolve("h200"), registry.load(kernel_id), Workload("", LENS, SHAPE)
    batch = row.batches(1, "cpu", fill=False)[0]
    features = row.features(batch)
    asked = (kernel_id, kernel, SHAPE, batch.stats, gpu, "default", asked_of(batch, features))
    config, _ = registry.default_config(*asked, features.sees)
    config = registry.config_from(config, json.loads(given))
    workspace = kernel.workspace(SHAPE, Capacity.of(batch), config)
    with executing(gpu, lambda launch: None) as launches:
        kernel.launch(batch, features, torch.empty_like(batch.query), config, workspace)
    print(json.dumps([[launch.kernel, launch.grid, unswizzled(launch.ttgir)] for launch in launches]))


if __name__ == "__main__":
    main(*sys.argv[1:])
