"""What each kernel can do, from a conformance run: supported, impossible (with the DSL's error) or not yet.

The file of a run has a line that says what ran, then a line for each kernel, case and dtype; on a GPU
tests/gpu/test_gpu_conformance.py writes it, with all cases. A kernel supports an aspect where every case of it passed
and at least one did. `not yet` means that it refuses the aspect by a typed error that names it. Constructs that a DSL
cannot express are in compare.studies.constructs, each with the error that a test provokes.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.cases.case import Case
from common.cases.named import BY_NAME
from common.spec import Layout
from compare.analysis import markup
from compare.competitors import registry, sources
from compare.record import folder as run_folder
from compare.studies import template
from compare.studies.constructs import CONSTRUCTS

# The rows of the capability matrix, and which named cases belong to each.


def _power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _empty(case: Case) -> bool:
    return any(query_len == 0 or seq_len == 0 for query_len, seq_len in case.lens)


@dataclass(frozen=True)
class Aspect:
    """A row of the matrix. has(case, dtype): whether a cell belongs to it. feature: its name in SUPPORTS."""

    name: str
    has: Callable[[Case, str], bool]
    feature: str | None = None


def _asked(name: str, member: str) -> Aspect:
    """The aspect of all cases that ask for a member of SUPPORTS."""
    return Aspect(name, lambda case, _: case.refused is None and member in case.asked, member)


FEATURES = {
    "ALiBi": "alibi",
    "ALiBi by square roots": "alibi_sqrt",
    "chunks with lookback": "chunked_local",
    "spans (prefix-LM)": "prefix_lm",
    "causality per sequence": "causal_per_sequence",
    "cross attention": "cross",
    "tree bias": "tree_bias",
    "V of another head size": "value_size",
    "heads to 512": "head_size_512",
    "fp8 cache": "fp8_kv",
    "int8 cache": "int8_kv",
    "fp8 query": "fp8_query",
    "fp8 output": "fp8_out",
    "batch-invariant": "batch_invariant",
}
ASPECTS: tuple[Aspect, ...] = (
    Aspect("causal", lambda case, _: case.ask.causal, "causal"),
    Aspect("not causal", lambda case, _: not case.ask.causal, "non_causal"),
    Aspect("sliding window", lambda case, _: case.ask.sliding_window is not None, "sliding_window"),
    Aspect("soft cap", lambda case, _: case.ask.softcap is not None, "softcap"),
    Aspect("sinks", lambda case, _: case.ask.sinks is not None, "sinks"),
    Aspect("LSE", lambda case, _: case.refused is None, "lse"),
    *(_asked(name, member) for name, member in FEATURES.items()),
    Aspect("bf16", lambda _, dtype: dtype == "bfloat16"),
    Aspect("fp16", lambda _, dtype: dtype == "float16"),
    Aspect("fp32", lambda _, dtype: dtype == "float32"),
    Aspect("a head size that is no power of two", lambda case, _: not _power_of_two(case.head_size)),
    Aspect("a GQA ratio that is no power of two", lambda c, _: not _power_of_two(c.heads[0] // c.heads[1])),
    Aspect("a GQA ratio above 16", lambda case, _: case.heads[0] // case.heads[1] > 16),
    Aspect("a page that is no power of two", lambda c, _: not _power_of_two(c.block_size)),
    Aspect("an interleaved cache", lambda case, _: case.style == "interleaved"),
    Aspect("an x-packed cache", lambda case, _: case.layout is Layout.X_PACKED, "x_packed"),
    Aspect("the step's new K and V handed over", lambda case, _: case.new_kv),
    Aspect("sequences without keys or queries", lambda case, _: _empty(case)),
    Aspect("rows of padding", lambda case, _: case.pad_tokens > 0),
    Aspect("wrong hints of the lengths", lambda case, _: "hints-" in case.name),
    Aspect("malformed batches refused by name", lambda case, _: case.refused is not None),
)


RESULTS = run_folder.ROOT / "docs" / "results" / "conformance" / "cells.jsonl"
SUPPORTED, NOT_YET, FAILED, NOT_RUN = "supported", "not yet", "failed", "not run"
OUTCOMES = ("supported", "unsupported", "refused", "failed")


@dataclass(frozen=True)
class Entry:
    """state: SUPPORTED, NOT_YET, FAILED or NOT_RUN; passed: how many cases passed; error: of one that did not."""

    state: str
    passed: int = 0
    error: str = ""

    @property
    def text(self) -> str:
        return f"{self.passed}" if self.state == SUPPORTED else self.state


@dataclass(frozen=True)
class Results:
    """A conformance run. meta: date, commit, device, versions, kernels {id: {supports, source_sha}}; cells as
    written."""

    meta: dict[str, Any]
    cells: tuple[dict[str, Any], ...]

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(self.meta["kernels"])


class NoResults(ValueError):
    """The file is no conformance run; the message names file and line."""


def read(path: Path) -> Results:
    """Read a conformance run. Raises NoResults naming file and line."""
    if not path.is_file():
        raise NoResults(f"{path}: found no file, allowed what --conformance-out wrote")
    meta, cells = None, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            plain = json.loads(line)
            if number == 1:
                meta = plain["meta"]
            elif plain["outcome"] not in OUTCOMES or plain["case"] not in BY_NAME:
                raise ValueError(f"found {plain['outcome']} of {plain['case']}")
            else:
                cells.append(plain)
        except (ValueError, KeyError, TypeError) as error:
            raise NoResults(f"{path}, line {number}: {error}, allowed a cell of a conformance run") from error
    if meta is None:
        raise NoResults(f"{path}, line 1: found nothing, allowed a line that says what ran")
    return Results(meta, tuple(cells))


def _known(kernel_id: str) -> dict[str, Any]:
    kernel = registry.load(kernel_id)
    return {"supports": sorted(kernel.SUPPORTS), "source_sha": sources.sha(kernel)}


def _kept(path: Path, device: str) -> list[dict[str, Any]]:
    """Cells of an earlier run on the same device whose kernel is unchanged: a run may come in parts."""
    if not path.is_file():
        return []
    before = read(path)
    same = before.meta["device"] == device
    fresh = {kernel for kernel, known in before.meta["kernels"].items() if same and known == _known(kernel)}
    return [cell for cell in before.cells if cell["kernel"] in fresh]


def write(path: Path, cells: Iterable[dict[str, Any]], device: str) -> None:
    """Write a results file, with the earlier cells of unchanged kernels; sorted, so that repeating it changes line 1
    only.

    Raises NoResults where `path` holds something else.
    """
    found = {(c["kernel"], c["case"], c["dtype"]): c for c in (*_kept(path, device), *cells)}
    ordered = [found[key] for key in sorted(found)]
    ids = [kernel for kernel in registry.OWN if any(cell["kernel"] == kernel for cell in ordered)]
    meta = {
        "date": run_folder.now()[:10],
        "commit": run_folder.commit(),
        "device": device,
        "versions": run_folder.versions(),
        "kernels": {kernel: _known(kernel) for kernel in ids},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"meta": meta}), *(json.dumps(cell) for cell in ordered)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def entry(results: Results, kernel: str, aspect: Aspect) -> Entry:
    """What the run says about one aspect of one kernel. A refusal for another feature of a case does not count."""
    mine = [c for c in results.cells if c["kernel"] == kernel and aspect.has(BY_NAME[c["case"]], c["dtype"])]
    failed = [cell for cell in mine if cell["outcome"] == "failed"]
    if failed:
        return Entry(FAILED, error=failed[0]["reason"])
    if aspect.feature and aspect.feature not in results.meta["kernels"][kernel]["supports"]:
        named = [c["reason"] for c in mine if c["outcome"] == "unsupported" and c["argument"] == aspect.feature]
        return Entry(NOT_YET, error=named[0]) if named else Entry(NOT_RUN)
    passed = sum(cell["outcome"] in ("supported", "refused") for cell in mine)
    return Entry(SUPPORTED, passed) if passed else Entry(NOT_RUN)


def matrix(results: Results) -> list[dict[str, Any]]:
    """One row an aspect: {"aspect": name, kernel id: Entry, ...}."""
    return [{"aspect": a.name} | {k: entry(results, k, a) for k in results.kernels} for a in ASPECTS]


def differences(results: Results, one: str, other: str) -> str:
    """The aspects in which two kernels differ, as text; empty where they may be compared."""
    absent = [kernel for kernel in (one, other) if kernel not in results.kernels]
    if absent:
        return f"{', '.join(absent)} is not in the conformance run"
    states = [(a.name, *(entry(results, kernel, a).state for kernel in (one, other))) for a in ASPECTS]
    return "; ".join(f"{aspect}: {a} against {b}" for aspect, a, b in states if a != b)


def _conformance(results: Results) -> list[str]:
    lines, notes = [], {}
    for dsl in ("triton", "helion"):
        kernels = [kernel for kernel in results.kernels if kernel.startswith(f"{dsl}/")]
        body = []
        for row in matrix(results):
            body.append([row["aspect"], *(row[kernel].text for kernel in kernels)])
            wrong = [(kernel, row[kernel]) for kernel in kernels if row[kernel].error]
            notes |= {(row["aspect"], found.error.replace(kernel, "KERNEL")): "" for kernel, found in wrong}
        header = ["", *(kernel.split("/")[1] for kernel in kernels)]
        lines += [f"### {dsl.capitalize()}", "", markup.table(header, body, len(header)), ""]
    if notes:
        lines += ["What a kernel says that does not do it:", ""]
        lines += [f"- {aspect}: `{error}`" for aspect, error in notes]
    return lines


def _capturable(meta: dict[str, Any]) -> str:
    able = [kernel for kernel, known in meta["kernels"].items() if "full_graph" in known["supports"]]
    return "Every kernel declares" if len(able) == len(meta["kernels"]) else f"{len(able)} kernels declare"


def _absent(results: Results) -> list[str]:
    left = [kernel for kernel in registry.OWN if kernel not in results.kernels]
    return [f"Not in this run: {', '.join(f'`{kernel}`' for kernel in left)}.", ""] if left else []


def render(results: Results) -> str:
    """The text of docs/capability.md."""
    meta = results.meta
    counted = {outcome: sum(cell["outcome"] == outcome for cell in results.cells) for outcome in OUTCOMES}
    numbers = ", ".join(f"{count} {outcome}" for outcome, count in counted.items() if count)
    constructs = ([c.what, c.triton, c.helion, f"`{c.error}`" if c.error else ""] for c in CONSTRUCTS)
    header = ["what", "Triton", "Helion", "Helion's error, or Triton's"]
    return template("capability").format(
        date=meta["date"], device=meta["device"], commit=meta["commit"],
        versions=", ".join(f"{name} {version}" for name, version in meta["versions"].items()),
        cells=f"{len(results.cells)} cells: {numbers}", capturable=_capturable(meta),
        aspects="\n".join([*_absent(results), *_conformance(results)]),
        constructs=markup.table(header, constructs, len(header)),
    )  # fmt: skip
