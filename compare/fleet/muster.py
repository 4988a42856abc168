"""Choose the seats of a work: fit GPUs of the kinds that were asked for, with equal versions within a kind, and CPU
cores for kinds without a GPU."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common.gpus import Gpu
from compare.fleet.cluster import Cluster, Lost, RemoteSeat
from compare.fleet.seat import PACKAGES
from compare.identity import code
from compare.plan.fingerprint import pairs_that_differ

PRETEND = "DIPTYCH_FLEET_PRETEND"  # environment variable: believe the nodes' GPU labels and only check and compile


class Mixed(ValueError):
    """Seats of one kind have different versions; the message names two seats and what differs."""


@dataclass
class Muster:
    """Fit seats by the name of their GPU, and (seat, reason) for each unfit one."""

    of: dict[str, list[RemoteSeat]] = field(default_factory=dict)
    unfit: list[tuple[str, str]] = field(default_factory=list)

    def gpu(self, kind: str) -> Gpu:
        return Gpu(**self.of[kind][0].facts["gpu"])


def pretending() -> bool:
    return bool(os.environ.get(PRETEND))


def gpus(
    cluster: Cluster, asked: Sequence[str] | None, tell: Callable[[str], None], *, pretended: bool = False
) -> Muster:
    """A seat on every GPU of these kinds, or of all kinds for None. A node without a known label is probed."""
    nodes = [node for node in cluster.nodes() if node.gpus and (asked is None or node.kind in {None, *asked})]
    found = Muster()
    for seat in _begun(cluster.seats([(node, node.gpus) for node in nodes], True, pretended), found):
        kind = seat.node.kind if pretended else seat.facts["gpu"]["name"]
        if kind is not None and (asked is None or kind in asked):
            found.of.setdefault(kind, []).append(seat)
        else:
            seat.end()
    for name, why in found.unfit:
        tell(f"{name} is left out: {why}")
    return found


def cores(cluster: Cluster, most: int, tell: Callable[[str], None]) -> list[RemoteSeat]:
    """At most `most` seats on CPU cores, spread evenly over the nodes."""
    free = {node.id: node for node in cluster.nodes() if node.fits}
    counts = dict.fromkeys(free, 0)
    for _ in range(min(most, sum(node.fits for node in free.values()))):
        room = [name for name, node in free.items() if counts[name] < node.fits]
        counts[min(room, key=lambda name: counts[name] / free[name].fits)] += 1
    found = Muster()
    seats = _begun(cluster.seats([(free[name], count) for name, count in counts.items() if count], False), found)
    for name, why in found.unfit:
        tell(f"{name} is left out: {why}")
    return seats


def _begun(seats: Sequence[RemoteSeat], found: Muster) -> list[RemoteSeat]:
    """Start all seats in parallel; return those that answer and are fit."""
    for seat in seats:
        seat.start()
    ours, fit = code(PACKAGES), []
    for seat in seats:
        try:
            facts = seat.begin()
            if facts["code"] != ours:
                raise Lost(f"its code is {facts['code']}, allowed the driver's, {ours}")
            fit.append(seat)
        except Lost as lost:
            seat.end()
            found.unfit.append((seat.name, str(lost)))
    return fit


def ensure_alike(kind: str, seats: Sequence[RemoteSeat]) -> None:
    """Raise Mixed if seats of one kind have different software."""
    first, *others = seats
    for seat in others:
        if differing := pairs_that_differ(first.facts["software"], seat.facts["software"]):
            told = "; ".join(f"{name} {a} on {first.name} and {b} on {seat.name}" for name, a, b in differing)
            raise Mixed(f"fleet: found {told}; allowed one set for {kind}, or --mixed")
