"""Host time of a call: how long the CPU takes to enqueue one, on a GPU that never lets it wait.

    python -m compare study host [--gpu h200] [--dsl triton] [--workload q1s2k,32q1s2k] [--out DIR]

A line a DSL and batch has microseconds a call, the median of seven rounds:

    call     `paged_attention` with `out` given: host validation, and scratch from the allocator
    plan     the same through a plan
    key      the part of `plan` that finds the kept launches: addresses, hints, a comparison of the tensors
    launch   the chosen kernel's own `launch`, which checks and dispatches anew
    graph    the replay of one captured call
    kept     how many calls are repeated from what was kept

--out writes the rows to DIR/host.jsonl as they come.
Exit codes: 0; 2 usage; 3 the GPU that is named is not here; 4 `call` exceeds the goal.
"""

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch

from common import gpus
from common.cases.batch import make_batch
from common.serving.arguments import HINTS
from common.serving.call import PagedAttention
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity
from compare.competitors import registry
from compare.exits import GATE, NO_GPU, OK, refusing
from compare.plan.situation import situation
from compare.record import folder as run_folder
from compare.workloads import parse_lens

HELP = "host time: how long the CPU takes to enqueue a call"
ROUNDS = 7
CALLS = 200  # a round; a GPU queues 1024 launches
GOALS = {"triton": 25.0, "helion": 37.0}  # us a call, eager


def enqueue_us(call: Callable[[], object], calls: int) -> float:
    """Median host time of `call`; the device is idle when a round begins, and its queue holds a round."""
    call()
    rounds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        rounds.append((time.perf_counter() - begin) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(rounds)


def columns(dsl: str, batch: PagedBatch, calls: int) -> dict[str, float | str]:
    """Measure one row: host microseconds of each way to make the call."""
    auto = registry.load(f"{dsl}/auto")
    tensors = (
        batch.query,
        batch.key_cache,
        batch.value_cache,
        batch.block_table,
        batch.query_start_loc,
        batch.seq_lens,
    )
    stats, out = batch.stats, torch.empty_like(batch.query)
    hints = {name: getattr(stats, name) for name in HINTS}
    plan = auto.plan_paged_attention(batch.shape, batch.num_tokens, batch.num_seqs, stats.max_seq_len, batch.device)
    choice = plan.choice_of(stats, Features().names())
    kernel = registry.load(f"{dsl}/{choice.kernel}")
    workspace = kernel.workspace(batch.shape, Capacity.of(batch), choice.config)

    def call() -> None:
        auto.paged_attention(*tensors, out=out, **hints)

    def planned() -> None:
        plan(*tensors, out=out, **hints)

    def launch() -> None:
        kernel.launch(batch, Features(), out, choice.config, workspace)

    times = {name: enqueue_us(f, calls) for name, f in (("call", call), ("plan", planned), ("launch", launch))}
    with launched_by_nobody():
        times["key"] = enqueue_us(planned, calls)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    kept, known = auto.paged_attention.kept
    return times | {"graph": enqueue_us(graph.replay, calls), "kept": f"{kept}/{known}", "kernel": choice.kernel}


def launched_by_nobody() -> contextlib.AbstractContextManager:
    """In this context a kept call finds its launches but does not make them."""
    return mock.patch.object(PagedAttention, "_again", lambda *given: True)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dsl", choices=registry.DSLS, help="one of them (default both)")
    parser.add_argument("--workload", default="q1s2k,32q1s2k", help="batches (default q1s2k,32q1s2k)")
    parser.add_argument("--gpu", default="auto", help="assert that this GPU is here (default: the one that is)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of host.jsonl")


@refusing(gpus.UnknownGpu)
def main(asked: argparse.Namespace) -> int:
    now = situation(asked.gpu, None)
    if not now.measure:
        print(f"{now.line}: host time is that of launches which happen")
        return NO_GPU
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "host.jsonl").unlink(missing_ok=True)
    missed = False
    for dsl in (asked.dsl,) if asked.dsl else registry.DSLS:
        for name in asked.workload.split(","):
            batch = make_batch(parse_lens(name), AttentionShape(), device="cuda")
            row = columns(dsl, batch, CALLS)
            missed |= row["call"] > GOALS[dsl]
            figures = " ".join(f"{k} {v:6.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            print(f"{dsl:7} {name:12} {figures}  (goal {GOALS[dsl]:.0f})", flush=True)
            if asked.out is not None:
                _keep(asked.out, {"dsl": dsl, "workload": name, "gpu": now.name, "commit": run_folder.commit()} | row)
    return GATE if missed else OK


def _keep(folder: Path, row: dict[str, float | str]) -> None:
    with (folder / "host.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
