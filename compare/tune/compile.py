"""The compiling lane of the tuner: one job is a policy of a kernel, compiled for some rows and launched on none.

It needs no GPU. What it compiled lies in Triton's disk cache, from which the process that times it takes it. A row of
its answer says what became of the config: ok with the identity of its code, or spills, shared_memory, workspace,
compile_error, unsupported.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import sys
import time
from typing import Any

import torch

from common.absent import helion_as
from common.cases.trial import planned
from common.gpus import Gpu
from common.spec import PagedBatch, UnsupportedFeature
from common.spec.kernel import Capacity
from compare.competitors import registry
from compare.static import crosscompile, jit
from compare.tune.space import DEFAULT, TREE, Policy, start
from compare.workloads import Workload
from compare.workloads.workload import empty_output

# Bytes of registers that a thread may keep in memory. On an H200 the fastest prefill shape spills 64 and a decode with
# 8 loses nothing; an AMD unit's spills go through the vector cache of all its waves.
MAX_SPILL_BYTES = {"nvidia": 64, "amd": 0}
MAX_WORKSPACE = 2 * 2**30  # a serving engine gives its scratch for all layers once; more is not worth a candidate


class _TooLarge(Exception):
    """The workspace is larger than a serving engine would allocate."""


def tensor_bytes(value: Any) -> int:
    """Bytes of all tensors in a workspace: a tensor, a dataclass or tuple of such, or None."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    return sum(map(tensor_bytes, value)) if isinstance(value, list | tuple) else 0


@functools.cache
def _batch(row: Workload) -> PagedBatch:
    """The row's batch on the CPU; K and V are never written, so they take no memory."""
    return row.batches(1, "cpu", fill=False)[0]


class Lane:
    """Compiles for one GPU. Code that rows or policies share is compiled once."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._facts: dict[str, crosscompile.KernelFacts] = {}

    def compile(self, kernel_id: str, row: Workload, policy: Policy) -> dict[str, Any]:
        """Compile one candidate: status, reason and identity of its code. Raises only errors that end the lane."""
        answer: dict[str, Any] = {"config": None, "code": ""}
        try:
            kernel = registry.load(kernel_id)
            batch = _batch(row)
            config = policy.config(start(policy, kernel_id, kernel, row, self.gpu))
            answer["config"] = registry.config_dict(config)
            launches = self._launches(
                kernel, batch, row, config, math.inf if policy in (DEFAULT, TREE) else MAX_WORKSPACE
            )
            facts = [self._compiled(launch) for launch in launches]
        except UnsupportedFeature as error:
            return answer | {"status": "unsupported", "reason": str(error)}
        except _TooLarge as error:
            return answer | {"status": "workspace", "reason": str(error)}
        except Exception as error:  # any compiler error is the candidate's outcome
            first = (str(error).strip().splitlines() or [""])[0]
            return answer | {"status": "compile_error", "reason": f"{type(error).__name__}: {first}"[:300]}
        return answer | {"code": _identity(launches, facts)} | self._verdict(facts, policy)

    def _launches(self, kernel: Any, batch: PagedBatch, row: Workload, config: Any, most: float) -> list[jit.Launch]:
        workspace = kernel.workspace(batch.shape, Capacity.of(batch), config)
        if (size := tensor_bytes(workspace)) > most:
            raise _TooLarge(f"{size >> 20} MiB, allowed {most / 2**20:.0f}")
        features = row.features(batch)
        with helion_as(self.gpu), jit.recorded() as launches:
            workspace = planned(kernel, batch, features, config, workspace)
            kernel.launch(batch, features, empty_output(batch, features), config, workspace)
        return launches

    def _compiled(self, launch: jit.Launch) -> crosscompile.KernelFacts:
        key = crosscompile.code_key(launch, self.gpu)
        if key not in self._facts:
            self._facts[key] = crosscompile.compile_launch(launch, self.gpu)
        return self._facts[key]

    def _verdict(self, facts: list[crosscompile.KernelFacts], policy: Policy) -> dict[str, Any]:
        """ok, or why the candidate drops out. The default may spill, because everything is compared with it."""
        for fact in facts:
            code = fact.code
            if code.shared_bytes > self.gpu.shared_bytes:
                found = f"{fact.kernel} needs {code.shared_bytes} B, {self.gpu.name} has {self.gpu.shared_bytes}"
                return {"status": "shared_memory", "reason": found}
            limit = MAX_SPILL_BYTES[self.gpu.vendor]
            spilled = max(code.spill_bytes, code.scratch_bytes if self.gpu.vendor == "amd" else 0)
            if spilled > limit and policy not in (DEFAULT, TREE):
                return {"status": "spills", "reason": f"{fact.kernel} spills {spilled} B, allowed {limit}"}
        return {"status": "ok", "reason": ""}


def _identity(launches: list[jit.Launch], facts: list[crosscompile.KernelFacts]) -> str:
    """A hash of code, grid and integer arguments, equal for equal launches; empty if nothing was recorded."""
    if not launches:
        return ""
    parts = []
    for launch, fact in zip(launches, facts, strict=True):
        numbers = [value for value in jit.flatten(launch.args) if isinstance(value, int | float)]
        parts.append([fact.code.sha256, launch.grid, numbers])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def main() -> None:
    from compare.process.channel import Channel

    channel = Channel()
    channel.send("ready", versions={"lane": "compile"})
    task = json.loads(sys.stdin.readline())
    lane = Lane(Gpu(**task["gpu"]))
    rows = {plain["label"]: Workload.from_dict(plain) for plain in task["rows"]}
    for line in sys.stdin:
        job = json.loads(line)
        channel.send("start", cell=job["id"])
        policy = Policy.from_dict(job["policy"])
        answers = {}
        for label in job["rows"]:
            if time.time() > task["deadline"]:  # the rows so far can still be timed
                break
            channel.send("start", cell=job["id"])  # a sign of life: Helion takes seconds to generate code for a row
            answers[label] = lane.compile(job["kernel"], rows[label], policy)
        channel.send("row", cell=job["id"], answers=answers)
        channel.send("finished", job=job["id"])


if __name__ == "__main__":
    main()
