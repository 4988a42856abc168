"""Which plans of a step are made, and in which memory: what `same_step=True` may take.

Without a plan of the caller's each step has memory of its own, from torch's allocator on the stream of the call that
plans: two streams share none, and a captured graph has what lives in its pool. The next step on a stream lets it go.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from common.spec import SpecError
from common.spec.kernel import MOST_STREAMS


class Planned(NamedTuple):
    """made: what it was made for (`common.serving.prepared.made_for`). memory: where it lies. capture: the number of
    the graph that its launch was captured into, 0 where it ran (`common.serving.tape.capture`)."""

    made: tuple
    memory: torch.Tensor | None
    capture: int


class Steps:
    """The plans of the current step of each stream, by the layout that they are laid out by."""

    def __init__(self) -> None:
        self._plans: dict[Any, dict[Any, Planned]] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def end(self, stream: Any) -> None:
        """Of one stream."""
        self._plans.pop(stream, None)

    def clear(self) -> None:
        """Of all streams."""
        self._plans.clear()

    def keep(self, stream: Any, layout: Any, planned: Planned) -> None:
        if stream not in self._plans and len(self._plans) >= MOST_STREAMS:
            self.end(next(iter(self._plans)))  # its next call plans again
        self._plans.setdefault(stream, {})[layout] = planned

    def find(self, stream: Any, layout: Any, made: tuple) -> Planned | None:
        """The plan of the current step, where one was made for the same."""
        found = self._plans.get(stream, {}).get(layout)
        return found if found is not None and found.made == made else None


def taken(planned: Planned, capture: int) -> bool:
    """Whether a call takes what another planned; False where nobody says whether both are captured into one graph.

    Raises SpecError where they are not: a graph is replayed for lengths that another's plan does not know.
    """
    if planned.capture == capture:
        return True
    if planned.capture < 0 and capture < 0:
        return False
    where = [f"captured into graph {number}" if number else "not captured" for number in (capture, planned.capture)]
    found = f"True in a call that is {where[0]}, where that which planned its step is {where[1]}"
    raise SpecError("same_step", found, "False in the first call of a capture, and in the first behind it")
