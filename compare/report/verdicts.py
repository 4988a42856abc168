"""The verdicts of a run as sections of its report and as columns of its summary.csv."""

import math
import re
from collections import Counter
from collections.abc import Sequence

import pandas as pd

from compare.analysis import tables, verdict
from compare.analysis.runs import RunData
from compare.analysis.standing import Standing, standings
from compare.analysis.tables import Table
from compare.analysis.verdict import Outcome, Verdict
from compare.competitors.registry import BOUNDS
from compare.report.blocks import Fold, Section, Text
from compare.stats import Ratio

_ORDER = (Outcome.FASTER, Outcome.SAME, Outcome.AMBIGUOUS, Outcome.SLOWER)


def sections(run: RunData) -> list[Section]:
    """The sections against the unit and Helion against Triton; none without times."""
    records = run.raw
    unit = verdict.unit_of(records)
    if unit is None:
        return []
    judged, pairs, twins = run.judged, verdict.unit_pairs(records, unit), verdict.twin_pairs(records)
    paired = verdict.judge(records, twins, run.margin)
    made = []
    if judged:
        words = f"{_reading(judged, run.margin)} {run.floor[1]} {_bases(judged)}"
        words += " The verdict of each cell is in the tables of its row."
        made.append(Section("verdicts", f"Against {unit}", (Text(words), *_tables(standings(records, judged, pairs)))))
    if paired:
        words = "Every Helion kernel against the Triton kernel of its name, row by row; above 1 Helion is faster."
        every = Fold("Every cell", (_cells(paired),))
        blocks = (Text(words), *_tables(standings(records, paired, twins)), every)
        made.append(Section("twins", "Helion against Triton", blocks))
    return made


def _reading(judged: Sequence[Verdict], margin: float) -> str:
    bases = {v.speed.processes for v in judged}
    one = " One process measured this run: only rounds are resampled, and what differs between processes is unseen."
    return (
        "A speed is the other's time over the kernel's: above 1 is faster. The 99% intervals are those of a bootstrap"
        f" over processes, then rounds. Faster and slower: the interval lies beyond {100 * margin:.3g}%; same: within;"
        " ambiguous: neither." + (one if bases == {1} else "")
    )


def _bases(judged: Sequence[Verdict]) -> str:
    """What the intervals are computed from: `Cells by what they stand on: 3 processes, paired 400; ...`"""
    counts = Counter(re.sub(r" \d+ rounds,", "", v.basis) for v in judged)
    return f"Cells by what they stand on: {'; '.join(f'{count} on {basis}' for basis, count in counts.most_common())}."


def _tables(made: Sequence[Standing]) -> tuple[Text | Table, ...]:
    """Tables over all rows and by class."""
    words = "By class. In brackets the numbers of rows that are faster/same/ambiguous/slower."
    every = [s for s in made if s.group == "all"]
    return _whole(every), Text(words), _split([s for s in made if s.group != "all"])


def _whole(standing: Sequence[Standing]) -> Table:
    """One line for each kernel over all rows, fastest first."""
    columns = (
        ("kernel", False), ("against", False), ("speed", True), ("99% interval", True),
        *((str(outcome), True) for outcome in _ORDER), ("rows", True),
        ("not compared", False), ("speed on rows all have", True),
    )  # fmt: skip
    ordered = sorted(standing, key=lambda s: -s.speed.ratio if s.speed else math.inf)
    fixed = len({s.against for s in ordered}) == 1
    alike = all(s.shared_cells == s.compared for s in ordered)  # then the column adds nothing
    body = [
        [
            _name(s.kernel),
            "" if fixed else _name(s.against),
            _times(s.speed),
            interval(s.speed),
            *(s.outcomes.get(outcome, 0) for outcome in _ORDER),
            f"{s.compared} of {s.cells}",
            ", ".join(f"{count} {why}" for why, count in s.missing.items()),
            f"{tables.times(s.shared)} ({s.shared_cells})" if s.shared and not alike else "",
        ]
        for s in ordered
    ]
    return Table(columns, body)


def _split(standing: Sequence[Standing]) -> Table:
    """One line for each kernel, one column for each group: the mean, and (faster/same/ambiguous/slower)."""
    groups = list(dict.fromkeys(s.group for s in standing))
    by = {(s.kernel, s.group): s for s in standing}
    kernels = list(dict.fromkeys(s.kernel for s in standing))
    columns = [("kernel", False), *((group, True) for group in groups)]
    return Table(columns, [[_name(k), *(_short(by.get((k, group))) for group in groups)] for k in kernels])


def _short(standing: Standing | None) -> str:
    if standing is None:
        return ""
    tally = "/".join(str(standing.outcomes.get(outcome, 0)) for outcome in _ORDER)
    lost = sum(standing.missing.values())
    return f"{_times(standing.speed)} ({tally}{f', {lost} lost' if lost else ''})"


def _cells(judged: Sequence[Verdict]) -> Table:
    columns = (
        ("row", False), ("kernel", False), ("verdict", False), ("speed", True), ("99% interval", True),
        ("basis", False),
    )  # fmt: skip
    body = [
        [
            v.workload.label,
            _name(v.kernel),
            str(v.outcome) + " (noisy)" * v.noisy,
            _times(v.speed),
            interval(v.speed),
            v.basis,
        ]
        for v in judged
    ]
    return Table(columns, body)


def interval(ratio: Ratio | None) -> str:
    """`[0.98, 1.02]`; empty where there is no interval."""
    return tables.interval(ratio.low, ratio.high) if ratio else ""


def _times(ratio: Ratio | None) -> str:
    return tables.times(ratio.ratio) if ratio else ""


def _name(kernel: str) -> str:
    return f"`{kernel}`" + (" (bound)" if kernel in BOUNDS else "")


COLUMNS = ("against", "speed", "speed_low", "speed_high", "verdict", "verdict_basis")


def rows(run: RunData) -> pd.DataFrame:
    """`summary.table` with COLUMNS added: empty where a cell has no time or is the unit's own."""
    found = {(v.workload.id, v.kernel): v for v in run.judged}
    by_cell = {r.cell_id: found.get((r.workload.id, r.kernel)) for r in run.raw}
    values = [_columns(by_cell.get(cell)) for cell in run.rows.cell_id] if not run.rows.empty else []
    return run.rows.assign(**{name: [value[name] for value in values] for name in COLUMNS})


def _columns(found: Verdict | None) -> dict[str, object]:
    if found is None:
        return dict.fromkeys(COLUMNS)
    s = found.speed
    known = (s.ratio, s.low, s.high) if s.high < math.inf else (s.ratio, None, None)
    return dict(zip(COLUMNS, (found.against, *known, str(found.outcome), found.basis), strict=True))
