"""Captured graphs: one for every batch against one per batch, and what a grid for more sequences costs.

    python -m compare study graphs [--gpu h200] [--out DIR] [--dsl triton] [--workload q1s2k,...]
    python -m compare study graphs --report DIR      the report again, or that of a run which was cut short

    one for all      static_grid captured once at the capacity, refilled and replayed for every row; auto captured anew
                     for each, on tensors of just that batch
    powers of two    auto captured for 1, 2, 4 ... sequences of unknown length, replayed with fewer: the time of the
                     programs in excess, and the memory of the graphs
    partial          attention launched between the graphs of the other operations, against all in one graph

Every output is judged before it is timed. Writes graphs.jsonl line by line, then report.md and figures. Exit codes: 0;
1 a wrong output, or one that could not be had; 2 usage; 3 no such GPU, for nothing can be captured without one; 5
neither DSL is here; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from common.gpus import Gpu, UnknownGpu
from common.oracle.reference import Expected, reference
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features, PagedBatch, SpecError, metadata
from common.spec.kernel import Capacity
from common.spec.metadata import BatchStats, Lens, cdiv
from compare.bench import timing
from compare.bench.subject import device_is_sick, failure
from compare.bench.timing import Runner, Track
from compare.competitors import registry
from compare.exits import INTERRUPTED, NO_GPU, NOTHING, OK, USAGE, WRONG
from compare.plan.situation import situation
from compare.record import folder as run_folder
from compare.record.records import write_manifest
from compare.studies.graphs import report
from compare.workloads import LLAMA_3_8B, Workload, suites
from compare.workloads.cost import cost
from compare.workloads.suites import UnknownWorkload

HELP = "one captured graph for every batch, or one per batch"

# Fixed tensors that any batch is copied into, as an engine captures its graphs on. A graph holds a launch on each of
# several page sets, so that no replay finds its pages in a cache.


@dataclass(frozen=True)
class Size:
    """The capacity of the tensors: sequences, keys of each, query tokens of all."""

    seqs: int = 256
    keys: int = 131072
    tokens: int = 8192 + 256  # prompts, and a decode of every sequence

    def holds(self, lens: Lens) -> bool:
        stats = BatchStats.of(lens)
        return stats.num_seqs <= self.seqs and stats.max_seq_len <= self.keys and stats.num_tokens <= self.tokens


class Stage:
    """query, pool, tables, query_start_loc, seq_lens and out at fixed addresses; `fill` puts another batch into
    them."""

    def __init__(self, size: Size, shape: AttentionShape, sets: int, pages: int, device: torch.device) -> None:
        """pages: of the pool, at least those of one batch. Page sets overlap only where the pool is too small for all
        of them."""
        self.size, self.shape, self.sets, self.device = size, shape, sets, device
        generator = torch.Generator(device).manual_seed(0)

        def normal(*sizes: int) -> torch.Tensor:
            return torch.randn(*sizes, generator=generator, dtype=shape.dtype, device=device)

        self.query = normal(size.tokens, shape.num_query_heads, shape.head_size)
        pool = (pages, shape.block_size, shape.num_kv_heads, shape.head_size)
        self.key_cache, self.value_cache = normal(*pool), normal(*pool)
        ints = {"dtype": torch.int32, "device": device}
        self.tables = torch.zeros(sets, size.seqs, cdiv(size.keys, shape.block_size), **ints)
        self.query_start_loc, self.seq_lens = torch.zeros(size.seqs + 1, **ints), torch.zeros(size.seqs, **ints)
        self.out = torch.empty_like(self.query)
        self._order = torch.randperm(pages, generator=torch.Generator().manual_seed(0)).to(device)
        self.lens: Lens = ()

    def fill(self, lens: Lens) -> None:
        """Fill the tensors with this batch; further sequences are empty. Raises SpecError if it does not fit."""
        page = self.shape.block_size
        need = torch.tensor([cdiv(seq_len, page) for _, seq_len in lens], dtype=torch.int64)
        total, pages = int(need.sum()), self._order.numel()
        if not self.size.holds(lens) or total > pages:
            raise SpecError("lens", f"{BatchStats.of(lens)}, {total} pages", f"at most {self.size}, {pages} pages")
        empty = [(0, 0)] * (self.size.seqs - len(lens))
        self.query_start_loc.copy_(metadata.query_start_loc([*lens, *empty]))
        self.seq_lens.copy_(metadata.seq_lens([*lens, *empty]))
        seq = torch.repeat_interleave(torch.arange(len(lens)), need).to(self.device)
        first = torch.repeat_interleave(need.cumsum(0) - need, need)
        column = (torch.arange(total) - first).to(self.device)
        for number in range(self.sets):
            at = (number * total + torch.arange(total, device=self.device)) % pages
            self.tables[number, seq, column] = self._order[at].int()
        self.lens = tuple(lens)

    def batch(self, number: int, seqs: int, tokens: int, stats: BatchStats) -> PagedBatch:
        """Page set `number` as a batch of the first `seqs` sequences and `tokens` tokens, with these hints."""
        return PagedBatch(
            query=self.query[:tokens],
            key_cache=self.key_cache,
            value_cache=self.value_cache,
            block_table=self.tables[number, :seqs],
            query_start_loc=self.query_start_loc[: seqs + 1],
            seq_lens=self.seq_lens[:seqs],
            softmax_scale=self.shape.head_size**-0.5,
            stats=stats,
        )

    def full(self) -> list[PagedBatch]:
        """Every page set as a batch of the full capacity, with hints that say the capacity."""
        size = self.size
        stats = BatchStats(size.seqs, size.tokens, 0, size.tokens, size.keys, size.seqs * size.keys)
        return [self.batch(number, size.seqs, size.tokens, stats) for number in range(self.sets)]

    def exact(self) -> list[PagedBatch]:
        """Every page set as exactly the batch that it holds now."""
        stats = BatchStats.of(self.lens)
        return [self.batch(number, stats.num_seqs, stats.num_tokens, stats) for number in range(self.sets)]

    def decodes(self, seqs: int) -> list[PagedBatch]:
        """Every set as a decode of `seqs` sequences of up to the capacity's keys."""
        stats = BatchStats(seqs, seqs, seqs, 1, self.size.keys, seqs * self.size.keys)
        return [self.batch(number, seqs, seqs, stats) for number in range(self.sets)]


