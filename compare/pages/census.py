"""Everybody's kernels through one checker and one clock: docs/state-of-the-field.md, from committed rows.

    python -m compare census [--write] [--take REPORT.json ... --where 'NVIDIA H200' --date 2026-11-28]
    python -m compare pages census          the same

Of each kernel that is not ours: release, licence, language, lines, cases right of those asked, and its speed a class
over the strongest such kernel of each row; the same of ours. What was wrong has its cause, what was not run its reason
(compare/pages/templates/census.toml). --take adds reports of `diptych-check --report` to docs/results/conformance/full.
Exit codes: 0; 1 where the page is out of date and --write is not given; 2 for a run or a report that cannot be read.
"""

import argparse
import ast
import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.spec.refusals import expect_file
from compare import stats
from compare.analysis import runs, verdict
from compare.analysis.markup import table
from compare.analysis.standing import KINDS
from compare.competitors import registry
from compare.exits import refusing
from compare.pages import add_write, settle_all
from compare.record import plain
from compare.record.folder import ROOT
from compare.report import style

HELP = "docs/state-of-the-field.md: every peer's verdicts and speeds, from committed rows"
PAGE, PICTURE = ROOT / "docs" / "state-of-the-field.md", ROOT / "docs" / "pictures" / "census.svg"
RESULTS = ROOT / "docs" / "results"
ASKED = Path(__file__).parent / "templates" / "census.toml"
OURS = ("triton/auto", "triton/native.auto", "helion/auto")
# Samples of cases of the kit over kernels of others, one line each.
FULL = RESULTS / "conformance" / "full"
BASELINES = "compare.competitors.baselines"
REASON = 230
NOT_ASKED = ("declared", "too_large", "timeout", "not_judged", "unavailable")
WRONG = ("incorrect", "nondeterministic")


def taken(report: Path, where: str, date: str) -> dict[str, Any]:
    """A line of verdicts from a report of diptych-check. Raises OSError, or ValueError for another file."""
    expect_file(report, "--take", "a report of diptych-check --report")
    try:
        found = plain.loads(report.read_text(encoding="utf-8"))
        asked = found["cases"]
        cases = [(c["case"], "declared" if c["declared"] else c["status"], c["reason"][:REASON]) for c in asked]
        kernel, seed = found["kernel"].removeprefix(f"{BASELINES}."), found["seed"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"no field {error}" if isinstance(error, KeyError) else str(error)[:80] or type(error).__name__
        raise ValueError(f"--take: found {report} ({why}), allowed a report of diptych-check --report") from error
    wrong = [case for case in cases if case[1] not in ("ok", *NOT_ASKED)]
    counts = Counter(status for _, status, _ in cases)
    return {
        "where": where, "date": date, "kernel": kernel, "level": "first", "seed": seed, "counts": counts,
        "wrong": wrong,
    }  # fmt: skip


def verdicts() -> list[dict[str, Any]]:
    """Every committed line of verdicts on a kernel of others, by kernel."""
    lines = [json.loads(line) for path in sorted(FULL.glob("*.jsonl")) for line in path.read_text().splitlines()]
    for line in lines:
        line["kernel"] = line["kernel"].removeprefix(f"{BASELINES}.")
    known = {name.removeprefix("baseline/") for name in registry.KERNELS}
    return sorted((line for line in lines if line["kernel"].split()[0] in known), key=lambda line: line["kernel"])


def tally(line: Mapping[str, Any]) -> dict[str, int]:
    """asked, right, refused by its own error, wrong, crashed."""
    counts = Counter(line["counts"])
    asked = counts.total() - sum(counts[name] for name in NOT_ASKED)
    wrong, refused = sum(counts[name] for name in WRONG), counts["unsupported"]
    return {
        "asked": asked, "right": counts["ok"], "wrong": wrong, "refused": refused,
        "crashed": asked - counts["ok"] - wrong - refused,
    }  # fmt: skip


def judged(lines: Sequence[Mapping[str, Any]]) -> str:
    """One row for each sample of cases of a kernel."""
    keys = ("asked", "right", "wrong", "refused", "crashed")
    body = [
        [f"`{line['kernel']}`", line["where"], line.get("date", ""), *(tally(line)[key] for key in keys),
         Counter(line["counts"])["declared"]]
        for line in lines
    ]  # fmt: skip
    return table(("kernel", "where", "date", *keys, "declared"), body, 3)


def speeds(records: Sequence[Any], kernels: Sequence[str]) -> dict[str, dict[str, list]]:
    """How fast each kernel is over the strongest kernel of others of the row. Bounds and cells that are not ok in every
    process are left out."""
    times = verdict.series(records)
    rows: dict[str, dict[str, verdict.Series]] = {}
    for (load, kernel), found in times.items():
        rows.setdefault(load, {})[kernel] = found
    made: dict[str, dict[str, list]] = {kernel: {kind: [] for kind in KINDS} for kernel in kernels}
    for row in rows.values():
        peers = [s.median_us for k, s in row.items() if k.startswith("baseline/") and k not in registry.BOUNDS]
        best = min(peers, default=None)
        for kernel in kernels if best else ():
            if kernel in row:
                made[kernel][row[kernel].workload.kind].append(best / row[kernel].median_us)
    return made


def _mean(found: Sequence[float]) -> str:
    return f"{stats.geomean(found):.2f} ({len(found)})" if found else ""


def _release(name: str) -> tuple[str, str, str, str, str, int]:
    """RELEASE of an adapter, which need not be importable here."""
    tree = ast.parse((ROOT / BASELINES.replace(".", "/") / f"{name}.py").read_text(encoding="utf-8"))
    return next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "RELEASE"
    )


