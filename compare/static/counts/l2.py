"""Which lines each die's L2 fetches, for programs in the order in which they are dealt to the dies.

Workgroup i runs on die i modulo the number of dies. A die runs `slots` of its programs at once, which ask for their
lines in turn, one access each; the next program starts where one ends. An L2 keeps the most recently used lines. The
L2s are independent: a line that programs of two dies read is fetched twice. AMD CDNA 3 white paper (8 dies, 4 MiB of L2
each, lines of 128 bytes); ROCm, MI300X workload tuning (workgroups round robin over the dies).
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

LINE = 128
MIB = 2**20


@dataclass(frozen=True)
class L2:
    """dies: how many; size: bytes of each die's cache; slots: programs that a die runs at once."""

    dies: int = 8
    size: int = 4 * MIB
    slots: int = 38


@dataclass(frozen=True)
class Fetches:
    """asked: lines that the accesses touch. distinct: different lines among them. each: what each die fetches."""

    asked: int
    distinct: int
    each: tuple[int, ...]

    @property
    def times(self) -> float:
        """How often a line is fetched over all dies: 1 at best."""
        return sum(self.each) / self.distinct if self.distinct else 0.0

    @property
    def hits(self) -> float:
        """The share of asked lines that an L2 holds."""
        return 1 - sum(self.each) / self.asked if self.asked else 0.0


def _fetched(programs: Iterable[Sequence[np.ndarray]], l2: L2) -> int:
    waiting, running = deque(iter(one) for one in programs), deque()
    cache: OrderedDict[int, None] = OrderedDict()
    most, fetched = max(l2.size // LINE, 1), 0
    while waiting or running:
        while waiting and len(running) < l2.slots:
            running.append(waiting.popleft())
        program = running.popleft()
        access = next(program, None)
        if access is None:
            continue
        running.append(program)
        for line in access.tolist():
            if line in cache:
                cache.move_to_end(line)
                continue
            fetched += 1
            cache[line] = None
            if len(cache) > most:
                cache.popitem(last=False)
    return fetched


def fetches(programs: Sequence[Sequence[np.ndarray]], l2: L2) -> Fetches:
    """programs: of each workgroup in launch order its accesses, an array of lines each."""
    lines = [access for program in programs for access in program]
    each = tuple(_fetched(programs[die :: l2.dies], l2) for die in range(l2.dies))
    distinct = len(np.unique(np.concatenate(lines))) if lines else 0
    return Fetches(sum(map(len, lines)), distinct, each)
