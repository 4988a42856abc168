"""The children of compare, by the modules that they run: no other file names one."""

from __future__ import annotations

import sys

WORKER = "compare.bench.worker"
COMPILE, AHEAD = "compare.static.compile", "compare.static.ahead"
TUNE_COMPILE, TUNE_WORKER, TUNE_HELION = "compare.tune.compile", "compare.tune.worker", "compare.tune.helion"
COST_COMPILE, COST_TRACE = "compare.studies.costs.compile", "compare.studies.costs.trace"
MUTATION = "compare.studies.mutation.worker"
CHILDREN = (WORKER, COMPILE, AHEAD, TUNE_COMPILE, TUNE_WORKER, TUNE_HELION, COST_COMPILE, COST_TRACE, MUTATION)


def command(child: str) -> list[str]:
    """What starts a child."""
    return [sys.executable, "-m", child]
