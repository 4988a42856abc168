"""The timing contract of a run, which says what its times mean; printed with the run and kept in its manifest.

docs/measuring.md states the rules; `VERSION` changes with any of them. Times of two contracts are not compared.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

VERSION = 2
UNIT = "baseline/flash_attn3"  # the kernel that others are paired with, where it runs
TIMERS = ("graph", "events", "paper")
CACHES = ("cold", "hot")
# The first H200 runs took 15 rounds for it in the median cell.
PRECISION = 0.005
MAX_TIME_S = 1.5
PROCESSES = 3
ENERGY_S = 1.0  # the counter moves ten times a second or more

_HOW = {
    "graph": "replayed graphs",
    "events": "eager launches between events",
    "paper": "20 warm-ups, mean of 100 eager launches",
}
_CACHE = {"cold": "cold cache by rotating page sets", "hot": "hot cache, one page set"}


@dataclass(frozen=True)
class Contract:
    """precision: half-width of the paired log-ratio's 99% interval, over the rounds of all processes, at which
    rounds end. max_time_s: of rounds, per workload and process. processes: fresh ones, each of which measures every
    cell once. energy_s: of replays of each cell, whose joules are read; 0: none."""

    timer: str = "graph"
    cache: str = "cold"
    precision: float = PRECISION
    max_time_s: float = MAX_TIME_S
    processes: int = PROCESSES
    energy_s: float = 0.0

    @property
    def precision_each(self) -> float:
        """The half-width at which one process ends its rounds; that of all is narrower by the root of their number."""
        return self.precision * math.sqrt(self.processes)

    @property
    def name(self) -> str:
        """What two runs must share to be compared: `graph-cold-interleaved/2`."""
        order = "sequential" if self.timer == "paper" else "interleaved"
        return f"{self.timer}-{self.cache}-{order}/{VERSION}"

    @property
    def line(self) -> str:
        """The contract in one line, for people."""
        parts = [_HOW[self.timer], _CACHE[self.cache]]
        if self.timer == "paper":
            parts.append("one kernel after another")
        else:
            within = f"{self.precision_each:.2%}" + ("" if self.processes == 1 else f" ({self.precision:.2%} over all)")
            until = f"until the paired 99% interval is within {within} or {self.max_time_s:g} s are spent"
            parts.append(f"kernels take turns {until}")
        fresh = "1 process" if self.processes == 1 else f"{self.processes} fresh processes"
        return f"{self.name}: {', '.join(parts)}; {fresh}; docs/measuring.md"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"name": self.name, "line": self.line}
