"""Captured graphs: one for every batch against one per batch, what a grid for more sequences costs, and the host.

    python -m compare.graphs [--gpu auto] [--out DIR] [--kernels triton,helion] [--workload q1s2k,...] [--seconds 0.3]

    one for all      static_grid captured once at the capacity, refilled and replayed for every row; auto captured anew
                     for each, on tensors of just that batch
    powers of two    auto captured for 1, 2, 4 ... sequences of unknown length, replayed with fewer: the time of the
                     programs in excess, and the memory of the graphs
    partial          attention launched between the graphs of the other operations, against all in one graph
    host             time to enqueue a call: launch, public call, plan, graph

Every output is judged before it is timed. Writes graphs.jsonl, report.md and figures; exit codes as compare.run's: 0;
1 a wrong output; 2 usage; 3 no such GPU, for nothing can be captured without one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from common.batch import make_batch
from common.gpus import Gpu, UnknownGpu
from common.kernel import Capacity
from common.reference import Expected, reference
from common.spec import Features, PagedBatch
from common.tolerance import check
from compare import cli, graph_report, hosttime, registry, rundir, suites, timing
from compare.cost import cost
from compare.records import write_manifest
from compare.stage import Size, Stage
from compare.suites import UnknownWorkload
from compare.timing import Runner, Track
from compare.workloads import LLAMA_3_8B, Workload, parse_lens

OK, WRONG, USAGE, NO_GPU = 0, 1, 2, 3
SETS, PAGES = 16, 65536  # launches of a graph, each on pages of its own; 4 GiB of K and V at Llama-3-8B's shape
MOST_SEQS = 256
FEW = (1, 3, 17, 100)  # sequences replayed in graphs for more
DECODE_KEYS = 2048
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
        before = tools.free_bytes()
        self.runner = tools.runner(launch, len(batches))
        self.graph_bytes = before - tools.free_bytes()

    def wrong(self, batch: PagedBatch, expected: Expected) -> str:
        """Why the output of `batch`, the last page set, is wrong; empty where it is right."""
        self.stage.out.fill_(float("nan"))
        self.runner.run()
        verdict = check(self.stage.out[: batch.num_tokens], None, batch, PLAIN, self.kernel.CONTRACT, expected)
        return "" if verdict.ok else verdict.reason


def timed(tools: Tools, competitors: Sequence[Captured]) -> list[dict[str, Any]]:
    """Judge each on what the stage holds, then time all of them in turns. A wrong one has no time."""
    batch = competitors[0].stage.exact()[-1]
    expected = reference(batch, PLAIN)
    reasons = [competitor.wrong(batch, expected) for competitor in competitors]
    tracks = [
        Track(str(number), competitor.runner, [])
        for number, (competitor, reason) in enumerate(zip(competitors, reasons, strict=True))
        if not reason
    ]
    timing.interleave(tracks, tools.seconds)
    us = {int(track.name): timing.quantile(track.samples, 0.5) for track in tracks}
    return [
        {"kernel": competitor.kernel_id, "us": us.get(number), "wrong": reason}
        for number, (competitor, reason) in enumerate(zip(competitors, reasons, strict=True))
    ]


def one_for_all(tools: Tools, stage: Stage, dsls: Sequence[str], rows: Sequence[Workload]) -> Iterator[dict[str, Any]]:
    """static_grid captured once, at the capacity, against auto captured for every row."""
    stage.fill([(1, 1)])
    static = [Captured(tools, stage, f"{dsl}/static_grid", stage.full()) for dsl in dsls]
    for captured in static:
        yield memory("one for all", captured.kernel_id, [captured])
    for row in rows:
        stage.fill(row.lens)
        auto = [Captured(tools, stage, f"{dsl}/auto", stage.exact()) for dsl in dsls]
        about = {"experiment": "one for all", "row": row.label, "kind": row.kind, "flops": cost(row).flops}
        for result in timed(tools, [*static, *auto]):
            yield about | result
        for captured in static:
            captured.kernel.check(captured.workspace)


def powers_of_two(tools: Tools, stage: Stage, dsls: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Decodes of few sequences in graphs captured for 1, 2, 4 ... of them, in their own, and in static_grid's."""
    most = min(MOST_SEQS, stage.size.seqs)
    sizes = [2**k for k in range(most.bit_length()) if 2**k <= most]
    keys = min(DECODE_KEYS, stage.size.keys)
    for dsl in dsls:
        stage.fill([(1, 1)])
        graphs = {size: Captured(tools, stage, f"{dsl}/auto", stage.decodes(size)) for size in sizes}
        static = Captured(tools, stage, f"{dsl}/static_grid", stage.full())
        yield memory("powers of two", f"{dsl}/auto", list(graphs.values()))
        yield memory("powers of two", f"{dsl}/static_grid", [static])
        for seqs in (few for few in FEW if few <= most):
            stage.fill([(1, keys)] * seqs)
            own = Captured(tools, stage, f"{dsl}/auto", stage.exact())
            fitting = {size: graph for size, graph in graphs.items() if size >= seqs}
            names = ["its own", *(str(size) for size in fitting), "one for all"]
            for name, result in zip(names, timed(tools, [own, *fitting.values(), static]), strict=True):
                yield {"experiment": "powers of two", "sequences": seqs, "keys": keys, "graph": name} | result


