"""The rows and kernels that a command line selects, in a situation."""

from dataclasses import dataclass, replace

from compare.competitors.registry import BASELINES, NATIVE, OWN, select
from compare.plan.options import OF_A_BATCH, OF_A_TRACE, RowOptions
from compare.plan.situation import Situation
from compare.workloads import Ask, Workload, parse_lens, parse_shape, suites, trace

ABSENT_EVERY = 3  # 12 rows of 16 kernels: 64 cells are compiled and executed within 6 minutes on two cores, 192 are not


@dataclass(frozen=True)
class Selection:
    """The rows and kernels of a run. assumptions: what a reader of the figures has to know about the rows."""

    suite: str
    workloads: tuple[Workload, ...]
    kernels: tuple[str, ...]
    assumptions: tuple[str, ...] = ()
    every: int = 1  # each kernel takes one row of so many


def selection(asked: RowOptions, now: Situation) -> Selection:
    """Select rows and kernels. Raises the typed errors of suites, registry, workloads and trace."""
    chosen = _selected(asked, now)
    for row in chosen.workloads:  # a window may be asked of rows that have their own masks
        row.ask.check()
    if not asked.new_kv:
        return chosen
    return replace(chosen, workloads=tuple(row.with_new_kv() for row in chosen.workloads))


def _selected(asked: RowOptions, now: Situation) -> Selection:
    kernels = _kernels(asked, now)
    shape = parse_shape(*(OF_A_BATCH | asked.given(OF_A_BATCH)).values())
    ask = Ask(sliding_window=asked.window)
    if asked.trace is not None:
        rows, notes = trace.workloads(asked.trace, trace.Rule(**asked.given(OF_A_TRACE)), shape, ask, asked.seed)
        return Selection("trace", suites.pick(rows, asked.workload), kernels, notes)
    if asked.workload is not None and asked.suite is None:
        row = Workload(asked.workload, parse_lens(asked.workload), shape, ask, seed=asked.seed)
        return Selection("workload", (row,), kernels)
    name = "smoke" if asked.suite is None else asked.suite
    rows = suites.suite(name, asked.seed)
    every, notes = 1, ()
    if now.absent and asked.suite is None:
        rows += suites.static(asked.seed)
        if asked.workload is None and asked.kernels is None:
            every, notes = ABSENT_EVERY, (f"a kernel takes each {ABSENT_EVERY}rd row; with --kernels it takes all",)
    rows = tuple(
        replace(row, ask=replace(row.ask, sliding_window=ask.sliding_window or row.ask.sliding_window)) for row in rows
    )
    return Selection(name, suites.pick(rows, asked.workload), kernels, notes, every)


def _kernels(asked: RowOptions, now: Situation) -> tuple[str, ...]:
    """The named kernels, else those of the suite; baselines only where cells are timed."""
    if asked.kernels is not None:
        return select(asked.kernels)
    if asked.suite == "features":
        return suites.FEATURE_KERNELS
    if asked.suite in suites.FIGURE_KERNELS:
        wanted = suites.FIGURE_KERNELS[asked.suite]
        return tuple(kernel for kernel in wanted if now.measure or kernel not in BASELINES)
    native = now.measure and now.target is not None and now.target.arch == "sm_90"
    return OWN + BASELINES * now.measure + tuple(NATIVE) * native
