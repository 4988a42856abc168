"""How far to trust the estimate of an absent GPU: the same estimate for measured GPUs, beside their times.

    python -m compare study estimates --out docs/results/h200/estimates.md
    python -m compare study estimates --gpu mi300 --results results      of runs in results/mi300
    python -m compare study estimates --published --out docs/results/mi300/estimates.md

Every measured cell of docs/results/h200 and h100 has the facts of the code that was timed. The estimate
(compare/static/estimate.py) follows from these, the workload and constants with a source each; none is fitted.
--published: times of AMD GPUs that others published, beside the estimates that were committed before them.
Exit codes: 0; 2 where a folder of runs cannot be read.
"""

import argparse
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from common import gpus
from compare.analysis.cells import combined
from compare.analysis.tables import of_page
from compare.exits import OK, refusing
from compare.record.folder import ROOT
from compare.record.records import Record, latest
from compare.record.store import read_records
from compare.static.estimate import SPREAD, Estimate, LaunchEstimate, NoEstimate, estimate, machine_of
from compare.studies import template
from compare.workloads import Ask, Workload, parse_lens, parse_shape, suites
from compare.workloads.cost import cost
from compare.workloads.numbers import new_file

HELP = "the estimate of GPUs that were here beside their times: spread, rank, what limits"
RESULTS, GPUS = ROOT / "docs" / "results", "h200,h100"
FEWEST = 3  # points of a rank correlation
APART = 1.25  # estimates that say which of two kernels is faster
HALF = 0.5  # of a time; a resource that takes more is what the time was spent on
SEED = re.compile(r"--seed (\d+)")  # of the drawn suite, in the command of a run
# One row each under one id: what was timed, by whom; the estimate of our nearest kernel; the time.
PUBLISHED = ("published_workloads.jsonl", "mi300/predictions.jsonl", "published_timings.jsonl")
US = {"ms": 1e3, "us": 1.0}
COLUMNS = (
    ("", False), ("points", True), ("below the floor", True), ("measured / estimate 10%", True), ("50%", True),
    ("90%", True), ("pairs in order", True), (f"{APART} apart", True), ("rank in a row", True),
    ("rank over rows", True), ("limiter", True), ("first / best", True),
)  # fmt: skip


def rows(gpu: str, results: Path) -> dict[str, Workload]:
    """Every row of every suite, by its id; of the drawn one by the seeds that runs of a GPU name. Raises OSError."""
    manifests = (results / gpu).rglob("manifest.json")
    seeds = {int(seed) for one in manifests for seed in SEED.findall(one.read_text(encoding="utf-8"))}
    found = [row for name in suites.SUITES for row in suites.suite(name)]
    found += [row for seed in sorted(seeds) for row in suites.unseen(seed)]
    return {row.id: row for row in found}


def records(gpu: str, results: Path) -> Iterator[tuple[str, Record]]:
    """(run, record) of every measured cell of a GPU, in runs at any depth. Raises ValueError, OSError."""
    here = results / gpu
    for folder in sorted({file.parent for file in here.rglob("cells.jsonl*")}):
        for record in combined(latest(read_records(folder / "cells.jsonl"))):
            if record.timing is not None and record.gpu == gpu:
                yield folder.relative_to(here).as_posix(), record


def points(gpu: str, results: Path) -> list[dict[str, Any]]:
    """A point for each measured cell of a GPU whose kernel has a rule. Raises UnknownGpu, ValueError, OSError."""
    target = gpus.resolve(gpu)
    known, found = rows(target.name, results), []
    for run, record in records(target.name, results):
        row = known.get(record.workload.id)
        if row is None:
            continue
        try:
            said = estimate(row, record.kernel, record.config or {}, record.facts, target)
        except NoEstimate:
            continue
        time_us = record.timing.median_us
        found.append({
            "gpu": target.name, "run": run, "row": row.id, "kind": row.kind, "kernel": record.kernel,
            "features": "with features" if record.workload.features else "without features", "floor": said.floor_us,
            "estimate": said.us, "measured": time_us, "right": limiter(said) == spent(row, said, time_us, target),
        })  # fmt: skip
    return found


