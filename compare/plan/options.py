"""The options that a plan is made from."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from compare.competitors.registry import HEURISTICS
from compare.record.contract import ENERGY_S, MAX_TIME_S, PRECISION, PROCESSES, Contract
from compare.workloads import GrammarError
from compare.workloads.numbers import MOST_WINDOW

OF_A_BATCH = {"shape": "llama-3-8b", "block_size": 16, "dtype": "bf16"}  # where the command line says nothing
OF_A_TRACE = ("batches", "step_ms", "token_us")  # what `--trace FILE:NAME=VALUE` assumes
SET = ("block_size", "dtype", "window")  # rows' options that are given by `--set`


@dataclass(frozen=True)
class RowOptions:
    """Which rows and kernels. None: not given. window: tokens; step_ms and token_us: of a trace; seed: of the
    values."""

    suite: str | None = None
    workload: str | None = None
    trace: str | None = None
    shape: str | None = None
    block_size: int | None = None
    dtype: str | None = None
    window: int | None = None
    new_kv: bool = False
    seed: int = 0
    batches: int | None = None
    step_ms: float | None = None
    token_us: float | None = None
    kernels: str | None = None

    def __post_init__(self) -> None:
        """Raise GrammarError for an option that the rows asked for would not read, and for no window at all."""
        if self.window is not None and not 1 <= self.window <= MOST_WINDOW:
            raise GrammarError(f"window: found {self.window}, allowed 1 to {MOST_WINDOW}")
        traced = self.trace is not None
        of_a_suite = not traced and (self.suite is not None or self.workload is None)
        if traced and self.suite is not None:
            raise GrammarError(f"--suite: found {self.suite}, allowed without --trace alone")
        for name, found in self.given(OF_A_BATCH if of_a_suite else ()).items():
            found = f"found {found} beside a suite, whose rows have their own"
            raise GrammarError(f"{flag(name)}: {found}; allowed with --trace, or with --workload and no --suite")

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """The named options that were given, as a dict."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True)
class WhereOptions:
    """On which device and with whose configs. cpu_budget_s, timeout_s: seconds of a cell."""

    gpu: str | None = None
    require_gpu: bool = False
    device: str | None = None
    cpu_budget_s: float = 30.0
    timeout_s: float = 300.0
    heuristics: str = HEURISTICS[0]


@dataclass(frozen=True)
class TimingOptions:
    """How cells are timed. timer, cache: None for the default of the other. max_time_s: seconds of a row and
    process."""

    timer: str | None = None
    cache: str | None = None
    precision: float = PRECISION
    max_time_s: float = MAX_TIME_S
    processes: int = PROCESSES
    energy: bool = False

    def contract(self, measured: bool) -> Contract:
        """The timing contract of a run; one process where nothing is timed. Raises GrammarError for what does not
        fit."""
        timer = self.timer or "graph"
        cache = self.cache or ("hot" if timer == "paper" else "cold")
        if timer == "paper" and cache == "cold":
            repeats = "which repeats one call on the same data"
            raise GrammarError(f"--set cache: found cold, allowed hot with --timer paper, {repeats}")
        energy = ENERGY_S if self.energy and measured else 0.0
        return Contract(timer, cache, self.precision, self.max_time_s, self.processes if measured else 1, energy)


def flag(name: str) -> str:
    """The option or setting as users write it."""
    return f"{'--set ' if name in SET else '--'}{name.replace('_', '-')}"
