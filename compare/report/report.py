"""A run folder's report: summary.csv, figures/*.svg, report.md and report.html, from manifest.json and cells.jsonl.

    python -m compare report RUN                        writes them again; nothing is measured, estimated or looked up
    python -m compare report RUN... --print means --unit triton/auto --kernels helion/auto     speeds, a mean a class
    python -m compare report RUN... --print features    what each feature costs beside its plain row
    python -m compare report RUN... --print times       the time of each row and kernel, or why there is none

What is printed is markdown, and no file is written; of two runs that have a row the later on the command line counts.

Exit codes: 0; 2 for something that is not a run folder, and for runs whose times mean different things; 5 with --print:
no row has the times that it asks for.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from compare.analysis import means, merge
from compare.analysis.runs import Incomparable, NotARun, RunData, ensure_one, read, tell_left_out
from compare.exits import NOTHING, OK, USAGE, nearest, refusing
from compare.record.whole import put
from compare.report import figures, glance, printed, render, verdicts
from compare.report.sections import build
from compare.workloads.suites import PLAIN

HELP = "write the report of a run again, or print a table over runs (--print)"


def write(run_dir: Path) -> Path:
    """Write summary.csv, figures/, report.md and report.html into the run's folder; returns report.md's path.

    A merged folder gets one page about its parts (`merge.tables`). Raises NotARun, Incomparable, CannotWrite.
    """
    whole = read(run_dir)
    runs = merge.tables(whole)
    ensure_one("timing contract", (run for run in runs if run.timed), lambda run: run.contract)
    figure_dir = whole.folder / "figures"
    for number, run in enumerate(runs):
        _draw(run, figure_dir / str(number) if len(runs) > 1 else figure_dir)
    _write_csv(whole.folder / "summary.csv", runs, whole.note)
    report = whole.folder / "report.md"
    made = [build(run) for run in runs]
    put(report, "\n".join(render.markdown(run, sections) for run, sections in zip(runs, made, strict=True)))
    put(whole.folder / "report.html", render.page(runs, made))
    return report


def _draw(run: RunData, folder: Path) -> None:
    """Draw the run's figures into the folder."""
    drawn = figures.draw(
        run.records,
        run.rows,
        folder,
        gpu=run.gpu_title,
        trace=bool(run.manifest.get("trace")),
        suite=run.suite,
    )
    run.figures.update(glance.draw(run, folder) | drawn)


def _write_csv(path: Path, runs: Sequence[RunData], note: str) -> None:
    """Write summary.csv. Empty fields were not measured. Comment lines (`#`) come first: an absent GPU, unreadable
    lines."""
    tables = [verdicts.rows(run).assign(run_id=run.manifest.get("run_id", "")) for run in runs]
    comments = filter(None, [*(run.headline for run in runs if run.absent), note])
    lines = "".join(f"# {' '.join(comment.split())}\n" for comment in comments)
    put(path, lines + pd.concat(tables).infer_objects().to_csv(index=False, float_format="%.6g"))


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a folder that run or merge wrote")
    new.add_argument(
        "--print", choices=("means", "features", "times"), help="print a table over the runs, and write nothing"
    )
    new.add_argument("--unit", metavar="KERNEL", help="of --print means: whose time is divided by the others'")
    new.add_argument("--kernels", metavar="GLOBS", help="of --print means: only these, comma-separated")


def _printed(asked: argparse.Namespace) -> int:
    """Print a table (--print). Raises NotARun, Incomparable."""
    runs = [read(folder) for folder in asked.runs]
    tell_left_out(runs)
    means.ensure_alike(runs)
    if asked.print == "means":
        text = means.text(runs, asked.unit, asked.kernels or "*")
        lacking = f"no row has times of {asked.unit} and of {asked.kernels or '*'}{_near(asked.unit, runs)}"
    elif asked.print == "times":
        text, lacking = printed.times(runs), "nothing is timed"
    else:
        text = printed.features(runs)
        lacking = f"no row under a feature has times beside one of {', '.join(PLAIN.values())}"
    print(text or lacking, file=sys.stdout if text else sys.stderr)
    return OK if text else NOTHING


def _near(unit: str, runs: Sequence[RunData]) -> str:
    timed = {record.kernel for run in runs for record in run.records if record.timing}
    return "" if unit in timed else nearest(unit, sorted(timed))


def _lonely(asked: argparse.Namespace) -> str:
    """The option that was given without the one that it needs, as an error; empty where there is none."""
    if asked.print == "means" and asked.unit is None:
        return "--print: found means alone, allowed with --unit KERNEL"
    if asked.print != "means" and (asked.unit or asked.kernels):
        return f"--{'unit' if asked.unit else 'kernels'}: found alone, allowed with --print means"
    several = len(asked.runs) > 1 and not asked.print
    return f"RUN: found {len(asked.runs)}, allowed one, several with --print, or `merge`" if several else ""


@refusing(NotARun, Incomparable)
def main(asked: argparse.Namespace) -> int:
    if wrong := _lonely(asked):
        print(wrong, file=sys.stderr)
        return USAGE
    if asked.print:
        return _printed(asked)
    print(write(asked.runs[0]))
    return OK