def published() -> pd.DataFrame:
    """A point for each time that others published for an AMD GPU; `kernel`: the source, and which of its kernels."""
    asked, said, timed = (_by_id(RESULTS / name) for name in PUBLISHED)
    found = []
    for name, one in asked.items():
        shape = parse_shape(one["shape"], one["block_size"], one["dtype"])
        row = Workload(one["workload"], parse_lens(one["workload"]), shape, Ask(sliding_window=one["window"]))
        launches = tuple(LaunchEstimate(**launch) for launch in said[name]["launches"])
        estimated = Estimate(said[name]["floor_us"], said[name]["us"], said[name]["limiter"], launches)
        time_us, gpu = timed[name]["value"] * US[timed[name]["unit"]], gpus.resolve(one["gpu"])
        source = re.sub(r"-\d*q.*", "", name)
        each = 2 * shape.num_kv_heads * shape.head_size * shape.dtype.itemsize  # bytes of a key
        shared = one["distinct_keys"] and one["distinct_keys"] * each
        found.append({
            "gpu": gpu.name, "run": source.partition("-")[0], "row": f"{row.id} {one['block_size']}",
            "kind": row.kind, "kernel": source, "features": f"same {one['match']}", "floor": estimated.floor_us,
            "estimate": estimated.us, "measured": time_us,
            "right": limiter(estimated) == spent(row, estimated, time_us, gpu, shared),
        })  # fmt: skip
    return pd.DataFrame(found)


