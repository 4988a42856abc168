"""Captured graphs: one for every batch against one per batch, what a grid for more sequences costs, and the host.

    python -m compare.studies.graphs.graphs [--gpu auto] [--out DIR] [--kernels triton,helion] [--workload q1s2k,...]
    [--seconds 0.3]

    one for all      static_grid captured once at the capacity, refilled and replayed for every row; auto captured anew
                     for each, on tensors of just that batch
    powers of two    auto captured for 1, 2, 4 ... sequences of unknown length, replayed with fewer: the time of the
                     programs in excess, and the memory of the graphs
    partial          attention launched between the graphs of the other operations, against all in one graph
    host             time to enqueue a call: launch, public call, plan, graph

Every output is judged before it is timed. Writes graphs.jsonl line by line, then report.md and figures, which
`python -m compare.studies.graphs.report DIR` makes of the lines that a run left which was cut short. Exit codes: 0; 1 a
wrong output, or one that could not be had; 2 usage; 3 no such GPU, for nothing can be captured without one; 5 neither
DSL is here; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from common.cases.batch import make_batch
from common.gpus import UnknownGpu
from common.oracle.reference import Expected, reference
from compare.bench import timing
from compare.bench.subject import device_is_sick, failure
from compare.bench.timing import Runner, Track
from compare.competitors import registry
from compare.exits import INTERRUPTED, NO_GPU, NOTHING, OK, USAGE, WRONG
from compare.plan.situation import situation
from compare.record import folder as run_folder
from compare.record.records import write_manifest
from compare.studies import host as host_study
from compare.studies.graphs import report
from compare.studies.graphs.captured import PLAIN, Captured, Tools, cuda_tools
from compare.studies.graphs.stage import Size, Stage
from compare.workloads import LLAMA_3_8B, Workload, parse_lens, suites
from compare.workloads.cost import cost
from compare.workloads.suites import UnknownWorkload

SETS, PAGES = 16, 65536  # launches of a graph, each on pages of its own; 4 GiB of K and V at Llama-3-8B's shape
MOST_SEQS = 256
FEW = (1, 3, 17, 100)  # sequences replayed in graphs for more
DECODE_KEYS = 2048
Row = dict[str, Any]


def attempt(tools: Tools, about: Row, results: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """`results`; where they end in an error, a line that says so, and what comes next goes on.

    Raises the error again where the device did not survive it: then nothing else would be true.
    """
    try:
        yield from results()
    except Exception as error:
        yield about | {"us": None, "wrong": failure(error)["reason"]}
        if device_is_sick(tools.device):
            raise


def timed(tools: Tools, competitors: Sequence[Captured], expected: Expected) -> list[Row]:
    """Judge each on what the stage holds, then time all of them in turns. A wrong one has no time."""
    batch = competitors[0].stage.exact()[-1]
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


def one_for_all(tools: Tools, stage: Stage, dsls: Sequence[str], rows: Sequence[Workload]) -> Iterator[Row]:
    """static_grid captured once, at the capacity, against auto captured for every row."""
    name = "one for all"
    static: dict[str, Captured] = {}

    def capture(dsl: str) -> Iterator[Row]:
        static[dsl] = Captured(tools, stage, f"{dsl}/static_grid", stage.full())
        yield memory(name, [static[dsl]])

    def serve(one: Captured, dsl: str, expected: Expected) -> Iterator[Row]:
        auto = Captured(tools, stage, f"{dsl}/auto", stage.exact())
        yield from timed(tools, [one, auto], expected)
        one.kernel.check(one.workspace)

    stage.fill([(1, 1)])
    for dsl in dsls:
        yield from attempt(tools, {"experiment": name, "kernel": f"{dsl}/static_grid"}, partial(capture, dsl))
    for row in rows:
        stage.fill(row.lens)
        expected = reference(stage.exact()[-1], PLAIN)
        about = {"experiment": name, "row": row.label, "kind": row.kind, "flops": cost(row).flops}
        for dsl, one in static.items():
            results = partial(serve, one, dsl, expected)
            for result in attempt(tools, {"kernel": f"{dsl}/auto"}, results):
                yield about | result


def powers_of_two(tools: Tools, stage: Stage, dsl: str) -> Iterator[Row]:
    """Decodes of few sequences in graphs captured for 1, 2, 4 ... of them, in their own, and in static_grid's."""
    most = min(MOST_SEQS, stage.size.seqs)
    sizes = [2**k for k in range(most.bit_length()) if 2**k <= most]
    keys = min(DECODE_KEYS, stage.size.keys)
    stage.fill([(1, 1)])
    graphs = {size: Captured(tools, stage, f"{dsl}/auto", stage.decodes(size)) for size in sizes}
    static = Captured(tools, stage, f"{dsl}/static_grid", stage.full())
    yield memory("powers of two", list(graphs.values()))
    yield memory("powers of two", [static])
    for seqs in (few for few in FEW if few <= most):
        stage.fill([(1, keys)] * seqs)
        own, expected = Captured(tools, stage, f"{dsl}/auto", stage.exact()), reference(stage.exact()[-1], PLAIN)
        fitting = {size: graph for size, graph in graphs.items() if size >= seqs}
        names = ["its own", *(str(size) for size in fitting), "one for all"]
        for name, result in zip(names, timed(tools, [own, *fitting.values(), static], expected), strict=True):
            yield {"experiment": "powers of two", "sequences": seqs, "keys": keys, "graph": name} | result


