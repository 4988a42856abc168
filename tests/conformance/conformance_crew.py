"""The processes of conformance_run.py: cells in, one answer each out, whatever becomes of a process."""

import contextlib
import multiprocessing
import time
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.connection import wait

from conformance_child import serve

RUN = 6  # cells of one kernel and dtype that a process takes in a row: Helion's code of one serves the next
FIRST_S = 120.0  # what importing may take beside the first cell, all processes at once
Asked = tuple[str, str, str]  # kernel, case, dtype


class Process:
    """One child, the cells that it has still to meet, and the one that it is at."""

    def __init__(self, device: str, gpu: int, limit_s: float) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.child = spawn.Process(target=serve, args=(theirs, device, gpu), daemon=True)
        self.child.start()
        theirs.close()  # its end is then the child's alone, and closes with it
        self.device, self.gpu, self.limit_s = device, gpu, limit_s
        self.left: deque[Asked] = deque()
        self.at: Asked | None = None
        self._late = time.monotonic() + FIRST_S

    def begin(self) -> None:
        self.at = self.left.popleft()
        self._late = max(self._late, time.monotonic()) + self.limit_s
        with contextlib.suppress(BrokenPipeError):  # it has died: `answer` says of what
            self.pipe.send(self.at)

    def answer(self) -> tuple[dict[str, str], bool] | None:
        """The cell and whether the process is still of use; None while there is no answer."""
        try:
            if self.pipe.poll():
                self._late = 0.0
                return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.child.join(10)
            return self._failed(f"the process ended with {self.child.exitcode}"), False
        if time.monotonic() > self._late:
            return self._failed(f"no answer within {self.limit_s:g} s"), False
        return None

    def end(self) -> None:
        self.child.kill()
        self.child.join()
        self.pipe.close()

    def _failed(self, reason: str) -> dict[str, str]:
        kernel, case, dtype = self.at
        return {"kernel": kernel, "case": case, "dtype": dtype, "outcome": "failed", "reason": reason}


def meet_all(
    cells: Iterable[Asked], processes: int, device: str, gpus: int, limit_s: float, seconds: float
) -> Iterator:
    """The cells as they are answered, until all are or `seconds` are over: none begins behind that.

    gpus: how many the processes share. A process that dies, hangs for limit_s or has a useless device is replaced.
    """
    waiting, end = deque(_runs(cells)), time.monotonic() + seconds
    crew = [Process(device, number % max(gpus, 1), limit_s) for number in range(min(processes, len(waiting)))]
    try:
        while crew := [process for process in crew if _busy(process, waiting, time.monotonic() > end)]:
            wait([process.pipe for process in crew], timeout=1.0)
            for number, process in enumerate(crew):
                if (answer := process.answer()) is None:
                    continue
                found, usable = answer
                process.at = None
                if not usable:
                    process.end()
                    crew[number] = Process(device, process.gpu, limit_s)
                    crew[number].left = process.left
                yield found
    finally:
        for process in crew:
            process.end()


def _busy(process: Process, waiting: deque[deque[Asked]], late: bool) -> bool:
    """Whether the process is at a cell, having begun the next one where it was at none; one without work is ended."""
    if process.at is None:
        if not process.left and waiting:
            process.left = waiting.popleft()
        if late or not process.left:
            process.end()
            return False
        process.begin()
    return True


def _runs(cells: Iterable[Asked]) -> Iterator[deque[Asked]]:
    """The cells in runs of RUN of one kernel and dtype."""
    by_code: dict[tuple[str, str], list[Asked]] = {}
    for cell in cells:
        by_code.setdefault((cell[0], cell[2]), []).append(cell)
    for same in by_code.values():
        yield from (deque(same[k : k + RUN]) for k in range(0, len(same), RUN))
