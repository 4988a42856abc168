"""Shares over the seats of one kind: whoever is free takes the next; what a seat loses, another does.

In: seats that have the work open, and shares. Out: (seat, share, what it found), as it comes. A share that was lost is
done again as a whole: what was found of it before does not count, and `gone` says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from compare.fleet.cluster import Lost
from compare.fleet.shares import Share
from compare.process.pool import Jobs, Pool, in_order

TRIES = 3  # seats that a share may take along; then it is the share that is to blame
STARTS = 3  # of a seat


class Stall(Protocol):
    """A seat, from here."""

    name: str
    starts: int

    def do(self, share: Any) -> Iterator[Any]: ...

    def again(self) -> bool: ...


@dataclass(frozen=True)
class Found:
    """share: None for what was repeated."""

    seat: str
    share: Share | None
    what: Any


@dataclass
class Drive:
    """tell: hears what was lost, in a line. left: shares that nobody has done. repeat: the last share is done by every
    seat that has nothing else to do, too, so that equal GPUs can be compared."""

    seats: Sequence[Stall]
    shares: Sequence[Share]
    tell: Callable[[str], None] = lambda line: None
    repeat: bool = False
    losses: list[str] = field(default_factory=list)
    left: int = 0
    _open: int = 0  # shares that somebody may still do
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _stopping: bool = False
    _last: str = ""  # the seat that has the last share
    _repeated: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.left = self._open = len(self.shares)
        self._jobs: Jobs[Share] = Jobs(self.shares, growing=bool(self.shares), of=in_order)

    def results(self) -> Iterator[Found]:
        """Until every share is done, or no seat is left."""
        pool: Pool[Share, Found] = Pool([self._lane(seat) for seat in self.seats], self._jobs)
        try:
            yield from pool.results()
        finally:
            self.stop()
            pool.close()

    def stop(self) -> None:
        """No share begins any more, and what is lost now is not done again."""
        self._stopping = True
        self._jobs.close()

    def _lane(self, seat: Stall) -> Callable[[Iterable[Share]], Iterator[Found]]:
        return lambda taken: self._at(seat, taken)

    def _at(self, seat: Stall, taken: Iterable[Share]) -> Iterator[Found]:
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
            if not len(self._jobs):  # while another seat is at the last share, this one is free
                yield from self._once_more(seat)
        yield from self._once_more(seat)

    def _once_more(self, seat: Stall) -> Iterator[Found]:
        """The last share once more, where another seat has it, though it may not have said so yet."""
        if not self.repeat or self._stopping or seat.name in self._repeated or self._last == seat.name:
            return
        self._repeated.add(seat.name)
        try:
            for what in seat.do(self.shares[-1].rows):
                yield Found(seat.name, None, what)
        except Lost as lost:
            self.tell(f"{seat.name}: {lost}, while it repeated rows")

    def _give_back(self, seat: Stall, share: Share, lost: Lost) -> None:
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
