"""Which plans of a step exist, and in which memory: what `same_step=True` may reuse.

Unless the caller keeps a plan, each step's memory comes from torch's allocator on the stream of the planning call:
streams share none, and a captured graph's lives in its pool. The next step on a stream frees it.
"""

from typing import Any, NamedTuple

import torch

from common.spec import SpecError
from common.spec.kernel import MOST_STREAMS


class Planned(NamedTuple):
    """made: what the plan was made for (`common.serving.prepared.made_for`). memory: where it lies."""

    made: tuple
    memory: torch.Tensor | None


class Step(NamedTuple):
    """capture: the number of the graph that the step is captured into, 0 outside of one
    (`common.serving.tape.capture`). plans: by layout."""

    capture: int
    plans: dict[Any, Planned]


class Steps:
    """The current step of each stream. used: whether any plan was made; until then a new step needs no notice."""

    def __init__(self) -> None:
        self._steps: dict[Any, Step] = {}
        self.used = False

    def __len__(self) -> int:
        return len(self._steps)

    def clear(self) -> None:
        """Make the next call plan anew."""
        self._steps.clear()

    def begin(self, stream: Any, capture: int) -> Step:
        if self._steps.pop(stream, None) is None and len(self._steps) >= MOST_STREAMS:
            del self._steps[next(iter(self._steps))]  # its next call plans again
        step = self._steps[stream] = Step(capture, {})
        return step

    def keep(self, stream: Any, capture: int, layout: Any, planned: Planned) -> None:
        step = self._steps.get(stream)
        if step is None or step.capture != capture:
            step = self.begin(stream, capture)
        step.plans[layout] = planned
        self.used = True

    def find(self, stream: Any, capture: int, layout: Any, made: tuple) -> Planned | None:
        """The plan of the current step that was made for the same.

        Raises SpecError in a capture that the step did not begin in, and after it: a graph is replayed for lengths that
        no other step's plan knows.
        """
        step = self._steps.get(stream)
        if step is None and not (capture and self.used):
            return None
        if step is not None and (step.capture == capture or (step.capture < 0 and capture < 0)):
            found = step.plans.get(layout) if step.capture == capture else None  # an unknown graph equals no other
            return found if found is not None and found.made == made else None
        here = "captured into a graph" if capture else "not captured"
        there = "elsewhere" if step is None or capture else "in a capture"
        raise SpecError("same_step", f"True in a call that is {here}, of a step that began {there}",
                        "False in the first call of a capture, and in the first behind it")  # fmt: skip
