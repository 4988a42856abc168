"""Whether `explain --pair` is right: its estimate and the cause that it names, beside measured pairs and ablations.

    python -m compare study pairs                         prints what docs/why-slower.md quotes
    python -m compare study pairs --write                 writes it there
    python -m compare study pairs --rows 3                the first rows alone, of which each takes half a minute

A pair is one rung in Triton and in Helion on a row of a committed run, or an ablation and its rung. Each launch is
compiled again at the recorded config. Clocks are read from SASS where a tile has the timed code's instructions, within
5%; otherwise both kernels of the pair are estimated from the facts of the timed code.
Exit codes: 0; 2 for a run or GPU that is none; 5 where nothing was measured.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import gpus
from compare import stats
from compare.analysis import merge, verdict
from compare.analysis.runs import RunData, read
from compare.analysis.tables import of_page
from compare.analysis.verdict import Outcome, Verdict
from compare.exits import NOTHING, OK, refusing, say
from compare.record.folder import ROOT, NotARun
from compare.record.records import Record
from compare.static import pair
from compare.static.compile import Compilation, compile_in_child
from compare.studies.estimates import RESULTS, rows
from compare.workloads import Workload

HELP = "the estimate and the cause of `explain --pair` beside measured pairs and ablations"
PAGE = ROOT / "docs" / "why-slower.md"
BLOCK = re.compile(r"(<!-- pairs: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
AS_TIMED = 0.05  # part by which instructions of a tile may differ from the timed code's
EXAMPLES = (
    ("q2k", "triton/q_block", "helion/q_block"), ("q2k", "helion/q_block", "helion/ablations.idiomatic"),
    ("32q1s2k~", "helion/q_block", "helion/ablations.idiomatic"), ("q1s512", "triton/naive", "helion/naive"),
)  # fmt: skip


@dataclass(frozen=True)
class Ablation:
    """A known difference between two kernels. rows: the class or the labels where it exists. causes: the trades that
    explain it; empty where it changes less than the margin."""

    run: str
    kernel: str
    against: str
    rows: str
    causes: tuple[str, ...]
    words: str


_DSLS = ("triton", "helion")
ABLATIONS = (
    *(
        one
        for dsl in _DSLS
        for one in (
            Ablation("ablations", f"{dsl}/ablations.elementwise", f"{dsl}/q_block", "", ("matrix",),
                     "sums for products"),
            Ablation("ablations", f"{dsl}/ablations.fused", f"{dsl}/q_block", "decode", ("programs", "loads"),
                     "a prompt's registers, shared memory and stages"),
            Ablation("ablations", f"{dsl}/ablations.cumulative", f"{dsl}/q_block", "", (), "another search"),
            Ablation("peers", f"{dsl}/q_block", f"{dsl}/parallel_softmax", "q1s2k,q1s8k,q1s32k,q1s128k", ("cut",),
                     "no segments"),
        )
    ),
    Ablation("idiomatic", "helion/ablations.idiomatic", "helion/q_block", "prefill", ("mask", "address"),
             "masks in each tile, and their positions"),
    Ablation("peers", "helion/unpaged", "triton/unpaged", "q2k,q8k", ("matrix",), "products wait for Q in registers"),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A measured pair and its explanation. ratio, estimate: the kernel's time over the other's, measured and estimated.
    cause: None where the estimates are alike. simulated: whether clocks come from SASS."""

    verdict: Verdict
    estimate: float
    cause: pair.Trade | None
    simulated: bool

    @property
    def ratio(self) -> float:
        return 1 / self.verdict.speed.ratio

    @property
    def said(self) -> Outcome:
        if self.cause is None:
            return Outcome.SAME
        return Outcome.SLOWER if self.estimate > 1 else Outcome.FASTER


def _job(record: Record, row: Workload) -> Compilation:
    """The launch to compile: the record's kernel at its config; of `auto`, the rung that it chose."""
    kernel, config = record.kernel, dict(record.config or {})
    if kernel.endswith("/auto"):
        kernel, config = kernel.replace("auto", config["kernel"]), config["config"]
    return Compilation(row, kernel, config)


def _instructions(facts: pair.Facts) -> int:
    loop = pair.loop_of(facts)
    return loop["instructions"] if loop else 0


