"""A kernel captured on every page set of a stage, and what capturing and timing it takes of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from common.gpus import Gpu
from common.oracle.reference import Expected
from common.oracle.tolerance import check
from common.spec import Features, PagedBatch
from common.spec.kernel import Capacity
from compare.bench import timing
from compare.bench.timing import Runner
from compare.competitors import registry
from compare.studies.graphs.stage import Stage

PLAIN = Features()


@dataclass(frozen=True)
class Tools:
    """What needs a GPU, so that everything else can be tested without one.

    runner: the launches of the page sets 0 .. n - 1, captured. measure: microseconds of some work on the device.
    free_bytes: of device memory.
    """

    gpu: Gpu | None
    device: torch.device
    runner: Callable[[Callable[[int], None], int], Runner]
    measure: Callable[[Callable[[], None]], float]
    free_bytes: Callable[[], int]
    seconds: float = 0.3


def cuda_tools(gpu: Gpu, device: torch.device, seconds: float) -> Tools:
    clock = timing.make_clock(device)

    def runner(launch: Callable[[int], None], sets: int) -> Runner:
        launch(0)  # compiles
        return timing.GraphRunner(launch, [tuple(range(sets))], clock)

    def free_bytes() -> int:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]

    return Tools(gpu, device, runner, clock.measure, free_bytes, seconds)


class Captured:
    """One kernel captured on every page set: its config and scratch are those of the batches that it was given."""

    def __init__(self, tools: Tools, stage: Stage, kernel_id: str, batches: Sequence[PagedBatch]) -> None:
        self.kernel_id, self.kernel, self.stage = kernel_id, registry.load(kernel_id), stage
        first = batches[0]
        self.config, _ = registry.default_config(kernel_id, self.kernel, first.shape, first.stats, tools.gpu)
        before = tools.free_bytes()
        self.workspace = self.kernel.workspace(first.shape, Capacity.of(first), self.config)
        self.scratch_bytes = before - tools.free_bytes()
        out = stage.out[: first.num_tokens]

        def launch(number: int) -> None:
            self.kernel.launch(batches[number], PLAIN, out, self.config, self.workspace)

        self.launch = launch
        launch(0)  # so that the modules which it loads are not counted as the graph's
        before = tools.free_bytes()
        self.runner = tools.runner(launch, len(batches))
        self.runner.run()  # the first replay puts the graph on the device
        self.graph_bytes = before - tools.free_bytes()

    def wrong(self, batch: PagedBatch, expected: Expected) -> str:
        """Why the output of `batch`, the last page set, is wrong; empty where it is right."""
        self.stage.out.fill_(float("nan"))
        self.runner.run()
        verdict = check(self.stage.out[: batch.num_tokens], None, batch, PLAIN, self.kernel.CONTRACT, expected)
        return "" if verdict.ok else verdict.reason
