"""The command line of `python -m compare.run`: its options, and which of three situations they make here."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from common import gpus
from common.gpus import Gpu
from compare import feature_suite, figure_suites, suites, thresholds, trace
from compare.contract import CACHES, MAX_TIME_S, PRECISION, PROCESSES, TIMERS, Contract
from compare.registry import ABLATIONS, BASELINES, HEURISTICS, NATIVE, OWN, select
from compare.workloads import Ask, GrammarError, Workload, parse_lens, parse_shape

_OF_A_BATCH = {"shape": "llama-3-8b", "block_size": 16, "dtype": "bf16"}  # None on the command line: not given
ABSENT_EVERY = 3  # 12 rows of 16 kernels: 64 cells are compiled and executed within 6 minutes on two cores, 192 are not
_OF_A_TRACE = ("batches", "step_ms", "token_us")


def positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"found {text}, allowed a finite number above 0")
    return value


def at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"found {text}, allowed 1 or more")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"found {text}, allowed 0 or more")
    return value


def _add_where(new: argparse.ArgumentParser) -> None:
    where = new.add_argument_group("where and how")
    where.add_argument(
        "--gpu", help="assert that this GPU is here (h200, mi300, auto); absent: compiled for it, no times"
    )
    where.add_argument("--require-gpu", action="store_true", help="exit 3 unless the GPU is here")
    where.add_argument("--device", help="torch device (cuda:0; cpu: the interpreter even where a GPU is)")
    where.add_argument("--out", metavar="DIR", help="the run's own folder (default results/<UTC>_<gpu>_<commit>)")
    where.add_argument(
        "--cpu-budget", type=positive, default=30.0, metavar="S", help="interpreter, a cell (default 30 s)"
    )
    where.add_argument(
        "--timeout", type=positive, default=300.0, metavar="S", help="without a sign of life (default 300 s)"
    )
    where.add_argument(
        "--heuristics",
        choices=HEURISTICS,
        default="tree",
        help="whose configs: the GPU's measured tree where there is one (tree), untuned (default), Listing 2 (paper)",
    )


def share(text: str) -> float:
    """`0.5%` or `0.005`: above 0 and below 1."""
    value = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"found {text}, allowed a share above 0 and below 1, as 0.5%")
    return value


def _add_timing(new: argparse.ArgumentParser) -> None:
    timing = new.add_argument_group("how cells are timed, where a GPU is measured (docs/measuring.md)")
    timing.add_argument("--timer", choices=TIMERS, help="graph (default), events, host, or the paper's protocol")
    timing.add_argument("--cache", choices=CACHES, help="before each call (default cold; the paper's timer: hot)")
    timing.add_argument(
        "--precision",
        type=share,
        default=PRECISION,
        metavar="P",
        help=f"rounds end when the paired 99%% interval is within it (default {100 * PRECISION:g}%%)",
    )
    timing.add_argument(
        "--max-time",
        type=positive,
        default=MAX_TIME_S,
        metavar="S",
        help=f"or when the rounds of a workload and process took this long (default {MAX_TIME_S:g} s)",
    )
    timing.add_argument(
        "--processes", type=at_least_one, default=PROCESSES, metavar="N", help=f"fresh ones (default {PROCESSES})"
    )
    timing.add_argument("--configs", type=_count, default=0, metavar="N", help="N random configs too, graph timer only")


def _add_again(new: argparse.ArgumentParser) -> None:
    again = new.add_argument_group("going on with a run, and against another one (docs/comparing-runs.md)")
    again.add_argument(
        "--resume", nargs="?", const="", metavar="DIR", help="go on in DIR (default --out, else the last of this plan)"
    )
    again.add_argument("--retry", action="store_true", help="with --resume: what failed or was unavailable, once more")
    again.add_argument("--against", metavar="RUN", help="then say what changed since this run, as compare.diff does")
    thresholds.add_options(again)


def refuse_alone(arguments: argparse.Namespace) -> None:
    """Raise GrammarError for an option that says how, without the one that says what."""
    if arguments.retry and arguments.resume is None:
        raise GrammarError("--retry: found alone, allowed with --resume")
    if arguments.fail_on and not arguments.against:
        raise GrammarError("--fail-on: found alone, allowed with --against")
    if arguments.resume and arguments.out and Path(arguments.resume) != Path(arguments.out):
        raise GrammarError(f"--out: found {arguments.out} beside --resume {arguments.resume}, allowed one folder")


def contract(arguments: argparse.Namespace, now: Situation) -> Contract:
    """The timing contract of a run; one process where nothing is timed. Raises GrammarError for what does not fit."""
    timer = arguments.timer or "graph"
    cache = arguments.cache or ("hot" if timer == "paper" else "cold")
    if timer == "paper" and cache == "cold":
        raise GrammarError(
            "--cache: found cold, allowed hot with --timer paper, which repeats one call on the same data"
        )
    if arguments.configs and (timer, cache) != ("graph", "cold"):
        raise GrammarError(f"--configs: found with timer {timer} and cache {cache}, allowed with graph and cold alone")
    processes = arguments.processes if now.measure else 1
    return Contract(timer, cache, arguments.precision, arguments.max_time, processes)


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        prog="python -m compare.run",
        description="Check paged-attention kernels against one spec, time those that are right, and report.",
        epilog="Exit codes: 0 all fine; 1 a wrong or crashed cell; 2 usage; 3 the GPU is required and absent; "
        "4 --fail-on; 5 nothing could run; 130 interrupted, finished cells kept.",
    )
    what = new.add_argument_group("what to compare")
    what.add_argument("--suite", help=f"{', '.join(suites.SUITES)} (default smoke, with static for an absent GPU)")
    what.add_argument(
        "--workload", help="a batch (32q1s2k_16q512s1536); beside --suite or --trace, globs of their rows"
    )
    what.add_argument(
        "--trace", metavar="FILE", help="CSV of TIMESTAMP,ContextTokens,GeneratedTokens: real serving load"
    )
    what.add_argument("--kernels", help="comma-separated ids or globs (triton/*), or package.module[:name]")
    what.add_argument(
        "--shape", help="heads:kv_heads:head_size or a model, of --workload and --trace (default llama-3-8b)"
    )
    what.add_argument("--block-size", type=int, help="tokens of a KV-cache page, of these (default 16)")
    what.add_argument("--dtype", help="bf16 (default), fp16, fp32, of these")
    what.add_argument("--window", type=int, help="sliding window, the query's own token included")
    what.add_argument(
        "--new-kv", action="store_true", help="give kernels the step's new K and V too; the rows get +kv as a suffix"
    )
    what.add_argument("--seed", type=int, default=0, help="of the values; lengths do not move with it")
    _add_where(new)
    _add_timing(new)
    _add_again(new)
    steps = new.add_argument_group("assumptions of --trace")
    steps.add_argument("--batches", type=int, help="steps kept, at even quantiles of KV tokens (default 16)")
    steps.add_argument("--step-ms", type=float, help="fixed part of a step (default 5 ms)")
    steps.add_argument("--token-us", type=float, help="per scheduled token (default 25 us)")
    show = new.add_argument_group("what to print")
    show.add_argument("--list", action="store_true", help="kernels, suites and the selected rows; runs nothing")
    show.add_argument("--dry-run", action="store_true", help="the cells that would run; runs nothing")
    show.add_argument("-q", "--quiet", action="store_true", help="first and last line only")
    show.add_argument("-v", "--verbose", action="store_true", help="log tails of failures as they come")
    show.add_argument("--version", action="store_true", help="spec hash, timing contract and versions")
    return new


@dataclass(frozen=True)
class Situation:
    """What can be done. target: the GPU meant, None for the CPU alone. measure: it is here, and cells are timed."""

    target: Gpu | None
    measure: bool
    device: str
    line: str

    @property
    def absent(self) -> bool:
        """A GPU was named that is not here."""
        return self.target is not None and not self.measure

    @property
    def name(self) -> str:
        return self.target.name if self.target else "cpu"


def situation(asked: str | None, device: str | None) -> Situation:
    """Which of the three situations this is. Raises gpus.UnknownGpu; GrammarError for a device that is not here."""
    on = _device(device)
    here = gpus.detect(on.index) if on.type == "cuda" else None
    if device is not None and on.type == "cuda" and here is None:
        raise GrammarError(f"device: found {device!r}, which is not here, allowed cpu or a GPU that torch sees")
    target = here if asked in (None, "auto") else gpus.resolve(asked)
    if target is None:
        return Situation(None, False, "cpu", "no GPU here: checked in the interpreter on the CPU, nothing is timed")
    if here is not None and here.name == target.name:
        return Situation(target, True, str(on), f"{target.name} is here ({target.title}): checked and timed")
    found = f" (found {here.name})" if here else ""
    return Situation(target, False, "cpu", f"{target.name} is not here{found}: compiled and checked, not timed")


def _device(text: str | None) -> torch.device:
    """cpu or a GPU with its index, the first where none is said. Raises GrammarError."""
    try:
        parsed = torch.device(text or "cuda")
    except RuntimeError:
        parsed = None
    if parsed is None or parsed.type not in ("cpu", "cuda"):
        raise GrammarError(f"device: found {text!r}, allowed cpu, cuda or cuda:<index>")
    return torch.device("cuda", parsed.index or 0) if parsed.type == "cuda" else torch.device("cpu")


@dataclass(frozen=True)
class Selection:
    """The rows and kernels of a run. assumptions: what a reader of the figures has to know about the rows."""

    suite: str
    workloads: tuple[Workload, ...]
    kernels: tuple[str, ...]
    assumptions: tuple[str, ...] = ()
    every: int = 1  # each kernel takes one row of so many


def selection(arguments: argparse.Namespace, now: Situation) -> Selection:
    """What was selected. Raises the typed errors of suites, registry, workloads and trace."""
    chosen = _selected(arguments, now)
    if not arguments.new_kv:
        return chosen
    return replace(chosen, workloads=tuple(row.with_new_kv() for row in chosen.workloads))


def _selected(arguments: argparse.Namespace, now: Situation) -> Selection:
    kernels = OWN + BASELINES * now.measure
    if now.measure and now.target is not None and now.target.arch == "sm_90":
        kernels += tuple(NATIVE)
    if arguments.suite == "ablations":
        kernels = tuple(dict.fromkeys(f"{kernel.split('/')[0]}/{rung}" for kernel, rung in ABLATIONS.items()))
        kernels += tuple(ABLATIONS)
    if arguments.suite == "features":
        kernels = feature_suite.KERNELS
    if arguments.suite in figure_suites.KERNELS:
        wanted = figure_suites.KERNELS[arguments.suite]
        kernels = tuple(kernel for kernel in wanted if now.measure or kernel not in BASELINES)
    if arguments.kernels is not None:
        kernels = select(arguments.kernels)
    _refuse_idle(arguments)
    given = {name: getattr(arguments, name) for name in _OF_A_BATCH if getattr(arguments, name) is not None}
    shape = parse_shape(*(_OF_A_BATCH | given).values())
    ask = Ask(sliding_window=_window(arguments.window))
    if arguments.trace is not None:
        asked = {name: getattr(arguments, name) for name in _OF_A_TRACE if getattr(arguments, name) is not None}
        rule = trace.Rule(**asked)
        rows, notes = trace.workloads(arguments.trace, rule, shape, ask, arguments.seed)
        return Selection("trace", suites.pick(rows, arguments.workload), kernels, notes)
    if arguments.workload is not None and arguments.suite is None:
        row = Workload(arguments.workload, parse_lens(arguments.workload), shape, ask, seed=arguments.seed)
        return Selection("workload", (row,), kernels)
    name = "smoke" if arguments.suite is None else arguments.suite
    rows = suites.suite(name, arguments.seed)
    every, notes = 1, ()
    if now.absent and arguments.suite is None:
        rows += suites.static(arguments.seed)
        if arguments.workload is None and arguments.kernels is None:
            every, notes = ABSENT_EVERY, (f"a kernel takes each {ABSENT_EVERY}rd row; with --kernels it takes all",)
    rows = tuple(
        replace(row, ask=replace(row.ask, sliding_window=ask.sliding_window or row.ask.sliding_window)) for row in rows
    )
    return Selection(name, suites.pick(rows, arguments.workload), kernels, notes, every)


def _refuse_idle(arguments: argparse.Namespace) -> None:
    """Raise GrammarError for an option that the rows asked for would not read."""
    of_a_suite = arguments.trace is None and (arguments.suite is not None or arguments.workload is None)
    idle = ["suite"] if arguments.trace is not None else list(_OF_A_TRACE)
    where = "without --trace" if arguments.trace is not None else "with --trace"
    for name in idle:
        if getattr(arguments, name) is not None:
            raise GrammarError(f"{_flag(name)}: found {getattr(arguments, name)}, allowed {where} alone")
    for name in _OF_A_BATCH if of_a_suite else ():
        if getattr(arguments, name) is not None:
            found = f"found {getattr(arguments, name)} beside a suite, whose rows have their own"
            raise GrammarError(f"{_flag(name)}: {found}; allowed with --trace, or with --workload and no --suite")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _window(window: int | None) -> int | None:
    if window is not None and window < 1:
        raise GrammarError(f"window: found {window}, allowed at least 1")
    return window