def as_timed(compiled: Sequence[pair.Facts], timed: Sequence[pair.Facts]) -> bool:
    """Whether a tile of each launch has as many instructions as in the timed code."""
    each = [(_instructions(a), _instructions(b)) for a, b in zip(compiled, timed, strict=False)]
    return len(compiled) == len(timed) and all(abs(a - b) <= AS_TIMED * b for a, b in each)


_ALIKE = {"_cumulative_kernel": "_q_block_kernel", "_fused_kernel": "_q_block_kernel"}


def _side(row: Workload, record: Record, facts: Sequence[pair.Facts], gpu: gpus.Gpu) -> pair.Side:
    """The estimate of one kernel; an ablation has the rule of the rung that it varies."""
    kernel, config = record.kernel, dict(record.config or {})
    if "ablations." in kernel and not kernel.endswith("idiomatic"):
        kernel = f"{kernel.partition('/')[0]}/q_block"
        config |= {name.removeprefix("decode_"): size for name, size in config.items() if name.startswith("decode_")}
        facts = [{**one, "kernel": _ALIKE.get(one["kernel"].removeprefix("_helion_"), one["kernel"])} for one in facts]
    return pair.side(row, kernel, config, facts, gpu)


def cases(found: Iterable[tuple[Verdict, Record, Record]], gpu: gpus.Gpu) -> Iterator[Case | None]:
    """What is said of each measured pair; None where the model has no rule."""
    known, found = rows(), list(found)
    both = [(known[mine.workload.id], one) for _, mine, other in found for one in (mine, other)]
    jobs = {job.to_json(): job for row, record in both if (job := _job(record, row))}
    compiled = dict(zip(jobs, compile_in_child(jobs.values(), gpu), strict=True))
    for judged, *records in found:
        row = known[judged.workload.id]
        facts = [compiled[_job(record, row).to_json()].facts for record in records]
        fresh = all(as_timed(new, record.facts) for new, record in zip(facts, records, strict=True))
        facts = facts if fresh else [record.facts for record in records]
        try:
            mine, other = (_side(row, one, fact, gpu) for one, fact in zip(records, facts, strict=True))
        except pair.NoEstimate:
            yield None
            continue
        simulated = fresh and all(pair.loop_of(fact)["cold"] for fact in facts[0] if pair.loop_of(fact))
        yield Case(judged, mine.us / other.us, pair.cause(*pair.ordered((mine, other))), simulated)


def pairs(run: RunData, against: verdict.Pairs, some: int | None) -> list[tuple[Verdict, Record, Record]]:
    """The verdicts of a run's pairs with the records that have the facts of the timed code."""
    facts = {(record.workload.id, record.kernel): record for record in run.raw if record.facts}
    kept = list(dict.fromkeys(record.workload.id for record in run.raw))[:some]
    return [
        (one, facts[one.workload.id, one.kernel], facts[one.workload.id, one.against])
        for one in verdict.judge(run.raw, against)
        if one.workload.id in kept and {(one.workload.id, k) for k in (one.kernel, one.against)} <= facts.keys()
    ]


def _made(one: Verdict, ablation: Ablation) -> bool:
    """Whether the ablation's difference exists on the row."""
    return not ablation.rows or ablation.rows == one.workload.kind or one.workload.label in ablation.rows.split(",")


def _table(columns: str, body: Sequence[Sequence[Any]]) -> str:
    return of_page([(name, i > 0) for i, name in enumerate(columns.split(", "))], body)


def score(asked: Sequence[Case | None]) -> str:
    """Measured against estimated, then by the cause that is named."""
    found = [one for one in asked if one]
    order = [Outcome.SLOWER, Outcome.FASTER, Outcome.SAME, Outcome.AMBIGUOUS]
    body = []
    for outcome in order:
        mine = [one for one in found if one.verdict.outcome is outcome]
        each = Counter(one.said for one in mine)
        body.append([f"measured {outcome}", len(mine), *(each[said] for said in order[:3])])
    apart = [one for one in found if one.verdict.outcome in order[:2]]
    told = [one for one in apart if one.said is not Outcome.SAME]
    right = sum(one.said is one.verdict.outcome for one in told)
    lean = sum((one.estimate > 1) == (one.ratio > 1) for one in apart)
    words = [
        f"{len(asked)} pairs; the model has a rule for {len(found)}, and {sum(one.simulated for one in found)} are",
        f"read from SASS. Of {len(apart)} measured more than {verdict.MARGIN:.0%} apart, {len(told)} are estimated",
        f"apart, {right} of these in the measured order; with those estimated alike {lean} lean the right way.",
    ]
    table = _table("Helion's kernel, pairs, estimated slower, faster, alike", body)
    return f"{' '.join(words)}\n\n{table}\n\n{by_cause(found)}"


