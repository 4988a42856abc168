"""Judge a candidate by `diptych-check`, and reduce its report to one word and one line.

The candidate is copied into an otherwise empty folder, so that candidates do not see each other and the judged file is
the hashed one. There is no judge here: every verdict comes from the kit's report.
"""

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import process
from common.kit import isolate
from common.kit.kit import LATE
from compare.identity import IMPORTED_FROM

LIMIT_S = 4 * 3600.0  # of one level; each call has the kit's limit too
MODULE = "candidate"
RIGHT, WRONG, CHEAT, REFUSED, UNLOADED, UNJUDGED = "right", "wrong", "cheat", "refused", "does not load", "not judged"
VERDICTS = {"incorrect": WRONG, "nondeterministic": WRONG, "unsupported": REFUSED, LATE: UNJUDGED}  # else the status
# What no kernel does by mistake: words of the kit's reason -> what they mean.
CHEATS = {
    "changed its input": "changes its inputs",
    "its bits are the query's": "returns its input",
    "whose values were others": "gives the result of an earlier call",
    isolate.WRITTEN: "answers in the kit's place",
    "behind the call": "leaves a process behind the call",
    "and no class derived of it": "returns what only looks like a tensor",
}
# The same for a whole run: a key of the report -> what it means if it lists anything.
SPOILED = {
    "changed": "changes the judge's files",
    "read": "reads how it is judged",
    "not_ended": "leaves processes that do not end",
}


@dataclass(frozen=True)
class Candidate:
    """A candidate file as it was read. beside: (path, bytes) of files that lie in its folder too."""

    name: str
    source: bytes
    beside: tuple[tuple[str, bytes], ...] = ()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.source).hexdigest()


@contextmanager
def alone(candidate: Candidate) -> Iterator[Path]:
    """A folder with only the candidate, as the module MODULE, readable by other users."""
    with tempfile.TemporaryDirectory(prefix="diptych-grade-") as folder:
        Path(folder).chmod(0o755)
        for name, source in ((f"{MODULE}.py", candidate.source), *candidate.beside):
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source)
        yield Path(folder)


def judged(
    candidate: Candidate, entry: str, asks: Sequence[Sequence[str]], words: Sequence[str] = ()
) -> dict[str, Any]:
    """{"verdict", "kind", "case", "reason", "right", "asked", "errors", "by", "seconds"} of the first of `asks` in
    which the candidate is not right, else of the last. kind: of a cheat; for wrong values, the mistake that explains
    them. errors: `common.kit.kit.Result`'s, of the case that is not right, else of the last that was asked.

    asks: what to ask of diptych-check, in order: ("--level", "first"). words: further options of each.
    """
    begun, found = time.monotonic(), {}
    for ask in asks:
        found = _once(candidate, entry, [*ask, *words]) | {"by": ask[-1]}
        if found["verdict"] != RIGHT:
            break
    return found | {"seconds": round(time.monotonic() - begun, 1)}


def _once(candidate: Candidate, entry: str, words: Sequence[str]) -> dict[str, Any]:
    """Run the command once. After a call without an answer it asks no further case."""
    with alone(candidate) as folder, tempfile.TemporaryDirectory(prefix="diptych-report-") as reports:
        report = Path(reports) / "report.json"
        command = [
            sys.executable,
            str(IMPORTED_FROM / "diptych_check.py"),
            f"{MODULE}:{entry}",
            "--report",
            str(report),
        ]
        command += ["-n", "1", "--exitfirst", "--strict", "--no-minimise", *words]
        try:
            _, out, err = process.once(command, os.environ, b"", LIMIT_S, folder=folder)
        except process.Lost as lost:
            return verdict(UNJUDGED, reason=lost.reason)
        if report.exists():
            return read(json.loads(report.read_text(encoding="utf-8")))
    last = (err or out).decode(errors="replace").strip().rpartition("\n")[2]
    if "does not load: " in last:
        return verdict(UNLOADED, reason=last.partition("does not load: ")[2].rpartition("; allowed")[0])
    return verdict(
        UNLOADED if last.startswith("diptych-check: ") else UNJUDGED, reason=last.rpartition("diptych-check: ")[2]
    )


def verdict(word: str, **more: Any) -> dict[str, Any]:
    return {"verdict": word, "kind": "", "case": "", "reason": "", "right": 0, "asked": 0, "errors": {}} | more


def read(report: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict in a report of the kit."""
    asked = [
        case for case in report["cases"] if case["status"] not in ("too_large", "not asked") and not case["declared"]
    ]
    counts = {"right": sum(case["status"] == "ok" for case in asked), "asked": len(asked)}
    bad = next(
        (case for case in asked if case["status"] != "ok"), dict.fromkeys(("case", "status", "reason", "cause"), "")
    )
    counts |= {"case": bad["case"], "reason": bad["reason"], "kind": bad["cause"]}
    counts |= {"errors": (bad if bad["status"] else asked[-1] if asked else {}).get("errors", {})}
    for key, kind in SPOILED.items():
        if named := report[key]:
            return verdict(CHEAT, **counts | {"kind": kind, "case": "", "reason": ", ".join(map(str, named))})
    for words, kind in CHEATS.items():
        if words in bad["reason"]:
            return verdict(CHEAT, **counts | {"kind": kind})
    if bad["status"]:
        return verdict(VERDICTS.get(bad["status"], bad["status"]), **counts)
    return (
        verdict(RIGHT, **counts)
        if asked
        else verdict(UNJUDGED, reason="nothing was asked: it declares away every case")
    )
