"""What code for an AMD GPU that is not here does, counted while the ISA model executes it: before and after its levers.

    python -m compare study counts --gpu mi300 --out docs/results/mi300/counts.md

The model executes small batches of decodes, drafts, a prompt and a mix under both DSLs' `auto`, and under the Triton
kernels of others that are installed, or whose files are on PYTHONPATH (compare/competitors/baselines/vllm_files.py,
aiter_files.py). Our kernels take the config of a batch of serving's size. `plain`: without the levers of CDNA;
`settled`: as common/serving/cdna.py sets them on this GPU. The checker judges each call. These are no times. A page
takes about four minutes of one core; with --parts FILE it goes on where it was interrupted.
Exit codes: 0; 1 where an output of ours is wrong; 2 usage.
"""

import argparse
import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from common import gpus
from common.gpus import KIB, Gpu
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.serving.cdna import AHEAD
from common.serving.choice import Choice
from common.serving.pieces import changed
from common.spec import AttentionShape
from common.spec.cdna import Cdna
from common.spec.kernel import Capacity
from compare.analysis.tables import of_page
from compare.competitors import registry
from compare.exits import OK, USAGE, WRONG, refusing, say
from compare.plan import fingerprint
from compare.record.store import Findings
from compare.static.codeobject import CodeFacts, read
from compare.static.counts.counting import Counts, counting
from compare.static.counts.l2 import L2
from compare.static.crosscompile import executing
from compare.static.isa.errors import NotExecutable
from compare.studies import template
from compare.workloads import Workload, parse_lens
from compare.workloads.cost import cost
from compare.workloads.numbers import new_file
from compare.workloads.workload import empty_output

HELP = "what code for an absent AMD GPU does: loads, waits, LDS, dies, before and after its levers"
SHAPE = AttentionShape(16, 4, 128, 16, torch.bfloat16)
# by name: the lengths that the model executes, and those that the config is chosen for
ROWS = {
    "decode": (((1, 2048), (1, 700), (1, 90)), "64q1s4k"),
    "drafts": (((4, 2048), (3, 777)), "32q4s4k"),
    "prompt": (((96, 96),), "q4k"),
    "mixed": (((1, 1024), (1, 90), (48, 112)), "32q1s4k_2q1ks2k"),
}
WAVES = (0, 1, 2, 3, 4)  # of `waves_per_eu`
SIMDS = 4  # of a unit
RIGHT = "right"
KERNELS = ("triton/auto", "helion/auto", "triton/unpaged", "helion/unpaged")
PEERS = ("baseline/vllm_triton", "baseline/aiter_triton")
HEADS = ((16, 1), (32, 8), (40, 10), (20, 20), (32, 32))  # of the table on dies
SMALL = L2(size=32 * KIB, slots=2)  # scaled like 4 MiB beside 8k keys of 128 lanes


def plain(kernel_id: str, kernel: Any, row: Workload, gpu: Gpu) -> Any:
    """The config that a user gets, but without the levers of CDNA and with at most two stages."""
    config = _with(settled(kernel_id, kernel, row, gpu), **dataclasses.asdict(Cdna()))
    return changed(config, lambda _: ("num_stages",), lambda stages: min(stages, AHEAD - 1))


def _with(config: Any, **levers: Any) -> Any:
    """`config` and its parts with these levers of CDNA."""
    if not dataclasses.is_dataclass(config):
        return config
    parts = {field.name: _with(getattr(config, field.name), **levers) for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **{name: levers.get(name, part) for name, part in parts.items()})


def settled(kernel_id: str, kernel: Any, row: Workload, gpu: Gpu) -> Any:
    """The config that a user of the GPU gets."""
    return registry.default_config(kernel_id, kernel, row.shape, row.stats, gpu)[0]


