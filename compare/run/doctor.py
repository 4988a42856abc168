"""Can this machine measure? Its environment, then equal things timed as if they were different, and a known difference.

    python -m compare doctor [--gpu auto] [--kernel triton/q_block] [--processes 3] [--max-time 1] [--out noise.json]

Two twins of one kernel must come out `same` (A/A), and 21 of its calls must be found slower than 20
(compare.competitors.twins). By how much the twins differ is the noise floor, kept as JSON that `diff` reads
(compare.record.noise). Exit codes: 0; 1 a verdict was wrong, or a twin did not run; 2 usage; 3
`--require-gpu`, and the GPU is not here; 130 interrupted.
"""

import argparse
import contextlib
import importlib.util
import itertools
import math
import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from common.gpus import Gpu, UnknownGpu
from compare.analysis import verdict
from compare.analysis.verdict import Outcome, Series, Verdict
from compare.bench.clocks import Clocks, readers, vendor
from compare.competitors import registry
from compare.competitors import twins as kernel_twins
from compare.exits import NO_GPU, OK, WRONG, refusing, say
from compare.plan.plan import Plan
from compare.plan.selection import Selection
from compare.plan.situation import Situation, situation
from compare.process.crew import Crew
from compare.record import folder as run_folder
from compare.record.contract import PROCESSES, Contract
from compare.record.noise import Noise, kept
from compare.record.records import Timing, WorkloadInfo
from compare.workloads import GrammarError, Workload, parse_lens
from compare.workloads.cost import info
from compare.workloads.numbers import at_least_one, positive

HELP = "test whether this machine can measure"

# What the doctor says of a machine: the GPU and its state, versions, and what would disturb or is missing.


DISK_BYTES = 2 * 2**30  # of results, figures and compiled code
# What a part can do without, and what is lost: a missing package is named before anything runs.
OPTIONAL = {"helion": "every kernel of dsl_helion", "scipy": "tune --fit", "matplotlib": "figures"}
# Variables that change what is compiled or which GPU is seen, and why one should know.
TELLING = {
    "TRITON_INTERPRET": "kernels would be interpreted",
    "TRITON_CACHE_DIR": "compiled code lies elsewhere",
    "TRITON_ALWAYS_COMPILE": "no compiled code is kept: processes after the first are no cheaper",
    "CUDA_LAUNCH_BLOCKING": "every launch waits: host time is not what it is",
    "HIP_LAUNCH_BLOCKING": "every launch waits: host time is not what it is",
    "AMD_SERIALIZE_KERNEL": "every launch waits: host time is not what it is",
    "HSA_OVERRIDE_GFX_VERSION": "code is compiled for another GPU than the one that is here",
    "ROCR_VISIBLE_DEVICES": "hides GPUs below HIP's own mask, and both may be set",
    "HIP_VISIBLE_DEVICES": "which GPUs are seen",
    "CUDA_VISIBLE_DEVICES": "which GPUs are seen",
}


def of_gpu(gpu: Gpu, device: torch.device) -> dict[str, Any]:
    """Facts of the GPU that is here: names and values, as text or numbers."""
    properties = torch.cuda.get_device_properties(device)
    found: dict[str, Any] = {"GPU": gpu.title, "torch calls it": properties.name, "units": gpu.units}
    found["memory, GiB"] = round(properties.total_memory / 2**30, 1)
    found |= vendor().facts(device)
    clocks = Clocks(device)
    clocks.begin()
    state = clocks.end()
    return found | ({"SM clock now, MHz": state["sm_mhz"][1], "throttled by": state["throttle"]} if state else {})


def versions() -> dict[str, str]:
    built = torch.version.cuda or torch.version.hip
    return run_folder.versions() | ({"torch built for": built} if built else {})


def lacking() -> list[str]:
    """One line for each package that is not here and what it costs."""
    found = [f"{name} is not installed: without {lost}" for name, lost in OPTIONAL.items() if not _here(name)]
    try:
        registry.load("baseline/flash_attn3")
    except registry.Unavailable as error:
        found.append(f"FlashAttention 3 is not here: its rows say unavailable ({error})")
    return found


