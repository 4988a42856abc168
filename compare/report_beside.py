"""Sections from what lies beside a run: costs, generated code, sizes of sources and the capability matrix.

Looked for in the run's folder, then in the two folders above it, so that all runs of `docs/results/<gpu>/` share what
is committed there: `costs/costs.jsonl` (compare.costs), `code/code.jsonl` (compare.generated) and
`conformance/cells.jsonl` (compare.capability). What is not there is no section; what cannot be read is said.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare import capability, codemetrics, costs, tables
from compare.capability import NoResults
from compare.report_blocks import Fold, Section, Text
from compare.report_run import RunData
from compare.tables import Table

_TITLES = {
    "compile": "Compile time, fresh processes with empty caches (cold) and with what those left (warm), seconds",
    "trace": "Specialisations over the steps of a serving trace",
    "host": "Host time to enqueue a call, µs",
    "launch": "Device kernels a call, how long they are busy and how long the call spans",
    "scratch": "Scratch memory, bytes",
    "tuning": "Seconds of tuning to 90, 95 and 99% of the best known",
}
_SIDES = ("triton", "helion")


def beside(folder: Path, name: str) -> Path | None:
    """The nearest file of that name in the folder or the two above it."""
    above = (folder, *folder.resolve().parents[:2])
    return next((path for base in above if (path := base / name).is_file()), None)


def plain(rows: Sequence[dict[str, Any]]) -> Table:
    """A table of plain rows: their keys are its columns, numbers stand right."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    number = {name: all(isinstance(row.get(name), int | float | None) for row in rows) for name in names}
    body = [[_entry(row.get(name)) for name in names] for row in rows]
    return Table([(name.replace("_", " "), number[name]) for name in names], body)


def _entry(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else tables.number(value)


def cost_tables(run: RunData) -> Section | None:
    """What each DSL costs beside its speed, as compare.costs found it for the run's GPU."""
    path = beside(run.folder, "costs/costs.jsonl")
    if path is None:
        return None
    try:
        rows = [row for row in costs.read(path.parent) if row.get("gpu", run.gpu) == run.gpu]
    except (OSError, ValueError) as error:
        return Section("costs", "Costs", (Text(f"Not read: {error}."),))
    made: list = []
    for part, title in _TITLES.items():
        found = costs.table(rows, part)
        if found:
            made.append(Fold(title, (plain(found),), open=True))
    words = "Each DSL by the same commands (`python -m compare.costs`); `ran_on` says which machine compiled."
    return Section("costs", "Costs", (Text(words), *made)) if made else None


def code(run: RunData) -> Section | None:
    """The Triton code that Helion generates beside ours, as the compiler sees both."""
    path = beside(run.folder, "code/code.jsonl")
    if path is None:
        return None
    from compare import generated

    try:
        meta = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
        pairs = generated.pairs(generated.read(path.parent))
    except (OSError, ValueError, KeyError, IndexError) as error:
        return Section("code", "Generated code", (Text(f"Not read: {path.name}: {error}."),))
    if meta.get("gpu", run.gpu) != run.gpu:
        return None
    words = (
        "The same rung in both DSLs, each with the config that its heuristics give, compiled for the GPU: registers are"
        " the most of a launch's kernels, the rest sums. `tokens` are those that a person wrote, helpers included;"
        " Helion emits Triton, whose size is `generated tokens`."
        f" Commit {meta.get('commit', '?')}, heuristics {meta.get('heuristics', '?')}. The sources lie beside"
        " `code.jsonl`."
    )
    rows = [
        {"rung": pair["rung"], "row": pair["workload"], "DSL": dsl}
        | {name.removeprefix(f"{dsl}_"): value for name, value in pair.items() if name.startswith(f"{dsl}_")}
        | {"generated_tokens": pair.get("generated_tokens") if dsl == "helion" else None}
        for pair in pairs
        for dsl in _SIDES
    ]
    return Section("code", "Generated code", (Text(words), plain(rows)))


def capabilities(run: RunData) -> Section | None:
    """What each kernel can do, and the sizes of sources that can do the same."""
    path = beside(run.folder, "conformance/cells.jsonl")
    if path is None:
        return None
    try:
        results = capability.read(path)
    except NoResults as error:
        return Section("capability", "What each kernel can do", (Text(f"Not read: {error}."),))
    meta = results.meta
    words = (
        f"From the conformance run of {meta['date']} on {meta['device']}, commit {meta['commit']}. A number counts the"
        " cases that have the aspect and passed; `not yet`: refused by a typed error; `not run`: no case of the run has"
        " it. Errors: docs/capability.md."
    )
    matrix = capability.matrix(results)
    columns = [("aspect", False), *((f"`{kernel}`", True) for kernel in results.kernels)]
    body = [[row["aspect"], *(row[kernel].text for kernel in results.kernels)] for row in matrix]
    sizes = plain(codemetrics.pairs(results))
    said = (
        "Device code of the rungs as it stands, without comments and layout: Helion's over Triton's where both can do"
    )
    said += " the same, else what is unequal."
    return Section(
        "capability",
        "What each kernel can do",
        (Text(words), Table(columns, body), Fold("Sizes of sources", (Text(said), sizes), open=True)),
    )