def counted(kernel: Any, row: Workload, config: Any, gpu: Gpu) -> tuple[list[Counts], str]:
    """The counts of a call's launches, and why its output is wrong; empty where it is right."""
    batch = row.batches(1, "cpu")[0]
    features, out = row.features(batch), empty_output(batch, row.features(batch))
    workspace = kernel.workspace(row.shape, Capacity.of(batch), config)
    with counting(gpu) as found:
        kernel.launch(batch, features, out, config, workspace)
    verdict = check(out, None, batch, features, kernel.CONTRACT, reference(batch, features))
    return found, "" if verdict.ok else verdict.reason


# Clocks of a SIMD's matrix unit for an MFMA: FLOPs over 256 a clock (bf16; AMD matrix instruction calculator: 2048 a
# clock and compute unit, of which a wave has a quarter of four SIMDs) on gfx942, twice that on gfx950.
MATRIX_FLOPS = {"gfx90a": 1024, "gfx942": 2048, "gfx950": 4096}


def line(found: Sequence[Counts], row: Workload, gpu: Gpu) -> list[Any]:
    """The cells of one call: sums over its launches, and the registers of the launch with most matrix work."""
    heavy = max(found, key=lambda one: float(one.work.sum()))
    loads, read = (sum((getattr(one, name) for one in found), start=type(heavy.loads)()) for name in ("loads", "read"))
    lines, waits = sum(one.lines for one in found), sum(one.waits for one in found)
    clocks, fewest = sum(one.lds_clocks for one in found), sum(one.lds_fewest for one in found)
    work = sum(float(one.work.sum()) for one in found)
    shapes = sum((one.matrix for one in found), start=type(heavy.matrix)())
    held = heavy.occupancy
    busy = max(int((heavy.work > 0).sum()), 1)
    issued = [(bool(one.work.any()), sum(one.instructions.values())) for one in found]
    return [
        *(f"{sum(count for products, count in issued if products is which):,}" for which in (True, False)),
        f"{sum(one.kinds['vector'] for one in found):,}",
        ", ".join(f"{count} of {name}" for name, count in sorted(shapes.items())),
        f"{work / cost(row).flops:.1f}",
        f"{read[16] / max(sum(read.values()), 1):.0%}",
        f"{lines / max(sum(loads.values()), 1):.1f}",
        f"{sum(one.ahead for one in found) / max(waits, 1):.1f}",
        *(f"{heavy.flights[bits]:.0f}" if bits in heavy.flights else "" for bits in ("32", "128")),
        f"{clocks / max(fewest, 1):.2f}",
        f"{heavy.lds_clocks / busy:,.0f}, {float(heavy.work.sum()) / MATRIX_FLOPS[gpu.arch] / busy:,.0f}",
        sum(one.hinted for one in found),
        heavy.registers,
        f"{held.programs}" if held else "",
        max(one.spills for one in found),
    ]


COLUMNS = (
    ("row", False), ("kernel", False), ("config", False), ("output", False), ("wave instructions", True),
    ("of launches without MFMA", True), ("vector", True), ("MFMA", False), ("matrix work", True), ("16 B", True),
    ("lines", True), ("ahead", True), ("page id", True), ("K and V", True), ("LDS", True),
    ("clocks of a program: LDS, matrix", True), ("hinted loads", True), ("registers", True), ("programs a unit", True),
    ("spills", True),
)  # fmt: skip


def calls(gpu: Gpu) -> Iterator[tuple[str, str, str, Any, Workload, Any]]:
    """(row, kernel id, config's name, kernel, workload, config) of each call, without peers that are not installed."""
    for name, (lens, served) in ROWS.items():
        row, large = Workload(name, lens, SHAPE), Workload(name, parse_lens(served), SHAPE)
        for kernel_id in KERNELS:
            if kernel_id.endswith("unpaged") and name in ("decode", "drafts"):
                continue
            kernel = registry.load(kernel_id)
            for how in (plain, settled):
                config = how(kernel_id, kernel, large, gpu)
                told = f"{config.kernel}, " if isinstance(config, Choice) else ""
                yield name, kernel_id, told + how.__name__, kernel, row, config
        for kernel_id, kernel in peers():
            yield name, kernel_id, "its own", kernel, row, kernel.DEFAULT


