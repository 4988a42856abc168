"""A run folder's report: summary.csv, figures/*.svg and report.md, from manifest.json and cells.jsonl alone.

`python -m compare.report RUN_DIR` writes them again; nothing is measured, estimated or looked up while it does.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from compare import evidence, figures, summary, tables
from compare.records import Evidence, Record, Status, latest
from compare.store import Loaded, load

TEMPLATES = Path(__file__).parent / "templates"
LOG_LINES = 25  # of a failure's log; the whole tail is in cells.jsonl
MAX_FAILURES = 40  # shown at length; the rest is counted


class NotARun(ValueError):
    """A folder without a readable manifest.json or cells.jsonl; the message names the file."""


def write(run_dir: Path) -> Path:
    """Write summary.csv, figures/ and report.md into the run's folder; returns the report's path. Raises NotARun."""
    run_dir = Path(run_dir)
    manifest, records = _read(run_dir)
    rows = summary.table(records)
    facts = summary.distinct_facts(records)
    headline = _headline(manifest, rows)
    comments = [headline if _absent(manifest) else "", manifest["left_out"]]
    _write_csv(run_dir / "summary.csv", rows, comments)
    drawn = figures.draw(
        records,
        rows,
        facts,
        run_dir / "figures",
        gpu=_gpu_title(manifest),
        trace=bool(manifest.get("trace")),
        suite=manifest.get("suite", ""),
    )
    report = run_dir / "report.md"
    values = _values(manifest, records, rows, facts) | {"headline": headline}
    values["figures"] = {name: path.relative_to(run_dir).as_posix() for name, path in drawn.items()}
    report.write_text(_render(values), encoding="utf-8")
    return report


def _read(run_dir: Path) -> tuple[dict[str, Any], list[Record]]:
    try:
        manifest = json.loads((run_dir / "manifest.json").read_text(encoding="utf-8"))
        cells = run_dir / "cells.jsonl"
        loaded = load(cells) if cells.exists() else Loaded(cells, [])
        return manifest | {"left_out": loaded.note}, latest(loaded.records)
    except (OSError, ValueError) as error:
        raise NotARun(f"run folder: found {run_dir} with {error}, allowed one that compare.run wrote") from error


def _write_csv(path: Path, rows: pd.DataFrame, comments: Sequence[str]) -> None:
    """Empty fields are what was not measured; comment lines (`#`) first: the GPU was absent, lines were left out."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        for comment in filter(None, comments):
            file.write(f"# {comment}\n")
        rows.to_csv(file, index=False, float_format="%.6g")


