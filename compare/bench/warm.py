"""Compile ahead in the measuring process: Helion keeps generated code in the process only.

Triton's disk cache serves all processes of a run, so they share its work when each begins elsewhere in the list and in
its rows. Helion 1.5.0 traces a kernel anew in each process, which takes seconds. Nothing is launched: kernels are bound
and compiled for tensors without values.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch

from common import gpus
from common.cases.trial import ready
from common.gpus import Gpu
from common.spec import Features, PagedBatch
from common.spec.kernel import asked_of
from compare.bench.task import free_memory, rotated
from compare.competitors import registry
from compare.process.channel import Channel
from compare.workloads import Workload
from compare.workloads.workload import empty_output


def ahead(plain: dict[str, Any], channel: Channel) -> None:
    """Compile the kernels of every job in `plain["compile"]`; each sends a sign of life, the end says how many failed.

    What fails here fails again, with its reason, where its cell is set up.
    """
    device = torch.device(plain["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    gpu = gpus.resolve(plain["gpu"]) if plain["gpu"] in gpus.TABLE else gpus.detect(device.index or 0)
    failed = 0
    for job in rotated(plain["compile"], plain["process"], plain["processes"]):
        workload = Workload.from_dict(job["workload"])
        kernels = rotated(job["kernels"], plain["process"], plain["processes"])
        failed += _job(workload, kernels, device, gpu, plain["heuristics"], channel)
    free_memory()
    channel.send("compiled", failed=failed)


def _job(
    workload: Workload,
    kernels: Sequence[str],
    device: torch.device,
    gpu: Gpu | None,
    heuristics: str,
    channel: Channel,
) -> int:
    """Compile the kernels of one workload; returns how many failed."""
    failed = 0
    try:
        batch = workload.batches(1, device, fill=False)[0]
        features = workload.features(batch)
    except torch.OutOfMemoryError:
        return len(kernels)
    for kernel_id in kernels:
        channel.send("start", cell=None)
        try:
            _compile(kernel_id, workload, batch, features, gpu, heuristics)
        except Exception:
            failed += 1
    return failed


def _compile(
    kernel_id: str, workload: Workload, batch: PagedBatch, features: Features, gpu: Gpu | None, heuristics: str
) -> None:
    kernel = registry.load(kernel_id)
    asked = (kernel_id, kernel, workload.shape, workload.stats, gpu, heuristics, asked_of(batch, features))
    config, _ = registry.default_config(*asked, features.sees)
    workspace = ready(kernel, batch, features, config)
    if "triton" not in sys.modules:  # a kernel from outside: nothing to compile
        return
    from compare.static.jit import compiled_only

    with compiled_only():
        kernel.launch(batch, features, empty_output(batch, features), config, workspace)
