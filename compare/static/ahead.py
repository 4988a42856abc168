"""Compile random configs ahead, in parallel: Triton's disk cache then serves the process that times them.

One child per lane. Each draws the same configs as the search will (same space, seed and count) and compiles its share
for the GPU with the JIT's own binding, so the cache keys are those of the launch. It needs no GPU. A config that does
not compile here is counted here; it is tried again, and counted again, where it would have been timed.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from common.process import Child, Lost, cores
from compare.process import children
from compare.process.crew import environment
from compare.workloads import Workload

CORES_LEFT = 2


def ahead(
    workloads: Sequence[Workload], kernels: Sequence[str], gpu: str, count: int, seed: int
) -> tuple[int, list[str]]:
    """Fill the cache for every distinct shape and features of the rows: (how many compiled, what the others said)."""
    distinct = {json.dumps([w.to_dict()["shape"], w.to_dict()["ask"], w.style, w.new_kv]): w for w in workloads}
    lanes = max(cores() - CORES_LEFT, 1)
    task = {
        "workloads": [_small(row).to_dict() for row in distinct.values()],
        "kernels": list(kernels),
        "gpu": gpu,
        "count": count,
        "seed": seed,
        "lanes": lanes,
    }
    with contextlib.ExitStack() as stack:
        started = []
        for lane in range(lanes):
            child = Child(children.command(children.AHEAD), environment("measure"), flood=math.inf)
            stack.callback(child.end)
            started.append(child)
            with contextlib.suppress(Lost):  # it died at once: its answer says so
                child.send(json.dumps(task | {"lane": lane}).encode())
        answers = [_answer(child) for child in started]
    return sum(a["compiled"] for a in answers), [line for a in answers for line in a["failed"]]


def _small(row: Workload) -> Workload:
    """A batch that is specialised alike: its integers are above 1 and its strides as divisible as the row's."""
    return replace(row, label="ahead", lens=((1, 40), (3, 500)), shared_pages=0, seed=0)


def _answer(child: Child) -> dict[str, Any]:
    try:
        return json.loads(child.line(math.inf))
    except Lost:
        return {"compiled": 0, "failed": ["a lane died"]}


def main() -> None:
    from common.gpus import resolve
    from compare.competitors import registry
    from compare.process.channel import Channel
    from compare.static.crosscompile import static_facts

    channel = Channel()  # what compilers print must not mix in
    task = json.loads(sys.stdin.readline())
    gpu = resolve(task["gpu"])
    number, failed, compiled = 0, [], 0
    for plain in task["workloads"]:
        row = Workload.from_dict(plain)
        batch = row.batches(1, "cpu")[0]
        features = row.features(batch)
        for kernel_id in task["kernels"]:
            try:
                kernel = registry.load(kernel_id)
            except registry.Unavailable:  # its rows will say so; the other DSL still has configs
                continue
            for config in registry.random_configs(kernel, row.shape, gpu, task["count"], task["seed"]):
                number += 1
                if number % task["lanes"] == task["lane"]:
                    try:
                        static_facts(kernel, batch, features, config, gpu)
                        compiled += 1
                    except Exception as error:
                        failed.append(f"{kernel_id} {config}: {type(error).__name__}: {str(error)[:200]}")
    channel.send("compiled", compiled=compiled, failed=failed)


if __name__ == "__main__":
    main()