def memory(experiment: str, graphs: Sequence[Captured]) -> Row:
    """Bytes of one kernel's graphs, which hold a launch per page set, and of their scratch."""
    sizes = {"graph_bytes": sum(g.graph_bytes for g in graphs), "scratch_bytes": sum(g.scratch_bytes for g in graphs)}
    return {"experiment": f"{experiment}: memory", "kernel": graphs[0].kernel_id, "graphs": len(graphs)} | sizes


def layers(tools: Tools, stage: Stage, dsl: str) -> Iterator[Row]:
    """A layer's time where attention is in the graph, and where it is launched between graphs of what is around it."""
    keys, seqs = min(DECODE_KEYS, stage.size.keys), min(8, stage.size.seqs)
    stage.fill([(1, keys)] * seqs)
    hidden = torch.zeros(seqs, 4096, device=tools.device)
    many = stage.sets  # of the model that this stands for

    def around(number: int) -> None:
        hidden.add_(1.0)

    for name in ("auto", "static_grid"):
        batches = stage.full() if name == "static_grid" else stage.exact()
        attention = Captured(tools, stage, f"{dsl}/{name}", batches)

        def layer(number: int, launch: Callable[[int], None] = attention.launch) -> None:
            around(number)
            launch(number)

        full, pieces = tools.runner(layer, many), tools.runner(around, 1)

        def piecewise(pieces: Runner = pieces, launch: Callable[[int], None] = attention.launch) -> None:
            for number in range(many):
                pieces.run()
                launch(number)

        for kind, work in (("full", full.run), ("partial", piecewise)):
            samples = [tools.measure(work) / many for _ in range(11)]
            about = {"experiment": "partial", "kernel": attention.kernel_id, "graph": kind}
            yield about | {"sequences": seqs, "us": timing.quantile(samples[1:], 0.5), "wrong": ""}


def host(tools: Tools, dsl: str, names: str = "q1s2k,32q1s2k") -> Iterator[Row]:
    """Host time of a call of auto by each way, as compare.studies.host measures it."""
    for name in names.split(","):
        batch = make_batch(parse_lens(name), LLAMA_3_8B, device=tools.device)
        columns = host_study.columns(dsl, batch, 200)
        yield {"experiment": "host", "row": name} | columns | {"kernel": f"{dsl}/{columns['kernel']}"}


