"""Run cases in several processes at once, a kit and a thread each; return results in the order of asking."""

import queue
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from common.kit.kit import Kit, Result


class Lanes:
    """Runs cases with `kits` of one kernel until `close`. A single kit runs each case when it is asked for."""

    def __init__(self, kits: Sequence[Kit], cases: Sequence[str]) -> None:
        self._kits, self._free = list(kits), queue.SimpleQueue()
        self._found: dict[str, Future[Result]] = {}
        self._pool = ThreadPoolExecutor(len(kits))
        if len(kits) > 1:
            for kit in kits:
                self._free.put(kit)
            self._found = {case: self._pool.submit(self._run, case) for case in cases}

    def _run(self, case: str) -> Result:
        kit = self._free.get()
        try:
            return kit.run(case)
        finally:
            self._free.put(kit)

    def result(self, case: str) -> Result:
        """The result of a case; waits for it."""
        return self._found.pop(case).result() if case in self._found else self._kits[0].run(case)

    def close(self) -> None:
        """End all running cases, and every process but the first kit's; unasked results are lost."""
        running = len(self._kits) > 1 and bool(self._found)
        for future in self._found.values():
            future.cancel()
        for kit in self._kits if running else ():
            kit.stop()
        self._pool.shutdown()
        if running:
            self._kits[0].resume()
        for kit in self._kits[1:]:
            kit.close()
