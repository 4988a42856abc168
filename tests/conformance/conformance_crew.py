"""The processes of conformance_run.py: cells in, one answer each out, whatever becomes of a process."""

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from common.process import Child, Lost
from compare.process.pool import Jobs, Pool, in_order

COMMAND = (sys.executable, str(Path(__file__).with_name("conformance_child.py")))
RUN = 6  # cells of one kernel and dtype that a process takes in a row: Helion's code of one serves the next
FIRST_S = 120.0  # what importing may take beside the first cell, all processes at once
Asked = tuple[str, str, str]  # kernel, case, dtype


class Process:
    """A lane: one child at a time on one GPU. A child that dies, hangs for limit_s or has a useless device is replaced
    where there is more to meet."""

    def __init__(self, device: str, gpu: int, limit_s: float, end: float) -> None:
        self._words, self._limit_s, self._end = (device, str(gpu)), limit_s, end
        self._child: Child | None = None
        self._late = FIRST_S

    def __call__(self, runs: Iterator[list[Asked]]) -> Iterator[dict[str, str]]:
        try:
            for cells in runs:
                for cell in cells:
                    if time.time() > self._end:
                        return
                    yield self._met(cell)
        finally:
            self.end()

    def end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

    def _met(self, cell: Asked) -> dict[str, str]:
        if self._child is None:
            paths = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._child, self._late = Child([*COMMAND, *self._words], paths, flood=math.inf), FIRST_S
        try:
            self._child.send(json.dumps(cell).encode())
            event = json.loads(self._child.line(self._limit_s + self._late))
            self._late = 0.0
        except Lost as lost:
            slow = f"no answer within {self._limit_s:g} s"
            event = {"usable": False, "cell": dict(zip(("kernel", "case", "dtype"), cell, strict=True))}
            reason = slow if lost.status == "timeout" else f"the process ended with {lost.code}"
            event["cell"] |= {"outcome": "failed", "reason": reason}
        if not event["usable"]:
            self.end()
        return event["cell"]


def meet_all(
    cells: Iterable[Asked], processes: int, device: str, gpus: int, limit_s: float, seconds: float
) -> Iterator:
    """The cells as they are answered, until all are or `seconds` are over: none begins behind that.

    gpus: how many the processes share.
    """
    runs, end = list(_runs(cells)), time.time() + seconds
    lanes = [Process(device, number % max(gpus, 1), limit_s, end) for number in range(min(processes, len(runs)))]
    pool: Pool[list[Asked], dict[str, str]] = Pool(lanes, Jobs(runs, of=in_order), deadline=end)
    try:
        yield from pool.results()
    finally:
        pool.close()


def _runs(cells: Iterable[Asked]) -> Iterator[list[Asked]]:
    """The cells in runs of RUN of one kernel and dtype."""
    by_code: dict[tuple[str, str], list[Asked]] = {}
    for cell in cells:
        by_code.setdefault((cell[0], cell[2]), []).append(cell)
    for same in by_code.values():
        yield from (same[k : k + RUN] for k in range(0, len(same), RUN))