# A kernel captured on every page set of a stage, and the GPU operations behind it.


PLAIN = Features()


@dataclass(frozen=True)
class Tools:
    """The operations that need a GPU; tests replace them.

    runner: the launches of the page sets 0 .. n - 1, captured. measure: microseconds of some work on the device.
    free_bytes: of device memory.
    """

    gpu: Gpu | None
    device: torch.device
    runner: Callable[[Callable[[int], None], int], Runner]
    measure: Callable[[Callable[[], None]], float]
    free_bytes: Callable[[], int]
    seconds: float = 0.3  # of timing in turns, a row


def cuda_tools(gpu: Gpu, device: torch.device) -> Tools:
    clock = timing.make_clock(device)

    def runner(launch: Callable[[int], None], sets: int) -> Runner:
        launch(0)  # compiles
        return timing.GraphRunner(launch, [tuple(range(sets))], clock)

    def free_bytes() -> int:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]

    return Tools(gpu, device, runner, clock.measure, free_bytes)


class Captured:
    """One kernel captured on every page set, with the config and scratch for its batches."""

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
        launch(0)  # load modules before measuring the graph's memory
        before = tools.free_bytes()
        self.runner = tools.runner(launch, len(batches))
        self.runner.run()  # the first replay puts the graph on the device
        self.graph_bytes = before - tools.free_bytes()

    def wrong(self, batch: PagedBatch, expected: Expected) -> str:
        """Why the output of the last page set is wrong; empty if it is right."""
        self.stage.out.fill_(float("nan"))
        self.runner.run()
        verdict = check(self.stage.out[: batch.num_tokens], None, batch, PLAIN, self.kernel.CONTRACT, expected)
        return "" if verdict.ok else verdict.reason


SETS, PAGES = 16, 65536  # launches of a graph, each on its own pages: 4 GiB of K and V
MOST_SEQS = 256
FEW = (1, 3, 17, 100)  # sequences replayed in graphs for more
DECODE_KEYS = 2048
Row = dict[str, Any]