def memory(experiment: str, kernel_id: str, graphs: Sequence[Captured]) -> dict[str, Any]:
    """Bytes of graphs, which hold a launch per page set, and of their scratch."""
    sizes = {"graph_bytes": sum(g.graph_bytes for g in graphs), "scratch_bytes": sum(g.scratch_bytes for g in graphs)}
    return {"experiment": f"{experiment}: memory", "kernel": kernel_id, "graphs": len(graphs)} | sizes


def partial(tools: Tools, stage: Stage, dsls: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A layer's time where attention is in the graph, and where it is launched between graphs of what is around it."""
    keys, seqs = min(DECODE_KEYS, stage.size.keys), min(8, stage.size.seqs)
    stage.fill([(1, keys)] * seqs)
    hidden = torch.zeros(seqs, 4096, device=tools.device)
    layers = stage.sets  # of the model that this stands for

    def around(number: int) -> None:
        hidden.add_(1.0)

    for dsl in dsls:
        for name in ("auto", "static_grid"):
            batches = stage.full() if name == "static_grid" else stage.exact()
            attention = Captured(tools, stage, f"{dsl}/{name}", batches)

            def layer(number: int, launch: Callable[[int], None] = attention.launch) -> None:
                around(number)
                launch(number)

            full, pieces = tools.runner(layer, layers), tools.runner(around, 1)

            def piecewise(pieces: Runner = pieces, launch: Callable[[int], None] = attention.launch) -> None:
                for number in range(layers):
                    pieces.run()
                    launch(number)

            for kind, work in (("full", full.run), ("partial", piecewise)):
                samples = [tools.measure(work) / layers for _ in range(11)]
                about = {"experiment": "partial", "kernel": attention.kernel_id, "graph": kind}
                yield about | {"sequences": seqs, "us": timing.quantile(samples[1:], 0.5), "wrong": ""}


def host(tools: Tools, dsls: Sequence[str], names: str = "q1s2k,32q1s2k") -> Iterator[dict[str, Any]]:
    """Host time of a call of auto by each way, as compare.hosttime measures it."""
    for dsl in dsls:
        for name in names.split(","):
            batch = make_batch(parse_lens(name), LLAMA_3_8B, device=tools.device)
            columns = hosttime.columns(dsl, batch, 200)
            yield {"experiment": "host", "row": name} | columns | {"kernel": f"{dsl}/{columns['kernel']}"}


def chosen_rows(patterns: str | None, size: Size) -> list[Workload]:
    """Rows of peers and serving at Llama-3-8B's shape that capacity and pool hold. Raises UnknownWorkload."""
    rows = {row.label: row for row in (*suites.peers(), *suites.serving())}
    rows = {label: row for label, row in rows.items() if row.shape == LLAMA_3_8B and not row.asked}
    pages = {label: sum(-(-keys // row.shape.block_size) for _, keys in row.lens) for label, row in rows.items()}
    fitting = tuple(row for label, row in rows.items() if size.holds(row.lens) and pages[label] <= PAGES)
    return list(suites.pick(fitting, patterns))


def _parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(prog="python -m compare.graphs", description=__doc__.splitlines()[0])
    new.add_argument("--gpu", help="assert that this GPU is here (default: the one that is)")
    new.add_argument("--out", help="the run's own folder (default results/<time>_<gpu>_<commit>)")
    new.add_argument("--kernels", default="triton,helion", help="DSLs (default: both)")
    new.add_argument("--workload", help="labels or globs of rows of peers and serving (default: all that fit)")
    new.add_argument("--seconds", type=float, default=0.3, help="of timing in turns, a row (default 0.3)")
    return new


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    arguments, console = _parser().parse_args(argv), Console(soft_wrap=True)
    dsls = tuple(filter(None, arguments.kernels.split(",")))
    try:
        if not set(dsls) <= {"triton", "helion"}:
            raise registry.UnknownKernel(arguments.kernels)
        rows = chosen_rows(arguments.workload, Size())
        now = cli.situation(arguments.gpu, None)
        if not now.measure:
            console.print(f"{arguments.gpu or 'a GPU'} is not here: nothing can be captured", markup=False)
            return NO_GPU
        folder = rundir.make(arguments.out, now.name)
    except (UnknownGpu, UnknownWorkload, registry.UnknownKernel, rundir.CannotWrite) as error:
        console.print(str(error), markup=False)
        return USAGE
    facts = {"headline": f"Captured and timed on {now.target.title}", "gpu": {"name": now.target.name, "present": True}}
    write_manifest(folder / "manifest.json", rundir.manifest(argv, folder.name, facts | {"module": "compare.graphs"}))
    tools = cuda_tools(now.target, torch.device(now.device), arguments.seconds)
    stage = Stage(Size(), LLAMA_3_8B, SETS, PAGES, tools.device)
    return record(console, folder, everything(tools, stage, dsls, rows))


def everything(tools: Tools, stage: Stage, dsls: Sequence[str], rows: Sequence[Workload]) -> Iterator[dict[str, Any]]:
    yield from one_for_all(tools, stage, dsls, rows)
    yield from powers_of_two(tools, stage, dsls)
    yield from partial(tools, stage, dsls)
    yield from host(tools, dsls)


def record(console: Console, folder: Path, results: Iterator[dict[str, Any]]) -> int:
    """Write every result as it comes, then the report. WRONG where an output was."""
    rows = []
    with open(folder / "graphs.jsonl", "w", encoding="utf-8") as file:
        for row in results:
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            console.print(
                "  ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items() if v)
            )
    console.print(f"report: {graph_report.write(folder, rows)}", markup=False)
    return WRONG if any(row.get("wrong") for row in rows) else OK


if __name__ == "__main__":
    sys.exit(main())
