"""The rows and kernels that a command line selects, in a situation."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from compare.competitors.registry import ABLATIONS, BASELINES, NATIVE, OWN, select
from compare.plan.situation import Situation
from compare.workloads import Ask, GrammarError, Workload, parse_lens, parse_shape, suites, trace

_OF_A_BATCH = {"shape": "llama-3-8b", "block_size": 16, "dtype": "bf16"}  # None on the command line: not given
ABSENT_EVERY = 3  # 12 rows of 16 kernels: 64 cells are compiled and executed within 6 minutes on two cores, 192 are not
_OF_A_TRACE = ("batches", "step_ms", "token_us")


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
        kernels = suites.FEATURE_KERNELS
    if arguments.suite in suites.FIGURE_KERNELS:
        wanted = suites.FIGURE_KERNELS[arguments.suite]
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
