"""How rows are dealt to the GPUs of a kind: whole rows, many together first, alone at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ROUNDS_LEFT = 2  # a seat's next share is its part of this share of what is left: the last ones are single rows


@dataclass
class Share:
    """Rows that one seat does together, by their numbers in the plan. lost: the seats that it was lost on."""

    rows: tuple[int, ...]
    lost: list[str] = field(default_factory=list)


def longest_first(times: Sequence[float]) -> list[int]:
    """Numbers of rows, the longest first: no seat begins it while the others end, and what all repeat is the shortest.

    In `peers` on two H100s q32k took 84 s of 307, and one seat began it when the other had its last row.
    """
    return sorted(range(len(times)), key=lambda number: -times[number])


def cut(costs: Sequence[int], seats: int, most: int) -> list[Share]:
    """All rows, in order, a row whole. costs: cells of each row. most: cells of a share, one row at least.

    Shares are as large as half of what is left, divided among the seats (factoring: Hummel, Schonberg, Flynn, 1992): a
    seat compiles ahead for many rows at once, and no seat waits long for the last one, however slow it is.
    """
    shares: list[Share] = []
    at, left = 0, sum(costs)
    while at < len(costs):
        size = min(left / (ROUNDS_LEFT * max(seats, 1)), most)
        end, cells = at + 1, costs[at]
        while end < len(costs) and cells + costs[end] <= size:
            cells += costs[end]
            end += 1
        shares.append(Share(tuple(range(at, end))))
        at, left = end, left - cells
    return shares
