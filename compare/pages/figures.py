"""The table of results, docs/results/figures.toml, and every figure that README.md and docs/ quote from it.

    python -m compare pages figures [--write]

docs/results/figures.toml is made of the committed runs that templates/figures.toml names; no other place has a speed. A
page takes a figure by its name (compare.pages.quoted). Without --write it says which file is out of date (exit 1). So a
newer run is taken over by one line of the template and this command.
"""

import argparse
import itertools
import json
import statistics
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compare.analysis import means, merge, verdict
from compare.analysis.runs import RunData, read
from compare.analysis.standing import KINDS
from compare.analysis.verdict import Outcome, Verdict
from compare.exits import OK, refusing
from compare.pages import add_write, overview, quoted, settle
from compare.pages.choosing import DSLS, Committed, of_dsl, source_pairs
from compare.pages.quoted import HEADLINE, LIMITS, Figure
from compare.record.contract import UNIT
from compare.record.folder import ROOT, NotARun
from compare.stats import geomean
from compare.workloads.suites import GBPS, TFLOPS

HELP = "docs/results/figures.toml, and the figures that README.md and docs/ quote of it"
HEAD = """\
# Written by `python -m compare pages figures --write` from the runs that compare/pages/templates/figures.toml names.
# value: a speed is the other's time over the kernel's. rows: in the mean, of those asked. command: prints it again.
"""


def build(asked: dict[str, Any], root: Path = ROOT) -> dict[str, Figure]:
    """Every figure by its name. asked: templates/figures.toml. Raises NotARun for a broken run."""
    results, found = root / asked["results"], {}
    for name, group in asked["group"].items():
        found |= dict(_speeds(name, group, asked["results"], root))
    costs = _costs(Committed(results, ()), asked["gpu"])
    served = _served(results / asked["engine"]["run"]) if "engine" in asked else ()
    return found | dict(_pairs(results, asked)) | dict(costs) | dict(served) | dict(_sources())


def _speeds(name: str, group: dict[str, Any], results: str, root: Path) -> Iterator[tuple[str, Figure]]:
    """group.class.kernel, relative to FlashAttention 3, and group.class.kernel-over-other; class `all` has every
    row."""
    where = [f"{results}/{run}" for run in group["runs"]]
    runs, kernels = [read(root / path) for path in where], group["kernels"]
    pairs = [(short, kernels[short], UNIT) for short in kernels]
    pairs += [(f"{one}-over-{other}", kernels[one], kernels[other]) for one, other in group.get("beside", ())]
    day = max(run.manifest.get("started", "")[:10] for run in runs)
    for short, kernel, unit in pairs:
        cells = means.standings(runs, unit, kernel)
        command = f"python -m compare report {' '.join(where)} --print means --unit {unit} --kernels {kernel}"
        for kind in (*KINDS, "all"):
            rows = {row: one for (of, _, row), one in cells.items() if kind in (of, "all")}
            if figure := _mean(rows, command, day):
                yield f"{name}.{kind}.{short}", figure
    if name == HEADLINE:
        yield from _absolute(name, kernels | {"fa3": UNIT}, runs, f"python -m compare report {' '.join(where)}")


def _mean(rows: dict[str, Verdict | None], command: str, day: str) -> Figure | None:
    speed = {row: one.speed.ratio for row, one in rows.items() if one}
    if not speed:
        return None
    worst = min(speed, key=speed.__getitem__)
    return Figure(geomean(list(speed.values())), command, len(speed), len(rows), speed[worst], worst, day)


def _absolute(name: str, kernels: dict[str, str], runs: list[RunData], command: str) -> Iterator[tuple[str, Figure]]:
    """group.class.kernel.us, .rate and .share: geometric means over the rows that FlashAttention 3 has too.

    rate: GB/s or TFLOP/s, as LIMITS says. share: of the larger of GBPS and TFLOPS; its worst row is the least share.
    """
    cells = {(r.workload.label, r.kernel): r for run in runs for r in run.ok}
    for kind, short in itertools.product(KINDS, kernels):
        mine = [r for (row, kernel), r in cells.items() if kernel == kernels[short] and r.workload.kind == kind]
        mine = [r for r in mine if (r.workload.label, UNIT) in cells and r.derived]
        if not mine:
            continue
        share = {r.workload.label: max(r.derived.gbps / GBPS, r.derived.tflops / TFLOPS) for r in mine}
        worst = min(share, key=share.__getitem__)
        of = {"us": [r.timing.median_us for r in mine], "rate": [getattr(r.derived, LIMITS[kind][0]) for r in mine]}
        for what, values in of.items():
            yield f"{name}.{kind}.{short}.{what}", Figure(geomean(values), command, len(mine), len(mine))
        mean = geomean(list(share.values()))
        yield f"{name}.{kind}.{short}.share", Figure(mean, command, len(mine), len(mine), share[worst], worst)
    for what, most in (("gbps", GBPS), ("tflops", TFLOPS)):
        yield f"ceiling.{what}", Figure(most, "compare/workloads/suites.py")


