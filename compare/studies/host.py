"""Host time of a call: how long the CPU takes to enqueue one, on a GPU that never lets it wait.

    python -m compare.studies.host [--kernels triton,helion] [--workload q1s2k,32q1s2k] [--calls 200] [--out DIR]

Columns, microseconds a call, the median of seven rounds: `call` is `paged_attention` with `out` given, host validation
and scratch from the allocator; `plan` the same through a plan; `launch` the chosen kernel's own `launch`, which checks
and dispatches anew; `graph` the replay of one captured call. `kept`: whether calls are repeated from what was kept.
With --out the rows are kept in DIR/host.jsonl. Exit code 4 where `call` exceeds the goal, 3 without the GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from common import gpus
from common.cases.batch import make_batch
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity
from compare.competitors import registry
from compare.exits import GATE, NO_GPU, OK, USAGE
from compare.record import folder as run_folder
from compare.workloads import parse_lens

ROUNDS = 7
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
    """One row of the table."""
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
    hints = {"max_query_len": stats.max_query_len, "max_seq_len": stats.max_seq_len, "num_decodes": stats.num_decodes}
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
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    kept, known = auto.paged_attention.kept
    return times | {"graph": enqueue_us(graph.replay, calls), "kept": f"{kept}/{known}", "kernel": choice.kernel}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m compare.studies.host", description=__doc__)
    parser.add_argument("--kernels", default="triton,helion")
    parser.add_argument("--workload", default="q1s2k,32q1s2k")
    parser.add_argument("--calls", type=int, default=200, help="a round; the queue of a GPU holds 1024 launches")
    parser.add_argument("--gpu", default="auto", help="assert that this GPU is here (default: the one that is)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of host.jsonl")
    arguments = parser.parse_args(argv)
    here = gpus.detect()
    try:
        meant = here if arguments.gpu == "auto" else gpus.resolve(arguments.gpu)
    except gpus.UnknownGpu as error:
        print(error)
        return USAGE
    if here is None or meant != here:
        print(f"{arguments.gpu} is not here: host time is that of launches which happen")
        return NO_GPU
    missed = False
    for dsl in arguments.kernels.split(","):
        for name in arguments.workload.split(","):
            batch = make_batch(parse_lens(name), AttentionShape(), device="cuda")
            row = columns(dsl, batch, arguments.calls)
            missed |= row["call"] > GOALS[dsl]
            figures = " ".join(f"{k} {v:6.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            print(f"{dsl:7} {name:12} {figures}  (goal {GOALS[dsl]:.0f})", flush=True)
            if arguments.out is not None:
                _keep(
                    arguments.out, {"dsl": dsl, "workload": name, "gpu": here.name, "commit": run_folder.commit()} | row
                )
    return GATE if missed else OK


def _keep(folder: Path, row: dict[str, float | str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "host.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    sys.exit(main())
