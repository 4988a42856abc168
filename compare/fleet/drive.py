"""Cut rows into shares and deal these to the seats of one kind: a free seat takes the next, another repeats a lost one.

In: seats that have the work open, and shares. Out: (seat, share, result), as results arrive. A lost share is repeated
as a whole; what was found of it before does not count.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from compare.fleet.cluster import Lost, RemoteSeat
from compare.process.pool import Jobs, Pool, in_order

TRIES = 3  # a share that was lost on so many seats is given up
STARTS = 3  # a seat is started so often at most
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


@dataclass(frozen=True)
class Found:
    """One result of a seat. share: None for a row that was repeated to compare GPUs."""

    seat: str
    share: Share | None
    what: Any


@dataclass
class Drive:
    """Deals shares to seats. tell: called with a line for each loss. left: shares that are not done. repeat: idle seats
    repeat the last share, so that equal GPUs can be compared."""

    seats: Sequence[RemoteSeat]
    shares: Sequence[Share]
    tell: Callable[[str], None] = lambda line: None
    repeat: bool = False
    losses: list[str] = field(default_factory=list)
    left: int = 0
    _open: int = 0  # shares that are neither done nor given up
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _stopping: bool = False
    _last: str = ""  # the seat that does the last share
    _repeated: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.left = self._open = len(self.shares)
        self._jobs: Jobs[Share] = Jobs(self.shares, growing=bool(self.shares), of=in_order)

    def results(self) -> Iterator[Found]:
        """Yield results until every share is done or no seat is left."""
        pool: Pool[Share, Found] = Pool([self._lane(seat) for seat in self.seats], self._jobs)
        try:
            yield from pool.results()
        finally:
            self.stop()
            pool.close()

    def stop(self) -> None:
        """Begin no more shares and repeat none that is lost from now on."""
        self._stopping = True
        self._jobs.close()

    def _lane(self, seat: RemoteSeat) -> Callable[[Iterable[Share]], Iterator[Found]]:
        return lambda taken: self._at(seat, taken)

    def _at(self, seat: RemoteSeat, taken: Iterable[Share]) -> Iterator[Found]:
        for share in taken:
            if self._stopping:
                return
            if share is self.shares[-1]:
                self._last = seat.name
            try:
                for what in seat.do(share.rows):
                    yield Found(seat.name, share, what)
            except Lost as lost:
                if self._stopping:
                    return
                self._give_back(seat, share, lost)
                if seat.starts >= STARTS or not seat.again():
                    return self.tell(f"{seat.name} is gone")
                continue
            self._is_over(done=True)
            if not len(self._jobs):  # another seat does the last share, so this one is free
                yield from self._once_more(seat)
        yield from self._once_more(seat)

    def _once_more(self, seat: RemoteSeat) -> Iterator[Found]:
        """Repeat the last share if another seat does it or has done it."""
        if not self.repeat or self._stopping or seat.name in self._repeated or self._last == seat.name:
            return
        self._repeated.add(seat.name)
        try:
            for what in seat.do(self.shares[-1].rows):
                yield Found(seat.name, None, what)
        except Lost as lost:
            self.tell(f"{seat.name}: {lost}, while it repeated rows")

    def _give_back(self, seat: RemoteSeat, share: Share, lost: Lost) -> None:
        share.lost.append(seat.name)
        gives_up = len(share.lost) >= TRIES
        became = f"given up, for it was lost {TRIES} times" if gives_up else "another seat does it"
        rows = f"row {share.rows[0] + 1}" + (f" to {share.rows[-1] + 1}" if len(share.rows) > 1 else "")
        self.losses.append(f"{seat.name}: {lost}; {rows}: {became}")
        self.tell(self.losses[-1])
        if gives_up:
            self._is_over(done=False)
        else:
            self._jobs.add([share])

    def _is_over(self, done: bool) -> None:
        with self._turn:
            self.left -= done
            self._open -= 1
            if not self._open:
                self._jobs.close()
