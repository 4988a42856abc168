"""What a mutation run found: one line for each wrong kernel, the table of levels, and who lives.

A line has `operator`, `change`, `level` and `case` of its death, else `lives`: "same bits" or "same sums in another
order", which are taken for equivalent, "differs" or "wrong at its limit". The first line is the run: `command`,
`torch`, `day`, `drawn`, and `cases` by level: [asked, of how many].
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from compare.analysis import markup

Line = dict[str, Any]
SAME, ORDER, DIFFERS, AT_LIMIT = "same bits", "same sums in another order", "differs", "wrong at its limit"
EQUIVALENT = (SAME, ORDER)


def read(path: Path) -> tuple[dict[str, Any], list[Line]]:
    """The head and the kernels of a mutation run's file."""
    run, *kernels = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return run, kernels


def write(path: Path, run: dict[str, Any], kernels: Sequence[Line]) -> None:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (run, *kernels)), encoding="utf-8")


def died(kills: Set[str], cases: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The first level with a case that rejects the kernel, and that case."""
    for level, names in cases.items():
        if case := next((name for name in names if name in kills), None):
            return {"level": level, "case": case}
    return {}


def table(kernels: Sequence[Line], cases: Mapping[str, Sequence[int]]) -> str:
    """The score of each level behind those before it, by operator and by axis."""
    counts: dict[str, Counter[str]] = {}
    for line in kernels:
        of = counts.setdefault(line["operator"], Counter())
        of["made"] += 1
        of["equivalent"] += line.get("lives") in EQUIVALENT
        of.update([line["level"]] if "level" in line else [])
    rows = sorted(counts.items())
    for word, by_axis in (("all by operators", False), ("all by axes", True)):
        group = [count for name, count in rows if name.startswith("axis ") is by_axis]
        rows = [*rows, (word, sum(group, Counter()))] if group else rows
    heads = [level if asked == of else f"{level}: {asked:,} of {of:,} cases" for level, (asked, of) in cases.items()]
    body = []
    for operator, of in rows:
        wrong, dead, cells = of["made"] - of["equivalent"], 0, []
        for level in cases:
            dead += of[level]
            cells.append(f"{dead} ({dead / wrong:.1%})" if wrong else "-")
        body.append([operator, wrong, of["equivalent"], *cells])
    return markup.table(["wrong by", "wrong kernels", "equivalent", *heads], body)


def survivors(kernels: Sequence[Line], levels: Sequence[str]) -> str:
    """Of those that are not equivalent: what no case of these levels rejects, and what it dies of later."""
    body = [
        [f"`{line['case']}`" if "case" in line else line["lives"], line["operator"], f"`{line['change']}`"]
        for line in kernels
        if line.get("level") not in levels and line.get("lives") not in EQUIVALENT
    ]
    return markup.table(["dies of", "wrong by", "what is wrong, and where"], body, 3)
