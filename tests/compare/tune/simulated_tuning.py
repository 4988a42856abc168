"""Stand-ins for the tuner's two kinds of process on a CPU: simulated_compile.py answers by rule, `time` is the real
lane over kernels that return the reference and a clock that a formula drives.

The formula: a batch of short queries wants tile_size 128 and block_m 16, a prompt block_m 64; every doubling away from
that costs half again. num_stages 4 spills, tile_size 16 gives wrong results, eight warps end the process at a decode of
21 keys.
"""

import math
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from unittest import mock

import simulated_compile
import torch

from common.gpus import resolve
from common.oracle.reference import reference
from common.spec import AttentionShape
from compare.__main__ import Command
from compare.bench import timing
from compare.competitors import registry
from compare.tune import helion, tune, worker
from compare.tune.arm import Machine
from compare.tune.space import flatten
from compare.workloads import Workload

SHAPE = AttentionShape(4, 2, 64, 16, torch.bfloat16)
FAST_US = 50.0


def rows() -> tuple[Workload, ...]:
    """Small enough for a CPU: four decodes and four prompts."""
    decodes = [Workload(f"decode-{n}", ((1, 20 + n),) * n, SHAPE) for n in range(1, 5)]
    prompts = [Workload(f"prompt-{n}", ((n, n),), SHAPE) for n in range(20, 60, 10)]
    return tuple(row for pair in zip(decodes, prompts, strict=True) for row in pair)


def model_us(config, row: Workload) -> float:
    flat = flatten(config)
    wanted = {"block_m": 64 if row.stats.max_query_len > 16 else 16, "tile_size": 128}
    away = sum(abs(math.log2(flat[name] / value)) for name, value in wanted.items())
    return FAST_US * 1.5**away + flat["num_warps"] / 10


class Kernel:
    """The real kernel's configs, with the reference (computed once a row) in place of its launch."""

    known: ClassVar = {}

    def __init__(self, real) -> None:
        self.SUPPORTS, self.CONTRACT, self.DEFAULT, self.space = real.SUPPORTS, real.CONTRACT, real.DEFAULT, real.space

    def workspace(self, shape, capacity, config):
        return None

    def launch(self, batch, features, out, config, workspace, *, lse=None):
        if (config.num_warps, batch.stats.max_seq_len) == (8, 21):
            os._exit(11)
        found = self.known.setdefault(batch.stats, None) or reference(batch, features)
        self.known[batch.stats] = found
        out[: found.num_tokens] = found.out[: found.num_tokens].to(out.dtype)
        if config.tile_size == 16:
            out[0, 0, 0] += 1.0


class Graph:
    timer, note = "graph", ""

    def __init__(self, launch, parts, clock) -> None:
        self.launch, self.parts = launch, parts
        subject = launch.__self__
        self.us = model_us(subject.config, subject.arena.workload)

    def run(self) -> None:
        for part in self.parts:
            for number in part:
                self.launch(number)

    def sample(self, part: int) -> float:
        time.sleep(float(os.environ.get("SAMPLE_S", "0")))
        return self.us


def first_launch_us(launch, sets: int) -> float:
    launch(0)
    return model_us(launch.__self__.config, launch.__self__.arena.workload)


def autotune_by_formula() -> None:
    """Helion's autotuner finds a config after a moment; the kernel that runs with it is the stand-in."""
    helion.launches = lambda kernel, launch: [("kernel", ("arguments",))]
    helion.autotune = lambda bindable, args, seconds, seed: SimpleNamespace(config={"asked_s": seconds, "seed": seed})
    helion.Tuned = worker.Subject
    time_by_formula(helion.Autotuner)


def time_by_formula(kind: type[worker.Bench] = worker.Bench) -> None:
    real = registry.load
    registry.load = lambda kernel_id: Kernel(real(kernel_id))
    worker.page_sets = lambda *_: 1
    worker.FINAL_S = 0.01
    worker.device_is_sick = lambda device: False
    timing.make_clock = lambda device: SimpleNamespace()
    timing.GraphRunner, timing.first_launch_us = Graph, first_launch_us
    worker.main(kind)


def machine(cores: int = 4, devices: tuple[str, ...] = ("",)) -> Machine:
    answers = (sys.executable, simulated_compile.__file__)
    lanes = ((sys.executable, __file__, mode) for mode in ("time", "autotune"))
    return Machine(resolve("h200"), devices, cores, "cpu", answers, *lanes)


def run(out, *extra: str, minutes=2.0, kernels="triton/q_block", where: Machine | None = None, most=8) -> int:
    """A whole run over the first rows of this file; its exit code."""
    words = ["--kernels", kernels, "--minutes", str(minutes), "--out", str(out), "--no-install", "--candidates", "11"]
    asked = Command("tune", "compare.tune.tune", ()).parser().parse_args([*words, *extra])
    asked.words = words
    path = {"PYTHONPATH": str(Path(__file__).parent)}
    with mock.patch.object(tune, "pick_rows", lambda count: rows()[:most]), mock.patch.dict(os.environ, path):
        return tune.tune(asked, where or machine())


if __name__ == "__main__":
    modes = {"time": time_by_formula, "autotune": autotune_by_formula, "run": lambda: run(*sys.argv[2:])}
    modes[sys.argv[1]]()