def field(records: Sequence[Any], lines: Sequence[Mapping[str, Any]]) -> str:
    """One row for each kernel of others, the quickest over all classes first."""
    peers = [k for k in registry.BASELINES + registry.ON_REQUEST if k not in registry.BOUNDS]
    found, body = speeds(records, peers), []
    for kernel in peers:
        name = kernel.removeprefix("baseline/")
        package, version, date, licence, language, size = _release(name)
        tallies = [tally(line) for line in lines if line["kernel"].split()[0] == name]
        asked, right, wrong = (sum(one[key] for one in tallies) for key in ("asked", "right", "wrong"))
        fast, every = found[kernel], [one for of in found[kernel].values() for one in of]
        row = [f"`{name}`", language, f"{package} {version}", date, licence, size or ""]
        row += [f"{right} of {asked}" if asked else "", wrong if asked else "", *(_mean(fast[kind]) for kind in KINDS)]
        body.append((stats.geomean(every) if every else 0.0, row))
    columns = ("kernel", "language", "release", "month", "licence", "lines", "right of asked", "wrong", *KINDS)
    return table(columns, [row for _, row in sorted(body, key=lambda one: (-one[0], one[1][0]))], 5)


def ours(records: Sequence[Any]) -> str:
    """Our public calls over the strongest kernel of others of each row."""
    found = speeds(records, OURS).items()
    body = [
        [f"`{kernel}`", "strongest of the row", "this page", *(_mean(of[kind]) for kind in KINDS)]
        for kernel, of in found
    ]
    return table(("kernel", "over", "rows of", *KINDS), body, 3)


def energy(records: Sequence[Any]) -> str:
    """One row for each kernel and row of the suite whose joules were read."""
    found = [(r, r.derived.joules) for r in records if r.derived is not None and r.derived.joules]
    body = [
        (f"`{r.kernel}`", r.workload.label, f"{1e3 * one:.3g}", f"{r.workload.num_tokens / one:,.0f}")
        for r, one in sorted(found, key=lambda pair: (pair[0].workload.kind, pair[0].workload.label, pair[1]))
    ]
    return table(("kernel", "row", "mJ a call", "query tokens a joule"), body, 2) if body else "Not measured yet."


def drawn(records: Sequence[Any]) -> str:
    """SVG: one line for each kernel, one mark for each class, at its speed over the strongest kernel of others."""
    kernels = [k for k in (*OURS, *registry.BASELINES, *registry.ON_REQUEST) if k not in registry.BOUNDS]
    found = {k: v for k, v in speeds(records, kernels).items() if any(v.values())}
    order = sorted(found, key=lambda k: stats.geomean([one for of in found[k].values() for one in of]))
    plt = style.pyplot()
    figure, axes = plt.subplots(figsize=(7.0, 0.9 + 0.27 * len(order)), layout="constrained")
    axes.axvline(1.0, color="#000000", linewidth=1.2)
    looks = zip(KINDS, ("#0072B2", "#E69F00", "#D55E00", "#009E73"), "osD^", strict=True)
    for kind, colour, marker in looks:
        there = [(stats.geomean(found[k][kind]), y) for y, k in enumerate(order) if found[k][kind]]
        axes.plot(*zip(*there, strict=True), marker, color=colour, markersize=6, label=kind) if there else None
    axes.set_yticks(range(len(order)), [k.removeprefix("baseline/") for k in order], fontsize=9)
    for label, kernel in zip(axes.get_yticklabels(), order, strict=True):
        label.set_fontweight("bold" if kernel in OURS else "normal")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.set_xlabel("speed, the strongest of others on each row = 1× (right is faster); ours in bold", fontsize=9)
    figure.legend(loc="outside upper center", ncols=4, fontsize=9)
    return style.text_of(figure)


def _listed(entries: Sequence[Mapping[str, str]], columns: Sequence[str]) -> str:
    return table(columns, [[entry.get(name, "") for name in columns] for entry in entries], len(columns))


def pages() -> Iterator[tuple[Path, str]]:
    """The page and its picture. Raises NotARun."""
    asked = tomllib.loads(ASKED.read_text(encoding="utf-8"))
    lines, found = verdicts(), [runs.read(RESULTS / name) for name in asked["runs"]]
    powered = [runs.read(RESULTS / name) for name in asked["energy"]]
    records = [record for run in found for record in run.raw]
    made = {
        "commands": "\n".join(
            f"{run.manifest['command']}    # {run.manifest['started'][:10]}" for run in found + powered
        ),
        "field": field(records, lines),
        "ours": ours(records),
        "energy": energy([record for run in powered for record in run.raw]),
        "judged": judged(lines),
        "causes": _listed(asked.get("cause", ()), ("kernel", "what is wrong", "how it was seen", "script")),
        "left_out": _listed(asked["left_out"], ("what", "release", "reason")),
    }
    yield PAGE, asked["page"].format_map(made)
    yield PICTURE, drawn(records)


def options(parser: argparse.ArgumentParser) -> None:
    add_write(parser)
    parser.add_argument("--take", type=Path, nargs="+", metavar="REPORT", help="reports of diptych-check to add first")
    parser.add_argument("--where", default="CPU", help="the machine of these reports")
    parser.add_argument("--date", default="", help="their day")


@refusing(runs.NotARun, OSError, ValueError)
def main(asked: argparse.Namespace) -> int:
    if asked.take:
        new = [json.dumps(taken(report, asked.where, asked.date)) for report in asked.take]
        with (FULL / "census.jsonl").open("a", encoding="utf-8") as out:
            out.write("\n".join(new) + "\n")
    return settle_all(dict(pages()), "census", write=asked.write)
