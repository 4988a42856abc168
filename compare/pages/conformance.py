"""How the kit itself was measured: docs/results/conformance/, and what docs/conformance.md quotes of it.

    python -m compare pages reports [--write]

README.md is of kernels of others: `kit/NAME.N.json` are reports of `diptych-check compare.competitors.baselines.NAME
--report FILE`, the last of a case counting; `full/*.jsonl` have a line for each part of the full level that a kernel
was asked; `scripts/` holds a standalone script for each finding, `scripts/h200.log` what they printed. `mutants.jsonl`
is of `study mutation`, `alarms.jsonl` of `study alarms`, `times.jsonl` of `study checking`: of these are mutants.md and
what stands between `<!-- kit: NAME -->` and `<!-- end -->` in PAGES.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from common.cases.named import CASES
from compare.record import folder as run_folder
from compare.studies import alarms as right
from compare.studies import checking
from compare.studies.mutation import first
from compare.studies.mutation import table as mutation

FOLDER = run_folder.ROOT / "docs" / "results" / "conformance"
PAGES = (run_folder.ROOT / "docs" / "conformance.md", FOLDER / "alarms.md")
MUTANTS, ALARMS, TIMES = FOLDER / "mutants.jsonl", FOLDER / "alarms.jsonl", FOLDER / "times.jsonl"
TITLES = {
    "flash_attn3": "FlashAttention 3, vLLM 0.25.1's build",
    "vllm_triton_025": "vLLM 0.25.1, `unified_attention`",
    "vllm_triton_033": "vLLM 0.33.0, `unified_attention`",
    "flex": "torch 2.11 flex_attention",
}
HEAD = """# The kit on kernels of others

Named cases of `common.cases.named`, each in its own dtype (fp16 for fp32 where the library has none), on an NVIDIA H200
(torch 2.11, triton 3.6.0, 2026-11-22), as `diptych-check compare.competitors.baselines.NAME --device cuda --seed 7
--case CASE ...` called them through the adapters of `compare/competitors/baselines`, which declare what each library
documents. `declared` were not asked: the adapter says that the library does not do them. `not run`: the time of the
machine was up. An adapter's choices are ours: a failure below is of the library behind this adapter, at these versions.
"""
FULL_HEAD = """## The full level

Every eighth case of the full level on an NVIDIA H200 (torch 2.11, triton 3.6.0, 2026-11-25), dealt to processes side by
side for 140 s; and every 44th on a CPU through Triton's interpreter (triton 3.7.1): `CPU`. What was not reached by
then, or had no answer within 60 s, was not asked. A refusal by an error counts as a crash where the adapter does not
declare it.
"""
TEMPLATES = Path(__file__).with_name("templates")
FINDINGS, FULL = TEMPLATES / "kit_findings.md", TEMPLATES / "kit_full.md"


def cases() -> dict[str, dict[str, dict[str, Any]]]:
    """Subject -> its cases by name, from the last report of each."""
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in TITLES}
    for path in sorted((FOLDER / "kit").glob("*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        found[path.name.split(".")[0]] |= {case["case"]: case for case in report["cases"]}
    return found


def full() -> list[str]:
    """Two tables of the parts in `full/`: a line a kernel, and the failures."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    failures: dict[tuple[str, str, str], list[str]] = {}
    for path in sorted((FOLDER / "full").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            part = json.loads(line)
            name = part["kernel"].removeprefix("compare.competitors.baselines.")
            counts.setdefault((name, part["where"]), Counter()).update(part["counts"])
            for case, status, reason in (one for one in part["wrong"] if one[1] != "timeout"):
                told = _cell(reason).rpartition("; its last line: ")[2]
                failures.setdefault((name, status, told.removeprefix("call 1: ")), []).append(case)
    lines = ["| kernel | where | asked | right | declared | wrong | crashed |", "|---|---|---:|---:|---:|---:|---:|"]
    for (kernel, where), of in counts.items():
        asked = of.total() - of["timeout"] - of["too_large"]
        cells = (asked, of["ok"], of["declared"], of["incorrect"], of["crash"])
        lines.append(f"| {kernel} | {where} | " + " | ".join(map(str, cells)) + " |")
    lines += ["", "| kernel | status | what the kit said | cases | for example |", "|---|---|---|---:|---|"]
    for (kernel, status, told), cases_of in failures.items():
        lines.append(f"| {kernel} | {status} | {told} | {len(cases_of)} | `{min(cases_of, key=len)}` |")
    return lines


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:160]


