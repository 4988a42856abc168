"""The first table of docs/choosing-a-dsl.md behind its answer: what compiling, the host and tuning cost in each DSL.

Every figure is of a row that a block further down has with its command; here both DSLs stand side by side.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from compare.pages.choosing_committed import Committed, missing, table

COMMAND = "python -m compare.studies.costs.costs --gpu {} --out DIR"
DSLS = ("triton", "helion")
_Rows = Sequence[dict[str, Any]]


def of_dsl(rows: Iterable[dict[str, Any]], dsl: str) -> list[dict[str, Any]]:
    """The rows of one DSL, which name it themselves, in their kernel or as their arm."""
    return [row for row in rows if dsl in (row.get("dsl"), row.get("arm"), row.get("kernel", "").split("/")[0])]


def _median(state: str, stage: str) -> Callable[[_Rows], str]:
    def say(rows: _Rows) -> str:
        found = [row[f"{stage}_cpu_s"] for row in rows if row["state"] == state]
        return f"{statistics.median(found):.2f}" if found else ""

    return say


def _range(name: str, form: str) -> Callable[[_Rows], str]:
    """The least and the most of a column; rows without it left out."""

    def say(rows: _Rows) -> str:
        found = sorted(row[name] for row in rows if row.get(name) is not None)
        both = [form.format(value) for value in found[:1] + found[-1:]]
        return " to ".join(dict.fromkeys(both))

    return say


def _code_met(rows: _Rows) -> str:
    return ", ".join(f"{row['specialisations']} in {row['compile_cpu_s']:.0f} s" for row in rows)


def _timed(rows: _Rows) -> str:
    return f"{sum(row['timed'] for row in rows):,}" if rows else ""


# (part of compare.studies.costs.costs, words, with fields that all of its rows have alike, and what the rows of one DSL
# say)
_LINES: tuple[tuple[str, str, Callable[[_Rows], str]], ...] = (
    ("compile", "compiling: import, seconds of a core", _median("cold", "import")),
    ("compile", "compiling: first call, nothing cached", _median("cold", "first")),
    ("compile", "compiling: first call of a later process", _median("warm", "first")),
    ("compile", "compiling: one more dtype in it", _median("warm", "next")),
    ("trace", "compiling: specialisations of `auto` over {steps:,} steps of a trace", _code_met),
    ("host", "host: the DSL's own launch, µs", _range("launch", "{:.0f}")),
    ("host", "host: the public call, µs", _range("call", "{:.1f}")),
    ("host", "host: a graph, µs", _range("graph", "{:.1f}")),
    ("tuning", "tuning: candidates timed in {minutes:g} minutes", _timed),
    ("tuning", "tuning: rows reached of a kernel", _range("rows", "{}")),
    ("tuning", "tuning: the default's part of the best of either, rows of both", _range("across_untuned", "{:.0%}")),
)


def beside(had: Committed) -> str:
    """What compiling, the host and tuning cost in each DSL; a part that nobody measured has no line."""
    of = {part: had.cost(part) for part in ("compile", "trace", "tuning")} | {"host": had.hosts}
    body = []
    for part, words, say in _LINES:
        if rows := of[part]:
            body.append([words.format(**rows[0]), *(say(of_dsl(rows, dsl)) for dsl in DSLS)])
    return table(["", "Triton", "Helion"], body) if body else missing(COMMAND.format(had.results.name))
