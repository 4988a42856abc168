"""A launch to compile, said in one line; and children that compile for the tests of a whole process."""

import os
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from common.cases.ask import PLAIN, Ask
from common.cases.batch import Lens
from common.gpus import Gpu
from common.spec import AttentionShape
from compare.static.compile import Compilation, Outcome, compile_in_child
from compare.workloads import Workload


def compilation(
    kernel: str,
    lens: Lens,
    shape: AttentionShape,
    config: dict[str, Any] | None = None,
    *,
    ask: Ask = PLAIN,
    style: str = "nhd",
    new_kv: bool = False,
    **how: Any,
) -> Compilation:
    """Of a row without a name; how: what else a Compilation has."""
    return Compilation(Workload("", tuple(lens), shape, ask, style, new_kv=new_kv), kernel, config, **how)


HERE = Path(__file__).resolve().parent
PROBES = os.pathsep.join(map(str, (HERE / "probes", HERE.parent / "compare" / "static")))


class Compilers:
    """compilers(gpu, *jobs): the outcome of each job, by the child that has this process's other jobs for that GPU.

    To start one costs as much as most of what it compiles; a fourth GPU's takes the place of the one asked longest ago.
    """

    def __init__(self) -> None:
        self._of: dict[Gpu, tuple[deque, Any]] = {}

    def __call__(self, gpu: Gpu, *jobs: Compilation) -> list[Outcome]:
        if gpu not in self._of:
            self.keep(2)
            waiting: deque = deque()
            self._of[gpu] = waiting, compile_in_child(iter(waiting.popleft, None), gpu)
        self._of[gpu] = waiting, found = self._of.pop(gpu)
        waiting.extend(jobs)
        with pytest.MonkeyPatch.context() as patch:  # where a child begins
            patch.setenv("PYTHONPATH", PROBES, prepend=os.pathsep)
            return [next(found) for _ in jobs]

    def keep(self, most: int) -> None:
        """End all but the children that were asked last."""
        for gpu in [*self._of][: max(0, len(self._of) - most)]:
            self._of.pop(gpu)[1].close()