def _by_id(path: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def measured(names: str = GPUS, results: Path = RESULTS) -> pd.DataFrame:
    """The points of GPUs, by names with commas. Raises UnknownGpu; ValueError, where there are none; OSError."""
    found = [point for gpu in names.split(",") for point in points(gpu, results)]
    if not found:
        raise ValueError(f"--results: found no measured cell with a rule in {results}, allowed folders GPU/RUN")
    return pd.DataFrame(found)


def limiter(said: Estimate) -> str:
    """What the estimate names, as far as a time can tell: issue and latency are both `other`."""
    return said.limiter if said.limiter in ("launch", "bytes", "matrix") else "other"


def spent(row: Workload, said: Estimate, time_us: float, gpu: gpus.Gpu, distinct: int | None = None) -> str:
    """What a measured time was spent on: the resource that takes HALF of it at its sustained peak, else `other`.
    distinct: bytes of K and V, where sequences share them."""
    machine, needed = machine_of(gpu)[0], cost(row)
    shares = {
        "launch": sum(one.launch_us for one in said.launches),
        "bytes": (distinct or needed.bytes) / (machine.sustained * gpu.bytes_per_us),
        "matrix": needed.flops / (gpu.flops_per_us),
    }
    name = max(shares, key=shares.__getitem__)
    return name if shares[name] >= HALF * time_us else "other"


def pairs(found: pd.DataFrame) -> pd.DataFrame:
    """Each pair of cells of one row and run: the ratio of the estimates, whether the times have the same order, and
    whether the two are one rung in both DSLs."""
    made = []
    for _, group in found.groupby(["gpu", "run", "row"]):
        cells = zip(group.estimate, group.measured, group.kernel, strict=True)
        for (a, x, one), (b, y, other) in itertools.combinations(cells, 2):
            if a != b and x != y:
                dsls = one != other and one.partition("/")[2] == other.partition("/")[2]
                made.append((max(a, b) / min(a, b), (a < b) == (x < y), dsls))
    return pd.DataFrame(made, columns=["apart", "agree", "dsls"])


def in_order(found: pd.DataFrame) -> list[str]:
    """The share of pairs in the measured order: of all, and of those whose estimates are APART."""
    each = (found, found[found.apart >= APART])
    return [f"{one.agree.mean():.0%} ({len(one)})" if len(one) else "" for one in each]


def rank(found: pd.DataFrame, by: list[str]) -> float:
    """The mean of Spearman's correlations of the groups that have at least FEWEST points."""
    groups = [one for _, one in found.groupby(by) if len(one) >= FEWEST and one.estimate.nunique() > 1]
    each = [one.estimate.rank().corr(one.measured.rank()) for one in groups]
    return float(pd.Series(each, dtype=float).mean())


def first(found: pd.DataFrame) -> float:
    """The median over rows of the time of the lowest estimate over the lowest time."""
    groups = [one for _, one in found.groupby(["gpu", "run", "row"]) if len(one) >= FEWEST]
    each = [one.measured[one.estimate.idxmin()] / one.measured.min() for one in groups]
    return float(pd.Series(each, dtype=float).median())


def line(name: str, found: pd.DataFrame) -> list[Any]:
    """A line of the page."""
    ratio = found.measured / found.estimate
    figures = [rank(found, ["gpu", "run", "row"]), rank(found, ["gpu", "run", "kernel"])]
    return [
        name, len(found), int((found.measured < found.floor).sum()),
        *(f"{ratio.quantile(q):.2f}" for q in (0.1, 0.5, 0.9)),
        *in_order(pairs(found)), *map(_figure, figures), f"{found.right.mean():.0%}", _figure(first(found)),
    ]  # fmt: skip


def _figure(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.2f}"


def page(found: pd.DataFrame) -> str:
    """The page of all points."""
    both = pairs(found)
    dsls = ["Triton beside Helion", *[""] * 5, *in_order(both[both.dsls]), *[""] * 4]
    body = [line("all", found), line("without `naive`", found[~found.kernel.str.endswith("/naive")]), dsls]
    body += by_group(found)
    named = ", ".join(gpus.resolve(name).title for name in found.gpu.unique())
    told = {"gpus": named, "points": f"{len(found):,}", "runs": len(found.groupby(["gpu", "run"]))}
    return template("estimates").format(**told, apart=APART, fewest=FEWEST, table=of_page(COLUMNS, body))


def by_group(found: pd.DataFrame) -> list[list[Any]]:
    """The lines of each GPU, kind of batch, set of features and kernel."""
    names = ("gpu", "kind", "features", "kernel")
    return [line(f"`{value}`", found[found[name] == value]) for name in names for value in found[name].unique()]


def page_of_published(found: pd.DataFrame) -> str:
    """The page of published times, with each source."""
    asked, sources = _by_id(RESULTS / PUBLISHED[0]), {}
    for source, one in zip(found.kernel, asked.values(), strict=True):
        sources[source] = f"- `{source}`: {one['theirs']}; {one['url']}. Uncertain: {one['uncertain']}."
    titles = ", ".join(gpus.resolve(name).title for name in found.gpu.unique())
    told = {"gpus": titles, "points": len(found), "sources": "\n".join(sources.values())}
    table = of_page(COLUMNS, [line("all", found), *by_group(found)])
    return template("published").format(**told, apart=APART, fewest=FEWEST, table=table)


def spread(found: pd.DataFrame, where: str) -> dict[str, Any]:
    """What reports print beside an estimate (compare/static/estimate_spread.json), from the page `where`."""
    ratio = found.measured / found.estimate
    p10, p90 = (round(float(ratio.quantile(q)), 2) for q in (0.1, 0.9))
    return {"p10": p10, "p90": p90, "points": len(found), "page": f"docs/results/{where}/estimates.md"}


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--gpu", default=GPUS, help=f"with commas; default {GPUS}")
    new.add_argument("--results", type=Path, default=RESULTS, help="where GPU/RUN lie; default docs/results")
    new.add_argument("--published", action="store_true", help="others' times of AMD GPUs, not those of runs")
    new.add_argument("--out", type=new_file, help="the page; else it is printed. The committed page keeps its spread")


@refusing(ValueError)
def main(asked: argparse.Namespace) -> int:
    found = published() if asked.published else measured(asked.gpu, asked.results)
    text = page_of_published(found) if asked.published else page(found)
    if asked.out is None:
        print(text)
        return OK
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(text, encoding="utf-8")
    vendor, where = ("amd", "mi300") if asked.published else ("nvidia", "h200")
    whole = asked.published or (asked.gpu, asked.results) == (GPUS, RESULTS)
    if whole and asked.out.resolve() == RESULTS / where / "estimates.md":
        kept = json.loads(SPREAD.read_text()) | {vendor: spread(found, where)}
        SPREAD.write_text(json.dumps(kept, indent=1) + "\n")
    return OK
