"""Trade kernels, rows and verdicts with flashinfer-bench: write a run in its layout, or judge what is in it.

    python -m compare exchange export results/RUN FOLDER     # our rows, kernels and verdicts, for its runner
    python -m compare exchange import FOLDER [--solutions 'flashinfer*'] [--rows 3] [--time-limit 20]

export: the rows of a run that are plain causal attention become Workloads, `triton/auto`, `triton/native.auto` and
`helion/auto` Solutions, and what the run found Traces. import: each Definition's reference, then each Solution in
Python, is asked the Workloads by diptych-check, in a process of its own, and judged in float64; one line for each
verdict goes to traces/gqa_paged/NAME.diptych.jsonl. What cannot be traded is named and left out. Exit codes: 0 all
right; 1 a Solution or a reference that is not; 2 usage; 5 nothing was traded; 130 interrupted, and what was judged is
kept.
"""

import argparse
import fnmatch
import json
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import torch

from common.spec import SpecError
from compare.analysis import runs
from compare.exits import NOTHING, OK, WRONG, refusing, say
from compare.record.folder import NotARun, commit, ensure_writable, now, versions
from compare.record.records import Record, Status
from compare.record.whole import put
from compare.studies.exchange.layout import OP_TYPE, Definition, Row, Solution, objects
from compare.studies.grade.judge import RIGHT, UNJUDGED, UNLOADED, Candidate, judged
from compare.studies.grade.judge import WRONG as INCORRECT
from compare.workloads.numbers import at_least_one, seconds

HELP = "trade kernels, rows and verdicts with flashinfer-bench"
CALLED = ("triton/auto", "triton/native.auto", "helion/auto")  # by common.engines.flashinfer
REASON = 130
PASSED, NUMERICAL, RUNTIME = "PASSED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR"
# What flashinfer-bench calls a verdict of `grade`, or a status of a run; RUNTIME_ERROR for others.
STATUSES = {RIGHT: PASSED, INCORRECT: NUMERICAL, UNLOADED: "COMPILE_ERROR", UNJUDGED: "TIMEOUT"}
STATUSES |= {Status.OK: PASSED, Status.INCORRECT: NUMERICAL, Status.NONDETERMINISTIC: NUMERICAL}
STATUSES |= {Status.COMPILE_ERROR: "COMPILE_ERROR", Status.TIMEOUT: "TIMEOUT"}
Made = TypeVar("Made")


def kept(make: Callable[[Any], Made], plain: Iterable[Any]) -> Iterator[Made]:
    """What can be made of some objects; the others are named on stderr."""
    for one in plain:
        try:
            yield make(one)
        except SpecError as error:
            say(f"left out: {error}")


def number(found: float | None) -> float | str:
    """As flashinfer-bench has it in JSON: "NaN" where there is none."""
    return "NaN" if found is None else found if math.isfinite(found) else "Infinity"