def _here(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def warnings(device: torch.device | None) -> list[str]:
    """One line for each thing that is missing, or that would disturb a measurement. device: None without a GPU."""
    found = lacking()
    found += [f"{name}={os.environ[name]}: {why}" for name, why in TELLING.items() if name in os.environ]
    free = shutil.disk_usage(Path.cwd()).free
    if free < DISK_BYTES:
        found.append(f"{free / 2**30:.1f} GiB of disk are free here: a run needs up to {DISK_BYTES / 2**30:.0f}")
    return found if device is None else found + _unseen(device)


def _unseen(device: torch.device) -> list[str]:
    """What on this host disturbs times, who else uses the GPU, and which facts of it no tool here reports."""
    found = vendor().disturbing()
    try:
        others = [one for one in vendor().users(vendor().address(device)) if one[0] != os.getpid()]
    except Exception as error:  # amdsmi: no package, no driver, no right to ask
        others = []
        found.append(f"whether other processes use the GPU is not known ({type(error).__name__}: {error})")
    if others:
        listed = "; ".join(f"{pid}, {mib}" for pid, mib in others)
        found.append(f"{len(others)} other processes use the GPU (pid, MiB): {listed}")
    if not Clocks(device).end():
        tools = ", ".join(dict.fromkeys(source for source, _, _ in readers(device)))
        found.append(f"none of {tools} tells the SM clock: throttling would not be seen")
    return found


# A short and a wider decode, a short prompt, and a mixture whose calls are long.
ROWS = ("q1s2k", "8q1s2k", "q512", "16q1s2k_16q512s1536")
KINDS = ("first", "second", "block", "slow")
MAX_TIME_S = 1.0

Samples = Mapping[int, Sequence[float]]  # of each process, in the order of rounds


def series(load: WorkloadInfo, kind: str, samples: Samples) -> Series:
    return Series(load, kind, {p: tuple(rounds) for p, rounds in samples.items()}, "interleaved", noisy=False)


def within(first: Samples, second: Samples) -> float:
    """|ratio - 1| of two twins side by side, the largest over the processes."""
    gaps = [
        abs(statistics.median(math.log(b / a) for a, b in zip(first[p], second[p], strict=True)))
        for p in sorted(set(first) & set(second))
    ]
    return math.expm1(max(gaps, default=0.0))


def between(*twins: Samples) -> float:
    """|ratio - 1| of one kernel's medians in two processes, the largest over pairs of them; 0 for one process."""
    gaps = [0.0]
    for samples in twins:
        medians = [math.log(statistics.median(rounds)) for rounds in samples.values()]
        gaps += [abs(a - b) for a, b in itertools.combinations(medians, 2)]
    return math.expm1(max(gaps))


def _said(judged: Verdict) -> dict[str, Any]:
    ratio = judged.speed.inverse()  # of times: above 1 is slower
    return {"outcome": str(judged.outcome), "ratio": ratio.ratio, "low": ratio.low, "high": ratio.high}


def judge(load: WorkloadInfo, samples: Mapping[str, Samples], calls: int) -> dict[str, Any]:
    """One row of the floor: what equal and unequal twins came out as. samples[kind][process]; calls: of a sample of the
    first twin. `block_us`: per call, of those that the planted slowness is judged by; about `us` where both are cold.
    """
    first, second, block, slow = (series(load, kind, samples[kind]) for kind in KINDS)
    return {
        "workload": load.label,
        "kind": load.kind,
        "us": first.median_us,
        "block_us": block.median_us / kernel_twins.BLOCK,
        "calls": calls,
        "within": within(first.samples, second.samples),
        "between": between(first.samples, second.samples),
        "aa": _said(verdict.compare(second, first)),
        "planted": _said(verdict.compare(slow, block)),
    }


def sound(row: Mapping[str, Any]) -> bool:
    """Whether both verdicts of a row are right."""
    return row["aa"]["outcome"] == Outcome.SAME and row["planted"]["outcome"] == Outcome.SLOWER


class NotMeasured(RuntimeError):
    """A twin did not end ok; the message names it, its row and the reason."""


def planned(now: Situation, kernel: str, contract: Contract, rows: Sequence[Workload]) -> Plan:
    """The twins of a kernel on every row."""
    kinds = tuple(kernel_twins.name_of(kind, kernel) for kind in KINDS)
    return Plan.over(now, Selection("doctor", tuple(rows), kinds), contract)


def measured(plan: Plan, kernel: str, console: Console) -> dict[str, dict[str, dict[int, Timing]]]:
    """timings[label][kind][process]. Raises NotMeasured."""
    kinds, contract = {kernel_twins.name_of(kind, kernel): kind for kind in KINDS}, plan.contract
    found: dict[str, dict[str, dict[int, Timing]]] = {}
    for process in range(contract.processes):
        crew = Crew(mode="measure", gpu=plan.gpu, device=plan.device, contract=contract, process=process)
        with contextlib.closing(crew):
            for job in plan.jobs:
                console.print(f"process {process + 1} of {contract.processes}: {job.workload.label}", style="dim")
                for outcome in crew.run(job):
                    kind, label, fields = kinds[outcome.cell.kernel], job.workload.label, outcome.fields
                    if not fields.get("timing"):
                        reason = f"{fields['status']}: {fields['reason']}"
                        raise NotMeasured(f"{kernel} ({kind} twin) on {label}: {reason}\n{fields.get('log_tail', '')}")
                    found.setdefault(label, {}).setdefault(kind, {})[process] = Timing(**fields["timing"])
    return found


def floor(gpu: str, kernel: str, contract: Contract, rows: Sequence[dict[str, Any]]) -> Noise:
    """The noise floor that rows of `judge` amount to."""
    return Noise(
        gpu=gpu,
        contract=contract.name,
        kernel=kernel,
        processes=contract.processes,
        within=max(row["within"] for row in rows),
        between=max(row["between"] for row in rows),
        measured=run_folder.now(),
        commit=run_folder.commit(),
        versions=versions(),
        rows=tuple(rows),
    )


def _line(row: Mapping[str, Any]) -> str:
    def said(judged: Mapping[str, Any]) -> str:
        return f"{judged['ratio']:.4f} [{judged['low']:.4f}, {judged['high']:.4f}] {judged['outcome']}"

    return (
        f"{row['workload']:22}{row['us']:9.2f} us   A/A {said(row['aa'])}   planted {said(row['planted'])}"
        f"   within {row['within']:.2%}   between {row['between']:.2%}"
    )


def _without_gpu(console: Console, line: str) -> None:
    console.print(line, markup=False)
    for words in (
        "can: check every kernel in the interpreter, compile for a GPU that is named, report, compare stored runs",
        "cannot: time anything, so there is no noise floor and no verdict on speed",
    ):
        console.print(f"  {words}", markup=False, soft_wrap=True)


def _environment(console: Console, now: Situation) -> None:
    device = torch.device(now.device) if now.measure else None
    facts = of_gpu(now.target, device) if device else {}
    for name, value in (facts | versions()).items():
        console.print(f"  {name:24}{value}", markup=False, soft_wrap=True)
    for warning in warnings(device):
        console.print(f"  ! {warning}", markup=False, soft_wrap=True, style="yellow")


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--gpu", default="auto", help="assert that this GPU is here (default: the one that is)")
    new.add_argument("--require-gpu", action="store_true", help="exit 3 unless the GPU is here")
    new.add_argument("--device", help="torch device (cuda:0)")
    new.add_argument("--kernel", default="triton/q_block", help="whose twins are timed (default triton/q_block)")
    new.add_argument("--workload", default=",".join(ROWS), help="comma-separated batches, as 32q1s2k")
    new.add_argument("--processes", type=at_least_one, default=PROCESSES, help=f"default {PROCESSES}")
    new.add_argument("--max-time", type=positive, default=MAX_TIME_S, metavar="S", help="of a row and process")
    new.add_argument("--out", type=Path, metavar="FILE", help="or folder (default results/noise_<gpu>.json)")


def _live(console: Console, asked: argparse.Namespace, now: Situation, rows: Sequence[Workload]) -> int:
    contract = Contract(max_time_s=asked.max_time, processes=asked.processes)
    out = asked.out or kept(now.name)
    out = out if out.suffix == ".json" else out / "noise.json"
    for path in (out, kept(now.name)):
        run_folder.ensure_writable(path.parent)
    console.print(f"timing contract {contract.line}", markup=False, soft_wrap=True)
    timings = measured(planned(now, asked.kernel, contract, rows), asked.kernel, console)
    judged = []
    for row in rows:
        of_row = timings[row.label]
        samples = {kind: {p: t.samples_us for p, t in of_row[kind].items()} for kind in KINDS}
        first = of_row["first"][0]
        clocks = {p: t.clocks for p, t in of_row["first"].items()}
        judged.append(judge(info(row), samples, first.calls_per_sample) | {"clocks": clocks})
        console.print(_line(judged[-1]), markup=False, soft_wrap=True)
    noise = floor(now.name, asked.kernel, contract, judged)
    for path in (kept(now.name), out):  # the first is where run looks
        noise.write(path)
    wrong = [row["workload"] for row in judged if not sound(row)]
    words = f"noise floor: {noise.within:.2%} within a process, {noise.between:.2%} between processes; {out}"
    console.print(words, markup=False, soft_wrap=True)
    if wrong:
        console.print(f"a verdict was wrong on {', '.join(wrong)}: do not trust differences of this size", markup=False)
    return WRONG if wrong else OK


@refusing(UnknownGpu, GrammarError, registry.UnknownKernel)
def main(asked: argparse.Namespace) -> int:
    console = Console()
    registry.module_path(asked.kernel)
    rows = [Workload(label, parse_lens(label)) for label in asked.workload.split(",")]
    now = situation(asked.gpu, asked.device)
    if not now.measure:
        _without_gpu(console, now.line)
        _environment(console, now)
        return NO_GPU if asked.require_gpu else OK
    console.print(now.line, markup=False)
    _environment(console, now)
    try:
        return _live(console, asked, now, rows)
    except NotMeasured as error:
        say(error)
        return WRONG