def page() -> str:
    """README.md."""
    names = {case.name for case in CASES if not case.refused}
    table = ["", "| kernel | right | declared | wrong or crashed | not run |", "|---|---:|---:|---:|---:|"]
    failures = ["", "## What failed", "", "| kernel | case | status | what the kit said |", "|---|---|---|---|"]
    for subject, seen in cases().items():
        failed = [case for case in seen.values() if case["status"] != "ok" and not case["declared"]]
        count = Counter("declared" if case["declared"] else case["status"] for case in seen.values())
        left = len(names - {name.split("@")[0] for name in seen})
        table.append(f"| {TITLES[subject]} | {count['ok']} | {count['declared']} | {len(failed)} | {left} |")
        failures += [f"| {subject} | `{c['case']}` | {c['status']} | {_cell(c['reason'])} |" for c in failed]
    told = FULL.read_text(encoding="utf-8"), FINDINGS.read_text(encoding="utf-8")
    return "\n".join([HEAD.rstrip("\n"), *table, *failures, "", FULL_HEAD, *full(), "", told[0] + told[1]])


MUTANTS_HEAD = """# The mutation score of the kit

Wrong kernels that were made by themselves, through the calls and the verdict of the kit: each the emulation's source
with one place changed ([operators.py](../../../common/mutants/operators.py)), or wrong at one value of one axis alone
([families.py](../../../common/mutants/families.py)). `{command} --level {level}`, {day}, on a CPU, torch {torch}.
[mutants.jsonl](mutants.jsonl) has each kernel and the case that it dies of. {drawn:,} were drawn; {unborn} do not run
at all and are not counted. A level counts behind those before it.

*Equivalent* are those that gave the bits of the right kernel in every call, and, where they are wrong in a part of the
batches alone, would be right there without that limit; and those that give the right numbers where nothing is rounded,
in float64, as those that cut the keys into other segments. Others that live may be right too, as those that add 0.1% to
what is rounded to fp8: they count as wrong, so the shares are at least these.

"""


def mutants() -> str:
    """mutants.md."""
    run, kernels = mutation.read(MUTANTS)
    level = list(run["cases"])[-1]
    head = MUTANTS_HEAD.format(**run, level=level, unborn=run["drawn"] - len(kernels))
    table = mutation.table(kernels, run["cases"])
    lives = mutation.survivors(kernels, ["first", "smoke"])
    return head + "\n".join([*table, "", "## What lives through smoke", "", *lives, ""])


def scores() -> str:
    """The two summary rows of the mutation score."""
    run, kernels = mutation.read(MUTANTS)
    head, rule, *rows = mutation.table(kernels, run["cases"])
    return "\n".join([head, rule, *(row for row in rows if row.startswith("| all "))])


def alarms() -> str:
    """Each right kernel, how many cases it was asked, and how often it was rejected."""
    head, *found = map(json.loads, ALARMS.read_text(encoding="utf-8").splitlines())
    every = right.num_cases(head["runs"], head["share"])
    said = f"`python -m compare study alarms --runs {head['runs']} --seed {head['seed']} --out FOLDER`"
    return "\n".join([f"{said}, {len(found)} of its {every} cases, drawn from all of them:", "", *right.table(found)])


def times() -> str:
    """Processor time of levels, by kernel."""
    return "\n".join(checking.table(checking.rows(TIMES)))


BLOCK = re.compile(r"<!-- kit: (?P<name>\w+) -->\n.*?<!-- end -->", re.DOTALL)
BLOCKS = {"scores": scores, "alarms": alarms, "first": first.told, "times": times}


def filled(text: str) -> str:
    """A page with every block filled from the committed results."""
    return BLOCK.sub(lambda found: f"<!-- kit: {found['name']} -->\n{BLOCKS[found['name']]()}\n<!-- end -->", text)


def texts() -> dict[Path, str]:
    """The pages by their paths."""
    new = {FOLDER / "README.md": page(), FOLDER / "mutants.md": mutants()}
    return new | {path: filled(path.read_text(encoding="utf-8")) for path in PAGES}