def trace(row: dict[str, Any], solution: str, word: str, found: dict[str, Any]) -> dict[str, Any]:
    """A line of traces/. row: the Workload's. word: a key of STATUSES. found: "reason"; perhaps "errors", as
    `common.kit.kit.Result` has them; "ms" of a call; and where, when and by which commit, if not here and now."""
    status, errors = STATUSES.get(word, RUNTIME), found.get("errors", {})
    gpu = found.get("gpu") or (torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU")
    told: dict[str, Any] = {
        "status": status,
        "environment": {"hardware": gpu, "libs": found.get("versions") or versions()},
        "timestamp": found.get("at") or now(),
        "log": f"{word}: {found['reason']}".removesuffix(": "),
    }
    if status in (PASSED, NUMERICAL):
        told["correctness"] = {f"max_{name}_error": number(errors.get(name)) for name in ("relative", "absolute")}
        extra = {"reference": "float64", "part_of_budget": number(errors.get("part")), "verdict": str(word)}
        told["correctness"]["extra"] = extra | {"checker": f"diptych {found.get('commit') or commit()}"}
    if status == PASSED:
        told["performance"] = {"latency_ms": found["ms"]} if "ms" in found else {}
    return row | {"solution": solution, "evaluation": told}


def write(folder: Path, name: str, lines: Iterable[dict[str, Any]]) -> None:
    """A file of an object a line. Raises CannotWrite."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    put(folder / name, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))


def _of_run(record: Record) -> dict[str, Any]:
    """What `trace` takes of a run's cell."""
    found = {"reason": record.reason, "gpu": record.gpu, "versions": record.versions}
    if record.gate is not None:
        found["errors"] = {"part": max(record.gate.worst.values(), default=0.0)}
    if record.timing is not None:
        found["reason"] = f"{record.timing.timer} timer, {record.timing.cache} cache, page lists made before"
        found["ms"] = record.timing.median_us / 1000
    return found


def export(asked: argparse.Namespace) -> int:
    """A run's folder in flashinfer-bench's layout."""
    data, folder = runs.read(asked.run), asked.folder
    ensure_writable(folder)
    planned = data.manifest.get("workloads", ())
    of = {"at": data.manifest.get("started"), "commit": data.manifest.get("commit")}
    rows = {row.workload.id: row for row in kept(Row.of_plain, planned)}
    plain = {key: row.stored(folder) for key, row in rows.items()}
    records = [one for one in data.records if one.workload.id in rows and one.kernel in CALLED]
    records = [one for one in records if one.status is Status.OK or one.status.is_failure]
    for definition in {row.definition.name: row.definition for row in rows.values()}.values():
        name = definition.name
        mine = [one for one in records if rows[one.workload.id].definition == definition]
        solutions = {one.kernel: Solution.of_ours(one.kernel, definition) for one in mine}
        write(folder, f"definitions/{OP_TYPE}/{name}.json", [definition.to_dict()])
        write(folder, f"workloads/{OP_TYPE}/{name}.jsonl", [one for one in plain.values() if one["definition"] == name])
        for one in solutions.values():
            write(folder, f"solutions/{OP_TYPE}/{name}/{one.name}.json", [one.to_dict()])
        names = {kernel: one.name for kernel, one in solutions.items()}
        traces = [trace(plain[c.workload.id], names[c.kernel], c.status, of | _of_run(c)) for c in mine]
        write(folder, f"traces/{OP_TYPE}/{name}.jsonl", traces)
    print(f"{len(rows)} of {len(planned)} rows and {len(records)} cells of {', '.join(CALLED)} are in {folder}")
    return OK if rows else NOTHING


def rows_of(folder: Path, definitions: dict[str, Definition], most: int | None) -> dict[str, list[tuple[Row, dict]]]:
    """The Workloads of each Definition, with their lines, the fewest keys first."""
    found: dict[str, list[tuple[Row, dict]]] = {name: [] for name in definitions}

    def row(plain: dict[str, Any]) -> tuple[Row, dict]:
        return Row.of(definitions[plain["definition"]], plain.get("workload"), folder), plain

    lines = (one for one in objects(folder / "workloads", "*.jsonl") if isinstance(one, dict))
    named = ((one.get("definition"), one) for one in lines)
    for one, plain in kept(row, (one for name, one in named if isinstance(name, str) and name in definitions)):
        found[one.definition.name].append((one, plain))
    return {
        name: sorted(rows, key=lambda row: row[0].workload.stats.total_seq_len)[:most] for name, rows in found.items()
    }


def candidate(solution: Solution, definition: Definition) -> Candidate:
    """A Solution as `grade` judges one: `entry` with what it has to know behind it, and the sources in a folder."""
    path, name = solution.entry
    task = {"inputs": definition.inputs, "page": definition.page, "returned": solution.returned}
    limits = {"dtype": [str(definition.shape.dtype).removeprefix("torch.")]}
    limits |= {"max_query_len": 1} if definition.decode else {}
    text = Path(__file__).with_name("entry.py").read_text(encoding="utf-8")
    text += f"\n\nTASK, SUPPORTS, LIMITS = {task!r}, {{'causal', 'lse'}}, {limits!r}\n"
    text += f"run = load({'.'.join(['solution', *Path(path).with_suffix('').parts])!r}, {name!r})\n"
    beside = tuple((f"solution/{path}", content.encode()) for path, content in solution.sources)
    return Candidate(solution.name, text.encode(), beside)


def words(row: Row) -> str:
    """The options of `compare run` that ask the row of other kernels."""
    lens = "_".join(f"{len(list(each))}q{q}s{s}" for (q, s), each in groupby(row.workload.lens))
    shape = row.workload.shape
    sizes = f"{shape.num_query_heads}:{shape.num_kv_heads}:{shape.head_size} --block-size {shape.block_size}"
    return f"--workload {lens} --shape {sizes} --dtype {str(shape.dtype).removeprefix('torch.')}"


def asked_of(solution: Solution, rows: Iterable[tuple[Row, dict]], options: list[str]) -> Iterator[tuple[str, dict]]:
    """(verdict, Trace) of a Solution on each row, as it comes; a line of each is printed."""
    for row, plain in rows:
        found = judged(candidate(solution, row.definition), "paged_attention", [("--case", row.case)], options)
        part = found["errors"].get("part")
        why = f"{part:.2f} of the budget" if found["verdict"] == RIGHT and part is not None else found["reason"]
        why = textwrap.shorten(": ".join(filter(None, (found["kind"], why))), REASON, placeholder="...")
        print(f"{found['verdict']:11} {solution.name} {row.uuid}: {why}", flush=True)
        yield found["verdict"], trace(plain, solution.name, found["verdict"], found)


def import_(asked: argparse.Namespace) -> int:
    """Judge the Solutions of a folder, and write their Traces."""
    folder, options = asked.folder, ["--time-limit", str(asked.time_limit)] if asked.time_limit else []
    known = {one.name: one for one in kept(Definition.of, objects(folder / "definitions", "*.json"))}
    if not known:
        raise SpecError("folder", f"{folder}, without a Definition to ask", f"one with definitions of {OP_TYPE}")
    rows, verdicts = rows_of(folder, known, asked.rows), []
    solutions = list(kept(Solution.of, objects(folder / "solutions", "*.json")))
    for name, definition in known.items():
        for row, _ in rows[name]:
            print(f"row {row.uuid}: {words(row)}")
        reference = Solution("reference", name, (("main.py", definition.reference),))
        found = [word for word, _ in asked_of(reference, rows[name][:1], options)]
        if set(found) - {RIGHT, UNJUDGED}:
            say(f"definition {name}, reference: found {found[0]}, allowed causal attention with an LSE in base 2")
            verdicts += found
            continue
        lines: list[dict[str, Any]] = []
        for one in solutions:
            if one.definition == name and fnmatch.fnmatch(one.name, asked.solutions):
                for word, line in asked_of(one, rows[name], options):
                    verdicts.append(word)
                    lines.append(line)
                    write(folder, f"traces/{OP_TYPE}/{name}.diptych.jsonl", lines)
    print(f"{verdicts.count(RIGHT)} of {len(verdicts)} right")
    if set(verdicts) <= {UNJUDGED}:
        return NOTHING
    return OK if set(verdicts) == {RIGHT} else WRONG


def options(new: argparse.ArgumentParser) -> None:
    ways = new.add_subparsers(dest="way", required=True)
    out, into = ways.add_parser("export", help="a run's folder"), ways.add_parser("import", help="judge Solutions")
    out.add_argument("run", type=Path, metavar="RUN", help="a folder that compare.run wrote")
    for one in (out, into):
        one.add_argument("folder", type=Path, metavar="FOLDER", help="in flashinfer-bench's layout")
    into.add_argument("--solutions", default="*", metavar="GLOB", help="which, by their names; default all")
    into.add_argument("--rows", type=at_least_one, help="of each Definition, those of the fewest keys; default all")
    into.add_argument("--time-limit", type=seconds, metavar="SECONDS", help="of one call; default 60")


@refusing(SpecError, NotARun)
def main(asked: argparse.Namespace) -> int:
    return export(asked) if asked.way == "export" else import_(asked)
