"""Cut a run's rows into shares: many rows in the first shares, single rows in the last."""

from collections.abc import Sequence
from dataclasses import dataclass, field

ROUNDS_LEFT = 2  # a share takes 1 / (ROUNDS_LEFT * seats) of the remaining cells


@dataclass
class Share:
    """Row numbers that one seat does together. lost: names of the seats on which the share was lost."""

    rows: tuple[int, ...]
    lost: list[str] = field(default_factory=list)


def longest_first(times: Sequence[float]) -> list[int]:
    """Row numbers, the longest row first: a long row at the end would leave the other seats idle."""
    return sorted(range(len(times)), key=lambda number: -times[number])


def cut(costs: Sequence[int], seats: int, most: int) -> list[Share]:
    """Shares of all rows, in order. costs: cells of each row. most: cells of a share, but at least one row.

    Each share takes its seat's part of half the remaining cells (factoring: Hummel, Schonberg, Flynn, 1992): early
    shares compile many rows ahead, and the last shares are small, so that no seat waits long for a slow one.
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