def chosen_rows(patterns: str | None, size: Size) -> list[Workload]:
    """Rows of peers and serving at Llama-3-8B's shape that capacity and pool hold. Raises UnknownWorkload."""
    rows = {row.label: row for row in (*suites.peers(), *suites.serving())}
    rows = {label: row for label, row in rows.items() if row.shape == LLAMA_3_8B and not row.asked}
    pages = {label: sum(-(-keys // row.shape.block_size) for _, keys in row.lens) for label, row in rows.items()}
    fitting = tuple(row for label, row in rows.items() if size.holds(row.lens) and pages[label] <= PAGES)
    return list(suites.pick(fitting, patterns))


def _parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(prog="python -m compare.studies.graphs.graphs", description=__doc__.splitlines()[0])
    new.add_argument("--gpu", help="assert that this GPU is here (default: the one that is)")
    new.add_argument("--out", help="the run's own folder (default results/<time>_<gpu>_<commit>)")
    new.add_argument("--kernels", default="triton,helion", help="DSLs (default: both)")
    new.add_argument("--workload", help="labels or globs of rows of peers and serving (default: all that fit)")
    new.add_argument("--seconds", type=float, default=0.3, help="of timing in turns, a row (default 0.3)")
    return new


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    arguments, console = _parser().parse_args(argv), Console(soft_wrap=True)
    asked = tuple(filter(None, arguments.kernels.split(",")))
    try:
        if not asked or not set(asked) <= {"triton", "helion"}:
            raise registry.UnknownKernel(arguments.kernels)
        rows = chosen_rows(arguments.workload, Size())
        now = situation(arguments.gpu, None)
        if not now.measure:
            console.print(f"{arguments.gpu or 'a GPU'} is not here: nothing can be captured", markup=False)
            return NO_GPU
        dsls = tuple(here(console, asked))
        if not dsls:
            return NOTHING
        folder = run_folder.make(arguments.out, now.name)
    except (UnknownGpu, UnknownWorkload, registry.UnknownKernel, run_folder.CannotWrite) as error:
        console.print(str(error), markup=False)
        return USAGE
    command = shlex.join(["python", "-m", "compare.studies.graphs.graphs", *argv])
    facts = {"headline": f"Captured and timed on {now.target.title}", "gpu": {"name": now.target.name, "present": True}}
    write_manifest(folder / "manifest.json", run_folder.manifest(argv, folder.name, facts | {"command": command}))
    tools = cuda_tools(now.target, torch.device(now.device), arguments.seconds)
    stage = Stage(Size(), LLAMA_3_8B, SETS, PAGES, tools.device)
    return record(console, folder, everything(tools, stage, dsls, rows))


def here(console: Console, dsls: Sequence[str]) -> Iterator[str]:
    """The DSLs that can be imported; of each other one line says why not."""
    for dsl in dsls:
        try:
            registry.load(f"{dsl}/auto")
            yield dsl
        except registry.Unavailable as reason:
            console.print(f"{dsl}: unavailable: {reason}", markup=False)


def everything(tools: Tools, stage: Stage, dsls: Sequence[str], rows: Sequence[Workload]) -> Iterator[Row]:
    yield from one_for_all(tools, stage, dsls, rows)
    for name, experiment in (("powers of two", powers_of_two), ("partial", layers)):
        for dsl in dsls:
            yield from attempt(tools, {"experiment": name, "kernel": dsl}, partial(experiment, tools, stage, dsl))
    for dsl in dsls:
        yield from attempt(tools, {"experiment": "host", "kernel": dsl}, partial(host, tools, dsl))


def record(console: Console, folder: Path, results: Iterator[Row]) -> int:
    """Write every result as it comes, and in any event the report. WRONG where an output was."""
    rows, interrupted = [], False
    with open(folder / report.LINES, "w", encoding="utf-8") as file:
        try:
            for row in results:
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
                told = (f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items() if v)
                console.print("  ".join(told), markup=False)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            console.print(f"report: {report.write(folder, rows)}", markup=False)
    return INTERRUPTED if interrupted else WRONG if any(row.get("wrong") for row in rows) else OK


if __name__ == "__main__":
    sys.exit(main())
