"""Samples of cases of the kit over kernels of others, one line each in docs/results/conformance/full."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compare.analysis import markup
from compare.competitors import registry
from compare.record.folder import ROOT

FULL = ROOT / "docs" / "results" / "conformance" / "full"
BASELINES = "compare.competitors.baselines"
REASON = 230
NOT_ASKED = ("declared", "too_large", "timeout", "not_judged", "unavailable")
WRONG = ("incorrect", "nondeterministic")


def taken(report: Path, where: str, date: str) -> dict[str, Any]:
    """A line of verdicts from a report of diptych-check. Raises OSError, ValueError or KeyError for another file."""
    found = json.loads(report.read_text(encoding="utf-8"))
    cases = [(c["case"], "declared" if c["declared"] else c["status"], c["reason"][:REASON]) for c in found["cases"]]
    kernel = found["kernel"].removeprefix(f"{BASELINES}.")
    wrong = [case for case in cases if case[1] not in ("ok", *NOT_ASKED)]
    counts = Counter(status for _, status, _ in cases)
    return {
        "where": where, "date": date, "kernel": kernel, "level": "first", "seed": found["seed"], "counts": counts,
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
    return markup.table(("kernel", "where", "date", *keys, "declared"), body, 3)
