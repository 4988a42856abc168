"""Count the specialisations that 1,000 steps of a trace need: how often a serving engine waits for a compiler.

Each step of the scheduler (compare.workloads.trace) is a launch of `auto` on tensors of its sizes; the JIT's own binder
says which code it needs, and new code is compiled for the target. Nothing is launched, so no GPU is needed; the
evidence is `compiled`. Each DSL runs in a process of its own, whose Triton cache is empty at first. Seconds are those
of generating and compiling, as wall time and as time of a core. `waits`: steps that needed new code; `last_at`: the
last of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.gpus import Gpu
from common.spec import AttentionShape
from compare.process import children
from compare.record.records import Evidence
from compare.studies.costs.compile import Watch, fresh_process
from compare.workloads import trace

STEPS = 1000
LIMIT_S = 3000.0
SYNTHETIC = "synthetic: 8 requests/s, prompts log-normal around 700 tokens, outputs around 180, seed 0"
_RATE, _PROMPT, _OUTPUT, _SIGMA = 8.0, 700, 180, 1.0


def synthetic(count: int = 4000, seed: int = 0) -> list[trace.Request]:
    """Synthetic requests, as SYNTHETIC describes them, reproducible from the seed."""
    draw = random.Random(seed)
    found, arrival = [], 0.0
    for _ in range(count):
        arrival += draw.expovariate(_RATE)
        prompt, output = (max(1, round(draw.lognormvariate(math.log(m), _SIGMA))) for m in (_PROMPT, _OUTPUT))
        found.append(trace.Request(arrival, min(prompt, 32768), min(output, 4096)))
    return found


def steps(path: Path | None) -> tuple[list[trace.Step], str]:
    """The first STEPS steps of a trace (default SYNTHETIC), and its name. Raises trace.TraceError."""
    requests, name = (synthetic(), SYNTHETIC) if path is None else (trace.read(path), path.name)
    return list(itertools.islice(trace.simulate(requests, trace.Rule()), STEPS)), name


def measure(dsl: str, gpu: Gpu, path: Path | None) -> dict[str, Any]:
    """Measure one DSL's row in a child. Raises trace.TraceError before starting it."""
    chosen, name = steps(path)
    task = {"kernel": f"{dsl}/auto", "gpu": dataclasses.asdict(gpu), "steps": [step.lens for step in chosen]}
    row: dict[str, Any] = {"cost": "trace", "kernel": task["kernel"], "target": gpu.arch, "trace": name}
    row |= {"steps": len(chosen), "evidence": str(Evidence.COMPILED)}
    with tempfile.TemporaryDirectory() as folder:
        answer = fresh_process(children.COST_TRACE, task, folder, LIMIT_S)
    return row | {"status": "failed" if "reason" in answer else "ok"} | answer


def follow(kernel_id: str, gpu: Gpu, lens: list[list[list[int]]]) -> Iterator[tuple[str, int, dict[str, float]]]:
    """For each step: (the choice as text, how much new code it needed, wall and CPU seconds of compiling it)."""
    import torch

    from common.cases.batch import make_batch
    from common.spec import Features
    from common.spec.kernel import Capacity
    from compare.competitors import registry
    from compare.static import jit
    from compare.static.crosscompile import claim
    from compare.static.helion_target import helion_as

    claim(gpu.arch)
    kernel, target, known = registry.load(kernel_id), jit.gpu_target(gpu.arch), set()
    for pairs in lens:
        batch = make_batch([tuple(pair) for pair in pairs], AttentionShape(), fill=False)
        config, _ = registry.default_config(kernel_id, kernel, batch.shape, batch.stats, gpu)
        workspace, out = kernel.workspace(batch.shape, Capacity.of(batch), config), torch.empty_like(batch.query)
        watch = Watch()
        with helion_as(gpu), jit.recorded() as launches:
            kernel.launch(batch, Features(), out, config, workspace)
        bound = [jit.bind(launch, target) for launch in launches]
        new = {one.key: one for one in bound if one.key not in known}
        for one in new.values():
            jit.compile_for(one, target)
        known |= set(new)
        yield f"{config.kernel} {config.config}", len(new), watch.lap("compile") if new else {}


def main() -> None:
    """The child process of one DSL: reads a task from stdin and prints the answer."""
    task = json.loads(sys.stdin.read())
    choices, first_at, seconds = set(), [], Counter()
    for number, (choice, new, took) in enumerate(follow(task["kernel"], Gpu(**task["gpu"]), task["steps"])):
        choices.add(choice)
        seconds.update(took)
        first_at += [number] * new
    answer = {"specialisations": len(first_at), "choices": len(choices), "first_at": first_at}
    answer |= {"waits": len(set(first_at)), "last_at": max(first_at, default=None)}
    print(json.dumps(answer | {name: round(value, 2) for name, value in seconds.items()}), flush=True)


if __name__ == "__main__":
    main()