def _render(values: dict[str, Any]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["ratio"] = tables.times
    text = environment.get_template("report.md.j2").render(values)
    lines: list[str] = []
    for line in (line.rstrip() for line in text.splitlines()):
        if line or (lines and lines[-1]):  # never two empty lines in a row
            lines.append(line)
    return "\n".join(lines).strip() + "\n"


def _absent(manifest: dict[str, Any]) -> bool:
    gpu = manifest.get("gpu")
    return bool(gpu) and not gpu.get("present", False)


def _gpu_title(manifest: dict[str, Any]) -> str:
    gpu = manifest.get("gpu") or {}
    return gpu.get("title") or gpu.get("name") or "no GPU"


def _headline(manifest: dict[str, Any], rows: pd.DataFrame) -> str:
    if manifest.get("headline"):
        return manifest["headline"]
    if _absent(manifest):
        return f"{manifest['gpu']['name']} is not here: compiled and checked, not timed"
    if rows.empty or not rows.us.notna().any():
        return "No GPU: checked under the interpreter, not timed"
    return f"Checked and timed on {_gpu_title(manifest)}"


def _verdict(facts: Sequence[dict[str, Any]]) -> str:
    spilled = [f for f in facts if f["spills"] or f["scratch_bytes"]]
    if not spilled:
        return f"None of the {len(facts)} compiled kernels spills a register to memory."
    names = ", ".join(sorted({f"`{f['competitor']}` at head size {f['head_size']}" for f in spilled}))
    return f"**{len(spilled)} of the {len(facts)} compiled kernels spill to memory**: {names}."


def _failures(records: Sequence[Record]) -> list[dict[str, str]]:
    return [
        {
            "kernel": record.kernel,
            "workload": record.workload.label,
            "status": str(record.status),
            "reason": record.reason,
            "command": record.command,
            "log": "\n".join(record.log_tail.strip().splitlines()[-LOG_LINES:]).replace("```", "'''"),
        }
        for record in records
        if record.status.is_failure
    ]


def _others(records: Sequence[Record]) -> list[tuple[str, str, int, str]]:
    """(kernel, status, cells, reason) of what was not run for a declared reason."""
    counted = Counter(
        (r.kernel, str(r.status), tables.cell(r.reason))
        for r in records
        if r.status is not Status.OK and not r.status.is_failure
    )
    return [(kernel, status, count, reason) for (kernel, status, reason), count in counted.items()]


def _header(manifest: dict[str, Any], records: Sequence[Record]) -> list[tuple[str, str]]:
    versions = manifest.get("versions") or (records[0].versions if records else {})
    commit = str(manifest.get("commit", ""))
    pairs = [
        ("run", manifest.get("run_id", "")),
        ("command", f"`{manifest['command']}`" if manifest.get("command") else ""),
        ("GPU", "" if not manifest.get("gpu") else _gpu_title(manifest) + (" (absent)" if _absent(manifest) else "")),
        ("suite", manifest.get("suite", "")),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("commit", commit + (" with local changes" if manifest.get("dirty") else "")),
        ("machine", ", ".join(f"{name} {value}" for name, value in (manifest.get("machine") or {}).items())),
        ("started", manifest.get("started", "")),
        ("left out", manifest.get("left_out", "")),
        ("took", f"{manifest['seconds']:.0f} s" if manifest.get("seconds") else ""),
        ("kernel sources", ", ".join(sorted({f"`{r.kernel}` {r.source_sha}" for r in records if r.source_sha}))),
    ]
    return [(name, tables.cell(value)) for name, value in pairs if value]


def _limits(rows: pd.DataFrame, facts: Sequence[dict[str, Any]], manifest: dict[str, Any]) -> list[str]:
    """What a reader must know, by what this run actually did."""
    lines = ["A row has a time only where the very output of the timed callable passed the checker."]
    if not rows.empty and rows.us.notna().any():
        lines += [
            "µs is the median of samples; a sample is one replay divided by its calls. Spread is (p95 - p05) / median.",
            "Cold: consecutive calls read different pages, and one cycle reads more than the last-level cache holds.",
            "`of floor`: the larger of bytes over stated HBM bandwidth and FLOPs over the stated dense peak, divided by"
            " the time. Nobody reaches 100%; it says what is left, not what is attainable.",
            "`to best`: the time over the row's best time; `× FA3`: FA3's time over the kernel's (above 1× is faster).",
            "Kernels marked (bound) solve an easier problem (no paging): they are drawn and listed, and never rank.",
            "Host planning and launch cost are not in these times.",
        ]
    else:
        lines.append("Nothing was timed, so nothing here says which kernel is faster.")
        lines.append("`check`: the largest error over its budget that the checker saw; above 1 it rejects.")
    if _absent(manifest):
        lines.append(
            "Compiled for the named GPU and checked on the CPU: the algorithm was run, the compiled code was not. No"
            " claim about its speed, its races or its hardware follows."
        )
    if facts:
        lines.append(
            "Static facts count the whole text of a kernel, the copies that pipelining peels off included; `spills` are"
            " registers (AMD) or store instructions (NVIDIA) that went to memory."
        )
    return lines


def _values(
    manifest: dict[str, Any], records: Sequence[Record], rows: pd.DataFrame, facts: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Everything that the template names."""
    done, planned = len(records), manifest.get("planned", len(records))
    ok = [r for r in records if r.status is Status.OK]
    seen = Counter(str(kind) for r in ok for kind in r.evidence)
    counted = ", ".join(f"{seen[str(kind)]} {kind}" for kind in Evidence if seen[str(kind)])
    untimed = rows.empty or not rows.us.notna().any()
    trace = manifest.get("trace") or {}
    statuses, coverage = summary.coverage(rows) if not rows.empty else ([], [])
    failures = _failures(records)
    hidden = len(failures) - MAX_FAILURES
    return {
        "title": f"Paged attention: {manifest.get('suite', 'run')} on {_gpu_title(manifest)}",
        "header": _header(manifest, records),
        "hidden": f"{hidden} further failures are in cells.jsonl." if hidden > 0 else "",
        "covered": f"{done} of {planned} planned cells finished, {len(ok)} ok" + (f" ({counted})." if counted else "."),
        "statuses": statuses,
        "coverage": coverage,
        "means": summary.class_means(rows) if not rows.empty else [],
        "trace": ". ".join(str(trace[k]).rstrip(".") for k in ("name", "assumptions") if trace.get(k)),
        "classes": tables.classes(records, rows),
        "search_table": evidence.search_table(records),
        "checker_table": evidence.checker_table(ok),
        "facts_table": tables.fact_table(facts) if facts and untimed else "",
        "facts_arch": ", ".join(sorted({f["arch"] for f in facts})),
        "facts_verdict": _verdict(facts) if facts else "",
        "failures": failures[:MAX_FAILURES],
        "others": _others(records),
        "limits": _limits(rows, facts, manifest),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m compare.report RUN_DIR`: exit 0, or 2 for something that is not a run folder."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m compare.report RUN_DIR", file=sys.stderr)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    try:
        print(write(Path(arguments[0])))
    except NotARun as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