def peers() -> Iterator[tuple[str, Any]]:
    """The kernels of others that are here."""
    for kernel_id in PEERS:
        with contextlib.suppress(registry.Unavailable):
            yield kernel_id, registry.load(kernel_id)


def _blob(file: str) -> str:
    """A file's name in git, by which its release is found."""
    text = Path(file).read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()[:12]


class Parts:
    """Lines of the page by what they follow from: config, source and compiler. With a file, those of earlier calls
    count. Raises ValueError for a file of another study; Busy."""

    def __init__(self, gpu: Gpu, path: Path | None = None) -> None:
        import triton

        self._told = f"{gpu.name}, triton {triton.__version__}"
        self._kept = Findings(path, {"study": "counts"}) if path else None
        self._known = {one["of"]: one["cells"] for one in self._kept.found} if self._kept else {}

    def cells(self, title: str, kernel_id: str, config: Any, make: Callable[[], list[Any]]) -> list[Any]:
        """What `make` gives, or gave before."""
        of = f"{self._told}, {title}, {kernel_id} {fingerprint.source(kernel_id)}, {config}"
        if of not in self._known:
            self._known[of] = make()
            if self._kept:
                self._kept.add({"of": of, "cells": self._known[of]})
            print(f"{title} {kernel_id}", flush=True)
        return self._known[of]

    def close(self) -> None:
        if self._kept:
            self._kept.close()


def by_call(gpu: Gpu, parts: Parts) -> tuple[str, list[str]]:
    """The table of counts, and what was wrong."""
    body, wrong = [], []
    for name, kernel_id, told, kernel, row, config in calls(gpu):
        said, *cells = parts.cells(f"{name}, {told}", kernel_id, config, partial(_judged, kernel, row, config, gpu))
        wrong += [f"{kernel_id} on {name}: {said}"] if said != RIGHT and registry.is_own(kernel_id) else []
        body.append([name, f"`{kernel_id}`", told, said, *cells])
    return of_page(COLUMNS, body), wrong


def _judged(kernel: Any, row: Workload, config: Any, gpu: Gpu) -> list[Any]:
    try:
        found, reason = counted(kernel, row, config, gpu)
    except NotExecutable as error:
        return [f"not executable: {error}", *[""] * (len(COLUMNS) - 4)]
    return [reason.partition(",")[0].partition(": ")[2] or reason or RIGHT, *line(found, row, gpu)]


def by_waves(gpu: Gpu, parts: Parts) -> str:
    """Registers, occupancy and scratch of what `auto` takes, by `waves_per_eu`; compiled, not executed."""
    columns = [("row", False), ("kernel", False), ("the compiler's", True), *((f"{n}", True) for n in WAVES[1:])]
    body = []
    for name, kernel_id, told, kernel, row, config in calls(gpu):
        if kernel_id.endswith("/auto") and told.endswith("settled"):
            make = partial(_of_waves, kernel, row, config, gpu)
            body.append([name, f"`{kernel_id}`", *parts.cells(f"{name}, waves", kernel_id, config, make)])
    return of_page(columns, body)


def _of_waves(kernel: Any, row: Workload, config: Any, gpu: Gpu) -> list[str]:
    return [_waves(compiled(kernel, row, _with(config, waves_per_eu=waves), gpu)) for waves in WAVES]


def _waves(found: Sequence[CodeFacts]) -> str:
    heavy = max(found, key=_loop_work)
    scratch = max(one.scratch_bytes for one in found)
    held = f"{heavy.occupancy.waves / SIMDS:.3g}, {heavy.occupancy.limit}"
    return f"spills {scratch} B" if scratch else f"{heavy.registers}: {held}"


def _loop_work(one: CodeFacts) -> int:
    """Matrix FLOPs of a program's pass of a loop."""
    warps = one.occupancy.waves // one.occupancy.programs
    return max((loop.matrix_flops or 0 for loop in one.loops), default=0) * warps


