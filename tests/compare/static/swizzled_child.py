"""Tiles of K and V that loops copy to shared memory without swizzling, in a process that does not interpret.

Arguments: a kernel, its config over the default's as JSON. JSON to stdout: {kernel: [shape of each such buffer]}, for
decodes of an H200 in bf16.
"""

import json
import re
import sys

import torch

from common.gpus import resolve
from common.spec import AttentionShape
from common.spec.kernel import Capacity, asked_of
from compare.competitors import registry
from compare.static.crosscompile import executing
from compare.workloads import Workload

SHAPE, LENS = AttentionShape(32, 8, 128, 16, torch.bfloat16), ((1, 8192),) * 32
FLAT = re.compile(r"(#\w+) = #ttg\.swizzled_shared<\{vec = 1, perPhase = 1, maxPhase = 1,")
BUFFER = re.compile(r"ttg\.local_alloc : \(\) -> !ttg\.memdesc<((?:\d+x)+)\w+, (#\w+), #smem, mutable>")


def main(kernel_id: str, given: str) -> None:
    gpu, kernel, row = resolve("h200"), registry.load(kernel_id), Workload("", LENS, SHAPE)
    batch = row.batches(1, "cpu", fill=False)[0]
    features = row.features(batch)
    asked = (kernel_id, kernel, SHAPE, batch.stats, gpu, "default", asked_of(batch, features))
    config, _ = registry.default_config(*asked, features.sees)
    config = registry.config_from(config, json.loads(given))
    workspace = kernel.workspace(SHAPE, Capacity.of(batch), config)
    with executing(gpu, lambda launch: None) as launches:
        kernel.launch(batch, features, torch.empty_like(batch.query), config, workspace)
    found = {}
    for launch in launches:
        flat = set(FLAT.findall(launch.ttgir))
        buffers = [size for size, layout in BUFFER.findall(launch.ttgir) if layout in flat]
        found[launch.kernel] = [size for size in buffers if size.count("x") > 2]  # stages, keys, lanes; page ids: two
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
