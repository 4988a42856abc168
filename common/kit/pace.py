"""How long a call of a case may take: many times its work at the slowest speed seen.

A limit ends what never answers; it does not judge slowness. A case without an answer in time is not judged.
"""

import threading
from dataclasses import dataclass, field

from common.cases.case import Case

LEAST_S = 60.0  # of any call: a first call compiles
MARGIN = 10.0
ENOUGH = 3  # calls before their speed replaces the assumed one
# The cost of a program beside its keys and lanes, in both; of a call beside its programs, in work.
KEYS, LANES, CALL = 64, 256, 1 << 21
# Work per second of a slow kernel: interpreted, with a program for each query token and head; a loop over both in plain
# torch; on a GPU.
INTERPRETED, PLAIN, ON_GPU = 1e6, 3e7, 1e9


def work(case: Case) -> float:
    """Query rows times heads times keys times lanes, for a kernel that masks and skips nothing."""
    shape = case.shape
    pairs = sum(query_len * (seq_len + KEYS) for query_len, seq_len in case.lens)
    return CALL + float(pairs) * shape.num_query_heads * (shape.head_size + shape.value_lanes + LANES)


@dataclass
class Pace:
    """Limits of calls, in seconds, from the work of their cases. fixed: of every call, replacing these. assumed: the
    speed, in work a second, before ENOUGH calls."""

    fixed: float | None = None
    assumed: float = PLAIN
    _seen: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def limit(self, case: Case) -> float:
        if self.fixed is not None:
            return self.fixed
        return max(LEAST_S, MARGIN * work(case) / self.speed)

    @property
    def speed(self) -> float:
        """Work a second: the slowest seen."""
        with self._lock:
            return min(self._seen) if len(self._seen) >= ENOUGH else min([self.assumed, *self._seen])

    def saw(self, case: Case, seconds: float) -> None:
        """Record that a call of this case answered after so long."""
        with self._lock:
            self._seen.append(work(case) / max(seconds, 1e-3))