def compiled(kernel: Any, row: Workload, config: Any, gpu: Gpu) -> list[CodeFacts]:
    """The facts of a call's launches, which are not executed."""
    batch, found = row.batches(1, "cpu")[0], []
    features = row.features(batch)
    workspace = kernel.workspace(row.shape, Capacity.of(batch), config)
    with executing(gpu, lambda launch: found.append(read(launch))):
        kernel.launch(batch, features, empty_output(batch, features), config, workspace)
    return found


def by_dies(gpu: Gpu, parts: Parts) -> str:
    """What eight L2s fetch for a prompt of 256 tokens, in the grid's order and with heads first."""
    columns = (
        ("heads", False), ("order", False), ("programs", True), ("fetched, 4 MiB", True), ("hits", True),
        ("fetched, 32 KiB", True), ("hits", True), ("most matrix work of a die / mean", True),
    )  # fmt: skip
    kernel, body = registry.load("triton/q_block"), []
    for heads in HEADS:
        row = Workload("dies", ((256, 256),), AttentionShape(*heads, 64, 16, torch.bfloat16))
        for xcds in (1, gpu.xcds):
            config = dataclasses.replace(kernel.DEFAULT, block_m=64, tile_size=64, num_stages=1, xcds=xcds)
            config = dataclasses.replace(config, matrix_instr=16)
            order = f"{heads[0]}:{heads[1]}", "heads first" if xcds > 1 else "the grid's"
            make = partial(_of_dies, kernel, row, config, gpu)
            body.append([*order, *parts.cells(", ".join(order), "triton/q_block", config, make)])
    return of_page(columns, body)


def _of_dies(kernel: Any, row: Workload, config: Any, gpu: Gpu) -> list[Any]:
    (one,), _ = counted(kernel, row, config, gpu)
    both = [cell for found in (one.l2(L2()), one.l2(SMALL)) for cell in (f"{found.times:.2f}", f"{found.hits:.0%}")]
    return [one.programs, *both, f"{one.unevenness(gpu.xcds):.2f}"]


def page(gpu: Gpu, parts: Parts) -> tuple[str, list[str]]:
    """The page, and what was wrong."""
    import triton

    table, wrong = by_call(gpu, parts)
    theirs = [f"`{kernel_id}` {_blob(kernel.FILE)}" for kernel_id, kernel in peers()]
    heads = f"{SHAPE.num_query_heads}:{SHAPE.num_kv_heads}"
    told = {"title": gpu.title, "name": gpu.name, "arch": gpu.arch, "triton": triton.__version__}
    short = {name: ", ".join(f"{q} of {keys}" for q, keys in lens) for name, (lens, _) in ROWS.items()}
    batches = of_page(
        (("row", False), ("query tokens of keys, executed", False), ("config for", False)),
        [[name, short[name], large] for name, (_, large) in ROWS.items()],
    )
    text = template("counts").format(
        **told,
        theirs=", ".join(theirs) or "none",
        heads=heads,
        lanes=SHAPE.head_size,
        batches=batches,
        calls=table,
        waves=by_waves(gpu, parts),
    )
    if gpu.xcds > 1:
        small = {"small": SMALL.size // KIB, "slots": SMALL.slots}
        text += template("dies").format(xcds=gpu.xcds, **small, dies=by_dies(gpu, parts))
    return text, wrong


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--gpu", default="mi300", help="mi300 (default), mi350, ...: one whose code the model executes")
    new.add_argument("--out", type=new_file, help="the page; else it is printed")
    new.add_argument(
        "--parts", type=Path, help="JSONL of what is counted: a later call goes on, and counts what changed"
    )


@refusing(ValueError)
def main(asked: argparse.Namespace) -> int:
    gpu = gpus.resolve(asked.gpu)
    if gpu.arch not in MATRIX_FLOPS:
        say(f"--gpu: found {gpu.name}, allowed one of {', '.join(MATRIX_FLOPS)}")
        return USAGE
    with contextlib.closing(Parts(gpu, asked.parts)) as parts:
        text, wrong = page(gpu, parts)
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(text, encoding="utf-8")
    else:
        print(text)
    for one in wrong:
        say(one)
    return WRONG if wrong else OK
