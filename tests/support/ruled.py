"""A family without logs whose choice is a function of the batch."""

from dataclasses import dataclass
from typing import Any

from common.serving.choice import UNTUNED, Choice, Family


@dataclass
class Ruled(Family):
    """rule: (shape, stats, gpu) -> (kernel, config)."""

    rule: Any = None

    def _choose(self, shape, stats, gpu, needs, heuristics, sees):
        if gpu is None:
            return self.default(self.kernels[0], shape, stats, gpu)
        if heuristics == "tree" and (won := self._won(shape, stats, gpu, None)):
            return won
        return Choice(*self.rule(shape, stats, gpu), "rule", UNTUNED)