def _pairs(results: Path, asked: dict[str, Any]) -> Iterator[tuple[str, Figure]]:
    """How many pairs of a rung and a row Helion wins, loses or shares, over the runs of `pairs`."""
    records = [r for run in asked["pairs"]["runs"] for r in merge.as_one(read(results / run)).raw]
    found = verdict.judge(records, verdict.twin_pairs(records))
    command = "python -m compare pages choosing"
    for outcome in Outcome:
        count = sum(one.outcome is outcome for one in found)
        yield f"pairs.{outcome}", Figure(count, command, len(found), len(found))


def _costs(had: Committed, gpu: str) -> Iterator[tuple[str, Figure]]:
    """What compiling, the host and tuning cost in each DSL: medians over its kernels or batches, sums of a search."""
    host, kept = f"python -m compare study host --gpu {gpu}", "docs/choosing-a-dsl.md#costs-beside-speed"
    cold, warm = ([r for r in had.cost("compile") if r["state"] == state] for state in ("cold", "warm"))
    first = ("import_cpu_s", "first_cpu_s")
    columns = (  # name, rows, the columns that are added, how rows become one figure, the command
        ("import", cold, first[:1], statistics.median, kept),
        ("first", cold, first[1:], statistics.median, kept),
        ("start", cold, first, statistics.median, kept),
        ("restart", warm, first, statistics.median, kept),
        ("timed", had.cost("tuning"), ("timed",), sum, kept),
        ("call", had.hosts, ("call",), statistics.median, host),
        ("graph", had.hosts, ("graph",), statistics.median, host),
    )
    for name, rows, names, one_of, command in columns:
        for dsl in DSLS:
            if mine := [sum(row[column] for column in names) for row in of_dsl(rows, dsl)]:
                yield f"cost.{name}.{dsl}", Figure(one_of(mine), command, len(mine), len(mine))


def _served(folder: Path) -> Iterator[tuple[str, Figure]]:
    """serve.KERNEL.GRAPHS: tokens a second of a trace in vLLM, of its last pass; .over: of FlashAttention 3's."""
    rows = map(json.loads, (folder / "engine.jsonl").read_text(encoding="utf-8").splitlines())
    last = {(r["engine"], r["graphs"]): r["tokens_per_s"] for r in rows if r["part"] == "serving" and not r["wrong"]}
    short = {"fa3": "fa3", "triton/native.auto": "gluon", "triton/auto": "triton", "helion/auto": "helion"}
    for (engine, graphs), speed in last.items():
        name = f"serve.{short.get(engine, engine)}.{graphs}"
        yield name, Figure(speed, "python -m compare study engine")
        if ("fa3", "full") in last:
            yield f"{name}.over", Figure(speed / last["fa3", "full"], "python -m compare study engine")


def _sources() -> Iterator[tuple[str, Figure]]:
    """Sizes of the kernels with equal capability in both DSLs, and how many constructs Helion refused."""
    pairs = [row for row in source_pairs() if row["ratio_tokens"]]
    for row in pairs:
        for dsl in DSLS:
            for unit in ("tokens", "lines"):
                yield f"size.{row['rung']}.{unit}.{dsl}", Figure(row[f"{dsl}_{unit}"], "python -m compare study sizes")
    for name, one_of in (("least", min), ("most", max)) if pairs else ():
        ratio = one_of(row["ratio_tokens"] for row in pairs)
        yield f"size.{name}", Figure(ratio, "python -m compare study sizes", len(pairs), len(pairs))
    weights = [row["weight"] for row in quoted.refused()]
    for weight in ("all", *quoted.WEIGHTS):
        count = sum(weight in ("all", one) for one in weights)
        yield (
            f"refused.{weight}",
            Figure(count, "docs/choosing-a-dsl.md#what-helion-refused", len(weights), len(weights)),
        )


def written(figures: dict[str, Figure]) -> str:
    """The table as TOML, one line for each figure."""
    lines = [HEAD]
    for name, one in figures.items():
        parts = [f"value = {one.value:.6g}", f"rows = {one.rows}", f"asked = {one.asked}"]
        if one.worst is not None:
            parts += [f"worst = {one.worst:.6g}", f'worst_row = "{one.worst_row}"']
        if one.day:
            parts.append(f'day = "{one.day}"')
        lines.append(f'"{name}" = {{ {", ".join(parts)}, command = "{one.command}" }}')
    return "\n".join(lines) + "\n"


options = add_write


@refusing(NotARun, quoted.NoFigure)
def main(asked: argparse.Namespace) -> int:
    """0; 1 where the table, a page or a picture is not what the runs say; 2 for a run that is none."""
    text = written(build(tomllib.loads(quoted.ASKED.read_text(encoding="utf-8"))))
    figures = quoted.table(text)  # rounded, as pages find them
    new = {quoted.TABLE: text} | overview.drawn(figures)
    new |= {page: quoted.filled(page.read_text(encoding="utf-8"), figures) for page in quoted.pages()}
    stale = {
        path: text for path, text in new.items() if not (path.is_file() and path.read_text(encoding="utf-8") == text)
    }
    if not stale:
        print(f"{len(new)} files are fresh")
    return max((settle(path, text, "figures", write=asked.write) for path, text in stale.items()), default=OK)