def attempt(tools: Tools, about: Row, results: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """Yield `results`; an error becomes a row, and the study goes on. Raises it again if the device is lost."""
    try:
        yield from results()
    except Exception as error:
        yield about | {"us": None, "wrong": failure(error)["reason"]}
        if device_is_sick(tools.device):
            raise


def timed(tools: Tools, competitors: Sequence[Captured], expected: Expected) -> list[Row]:
    """Judge every competitor on the current batch, then time the right ones in turns."""
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
    """Compare static_grid, captured once at the capacity, with auto, captured for every row."""
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
    """Time decodes of few sequences in graphs for 1, 2, 4, ... sequences, in their own, and in static_grid's."""
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
    """The row with the bytes of one kernel's graphs and scratch."""
    sizes = {"graph_bytes": sum(g.graph_bytes for g in graphs), "scratch_bytes": sum(g.scratch_bytes for g in graphs)}
    return {"experiment": f"{experiment}: memory", "kernel": graphs[0].kernel_id, "graphs": len(graphs)} | sizes


def layers(tools: Tools, stage: Stage, dsl: str) -> Iterator[Row]:
    """Time a layer with attention in its graph, and with attention launched between two graphs."""
    keys, seqs = min(DECODE_KEYS, stage.size.keys), min(8, stage.size.seqs)
    stage.fill([(1, keys)] * seqs)
    hidden = torch.zeros(seqs, 4096, device=tools.device)
    many = stage.sets  # layers of the modelled network

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


def chosen_rows(patterns: str | None, size: Size) -> list[Workload]:
    """Rows of peers and serving at Llama-3-8B's shape that capacity and pool hold. Raises UnknownWorkload."""
    rows = {row.label: row for row in (*suites.peers(), *suites.serving())}
    rows = {label: row for label, row in rows.items() if row.shape == LLAMA_3_8B and not row.asked}
    pages = {label: sum(-(-keys // row.shape.block_size) for _, keys in row.lens) for label, row in rows.items()}
    fitting = tuple(row for label, row in rows.items() if size.holds(row.lens) and pages[label] <= PAGES)
    return list(suites.pick(fitting, patterns))


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--gpu", help="assert that this GPU is here (default: the one that is)")
    new.add_argument("--out", metavar="DIR", help="the run's own folder (default results/<time>_<gpu>_<commit>)")
    new.add_argument("--dsl", choices=registry.DSLS, help="one of them (default both)")
    new.add_argument("--workload", help="labels or globs of rows of peers and serving (default: all that fit)")
    new.add_argument("--report", type=Path, metavar="DIR", help="measure nothing: write the report of the run in DIR")


def main(arguments: argparse.Namespace) -> int:
    if arguments.report is not None:
        return report.again(arguments.report)
    console, argv = Console(soft_wrap=True), arguments.words
    asked = (arguments.dsl,) if arguments.dsl else registry.DSLS
    try:
        rows = chosen_rows(arguments.workload, Size())
        now = situation(arguments.gpu, None)
        if not now.measure:
            console.print(f"{arguments.gpu or 'a GPU'} is not here: nothing can be captured", markup=False)
            return NO_GPU
        dsls = tuple(here(console, asked))
        if not dsls:
            return NOTHING
        folder = run_folder.make(arguments.out, now.name)
    except (UnknownGpu, UnknownWorkload, run_folder.CannotWrite) as error:
        console.print(str(error), markup=False)
        return USAGE
    command = shlex.join(["python", "-m", "compare", "study", "graphs", *argv])
    facts = {"headline": f"Captured and timed on {now.target.title}", "gpu": {"name": now.target.name, "present": True}}
    write_manifest(folder / "manifest.json", run_folder.manifest(argv, folder.name, facts | {"command": command}))
    tools = cuda_tools(now.target, torch.device(now.device))
    stage = Stage(Size(), LLAMA_3_8B, SETS, PAGES, tools.device)
    return record(console, folder, everything(tools, stage, dsls, rows))


def here(console: Console, dsls: Sequence[str]) -> Iterator[str]:
    """Yield the DSLs that can be imported; print why another cannot."""
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


def record(console: Console, folder: Path, results: Iterator[Row]) -> int:
    """Write results as they come, and the report at the end or on Ctrl-C. Returns WRONG if an output was wrong."""
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