def by_cause(found: Sequence[Case]) -> str:
    body = []
    for name, many in Counter(one.cause.name if one.cause else "none: alike" for one in found).most_common():
        mine = [one for one in found if (one.cause.name if one.cause else "none: alike") == name]
        apart = [one for one in mine if one.verdict.outcome in (Outcome.SLOWER, Outcome.FASTER)]
        right = sum(one.said is one.verdict.outcome for one in apart)
        means = (f"{stats.geomean(values):.2f}" for values in ([x.ratio for x in mine], [x.estimate for x in mine]))
        kernels = ", ".join(f"`{k.partition('/')[2]}`" for k in dict.fromkeys(x.verdict.kernel for x in mine))
        body.append([name, many, f"{right} of {len(apart)}", *means, kernels])
    return _table("cause, pairs, in order, time over Triton's, estimated, kernels", body)


def causes(found: Sequence[tuple[Ablation, Case]]) -> str:
    """Each ablation: on how many rows the named cause is the difference that was made."""
    body, right = [], 0
    for ablation in dict.fromkeys(one for one, _ in found):
        mine = [case for one, case in found if one == ablation]
        named = Counter(case.cause.name if case.cause else "none" for case in mine)
        hit = sum(many for name, many in named.items() if name in (ablation.causes or ("none",)))
        right += hit
        told = ", ".join(f"{name} {many}" for name, many in named.most_common())
        means = (f"{stats.geomean(values):.2f}" for values in ([x.ratio for x in mine], [x.estimate for x in mine]))
        body.append([f"`{ablation.kernel}`, `{ablation.against}`", len(mine), *means, hit, told, ablation.words])
    words = f"On {right} of {len(found)} rows the sentence names the difference that was made."
    return f"{words}\n\n{_table('kernel and its rung, rows, time over the rung, estimated, right, named, made', body)}"


def examples(gpu: gpus.Gpu, known: dict[str, Workload]) -> str:
    """Whole outputs."""
    parts = []
    for label, *kernels in EXAMPLES:
        row = next(row for row in known.values() if row.label == label)
        parts.append(f"### {label}: {', '.join(kernels)}")
        command = f"$ python -m compare explain {label} --gpu {gpu.name} --pair {' '.join(kernels)}"
        parts.append("\n".join(["```", command, *pair.told(row, kernels, gpu), "```"]))
    return "\n\n".join(parts)


def blocks(gpu: gpus.Gpu, results: Path, some: int | None) -> dict[str, str]:
    """The blocks of the page. Raises NotARun, ValueError."""
    import triton

    run = {name: merge.as_one(read(results / gpu.name / name)) for name in dict.fromkeys(a.run for a in ABLATIONS)}
    twins = list(cases(pairs(run["peers"], verdict.twin_pairs(run["peers"].raw), some), gpu))
    known = [
        (one, entry)
        for one in ABLATIONS
        for entry in pairs(run[one.run], [(one.kernel, one.against)], some)
        if _made(entry[0], one)
    ]
    judged = zip((one for one, _ in known), cases([entry for _, entry in known], gpu), strict=True)
    judged = [(one, case) for one, case in judged if case]
    timed = ", ".join(
        sorted({part.manifest["versions"]["triton"] for one in run.values() for part in merge.parts(one)})
    )
    head = f"Compiled by Triton {triton.__version__}, timed with {timed}. "
    return {"score": head + score(twins), "causes": causes(judged), "examples": examples(gpu, rows())}


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--gpu", default="h200", help="whose runs in docs/results (default h200)")
    new.add_argument("--rows", type=int, help="the first rows of each run alone")
    new.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")


@refusing(gpus.UnknownGpu, NotARun, ValueError, OSError)
def main(asked: argparse.Namespace) -> int:
    try:
        made = blocks(gpus.resolve(asked.gpu), RESULTS, asked.rows)
    except pair.NotCompiled as error:
        say(error)
        return NOTHING
    if not asked.write:
        print("\n\n".join(made.values()))
        return OK
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(lambda found: f"{found[1]}{made[found['name']]}\n{found[3]}", text), encoding="utf-8")
    return OK
