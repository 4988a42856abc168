"""Explain why one kernel takes longer than another on a batch, from the code of both: no GPU is needed, nothing is
timed.

Both are compiled for the GPU at the configs chosen there. A tile is a pass of the leanest innermost loop with products,
or of the heaviest where none has any. Its clocks, for one warp alone, are by kind: issued, or waited for. On NVIDIA
they come from SASS (compare/static/warp.py), elsewhere from counts and the constants of compare/static/estimate.py,
which turns the clocks of a tile into a time. Then each property of the slower launch is replaced in turn by the faster
one's: the one that shortens the time most explains most.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from common.gpus import Gpu
from common.spec.metadata import cdiv
from compare.competitors import registry
from compare.record.records import Status
from compare.static import warp
from compare.static.compile import Compilation, Outcome, compile_in_child
from compare.static.estimate import (
    SCHEDULERS,
    TRANSCENDENTAL,
    LaunchEstimate,
    Machine,
    NoEstimate,
    estimate_launch,
    machine_of,
    matrix_flops,
)
from compare.static.estimate_work import Work, works
from compare.static.occupancy import occupancy
from compare.workloads import Workload

MOST = 3  # differences that a sentence names, until half is explained
LITTLE = 0.02  # part of a time below which there is no difference
MMA_SHARE = 0.62  # of a Hopper's matrix peak by mma.sync (arXiv 2402.13499)
FILL = 64  # bytes a clock that reach a unit which asks alone, assumed
SHARP = 4  # of the mean of bytes and schedule: where both take as long they take a fifth more than one, assumed
Facts = Mapping[str, Any]


class NotCompiled(RuntimeError):
    """A kernel has no code for the GPU; the message says why."""


def loop_of(facts: Facts) -> Facts | None:
    """The loop of a whole tile: the leanest innermost one with products, the heaviest where none has any."""
    loops = facts["loops"]
    products = [one for one in loops if one["matrix"]]
    if products:
        return min(products, key=lambda one: one["instructions"])
    return max(loops, key=lambda one: one["instructions"], default=None)


def _counted(loop: Facts, facts: Facts, machine: Machine, latency: float) -> dict[str, float]:
    """Clocks of a pass by kind from counts alone: each instruction `dependent`, loads as the estimate has them."""
    found = {kind: machine.dependent * many for kind, many in loop["kinds"].items()}
    warps = int(facts["num_warps"])
    product = matrix_flops(loop["matrix"], warps) / machine.matrix * SCHEDULERS / min(warps, SCHEDULERS)
    waits = loop["waits"] if any(name.startswith("HGMMA") for name in loop["matrix"]) else 0
    found["matrix"] = found.get("matrix", 0) + product + waits * warp.GROUP_START
    found["exp"] = found.get("exp", 0) + (TRANSCENDENTAL - 1) * machine.dependent * loop["transcendental"]
    rest = sum(found.values())
    ahead = max(int(facts["num_stages"]) - 1, 1) if facts.get("pipelined") else 0
    found["loads"] = found.get("loads", 0) + (max(latency / ahead - rest, 0) if ahead else 2 * latency)
    return found


@dataclass(frozen=True)
class Launch:
    """One compiled kernel on the batch."""

    facts: Facts
    work: Work
    gpu: Gpu

    @cached_property
    def clocks(self) -> dict[str, float]:
        """Clocks of a tile by kind, of one warp alone. Loads come from L2 as often as tiles load the same bytes."""
        return self._of(loop_of(self.facts))

    @property
    def transfer(self) -> float:
        """Clocks in which the bytes of a tile reach a unit, where every unit that has a program asks."""
        rate = machine_of(self.gpu)[0].l2 / self.gpu.units
        units = min(max(len(self.work.tiles), 1), self.gpu.units)
        return self.work.tile_bytes / min(FILL, rate * self.gpu.units / units)

    def _of(self, loop: Facts | None) -> dict[str, float]:
        machine, ghz = machine_of(self.gpu)
        asked = sum(self.work.tiles) * self.work.tile_bytes
        cold = min(self.work.read_bytes / asked, 1.0) if asked else 1.0
        latency = cold * machine.latency_ns * ghz + (1 - cold) * warp.WARM + self.transfer
        if loop is None:
            return {"loads": 2 * latency}
        if not loop["cold"]:
            return _counted(loop, self.facts, machine, latency)
        far = (latency - warp.WARM) / (warp.COLD - warp.WARM)
        both = {kind: (loop["warm"].get(kind, 0), loop["cold"].get(kind, 0)) for kind in warp.KINDS}
        return {kind: max(warm + far * (cold - warm), 0) for kind, (warm, cold) in both.items() if warm or cold}

    @cached_property
    def outside(self) -> float:
        """Clocks of a program beside whole tiles: what stands outside the loops, and a pass of each other loop with
        products, which masks, in place of a whole tile."""
        machine, whole = machine_of(self.gpu)[0], loop_of(self.facts)
        loops = self.facts["loops"]
        rest = machine.dependent * (self.facts["instructions"] - sum(one["instructions"] for one in loops))
        masked = [one for one in loops if one["matrix"] and one is not whole]
        return max(rest, 0) + sum(sum(self._of(one).values()) - sum(self.clocks.values()) for one in masked)

    @property
    def held(self) -> int:
        """Programs of a unit at once."""
        facts = self.facts
        return max(occupancy(self.gpu.arch, facts["registers"], facts["shared_bytes"], facts["num_warps"]).programs, 1)

    @property
    def issued(self) -> float:
        """Instructions of each warp for a tile."""
        return float((loop_of(self.facts) or {"instructions": 0})["instructions"])

    # A program finds another at a pipe as often as the pipe works for that: so long it waits beside its time alone.
    def said(
        self,
        clocks: Facts | None = None,
        held: int = 0,
        work: Work | None = None,
        outside: float | None = None,
        issued: float = 0,
    ) -> LaunchEstimate:
        """The estimate with what is given in place of its own: clocks and instructions of a tile, programs of a unit,
        cut, clocks outside."""
        clocks, held, work = clocks or self.clocks, held or self.held, work or self.work
        machine, loop = machine_of(self.gpu)[0], loop_of(self.facts)
        together = min(held, max(cdiv(len(work.tiles), self.gpu.units), 1))
        warps, alone = int(self.facts["num_warps"]), sum(clocks.values())
        pipes = {"issue": machine.vector * (issued or self.issued) * warps / SCHEDULERS}
        products = loop["matrix"] if loop else {}
        share = MMA_SHARE if any(name.startswith("HMMA") for name in products) else 1.0
        pipes["matrix"] = matrix_flops(products, warps) / machine.matrix / share
        pipes["bytes"] = self.transfer
        name = max(pipes, key=pipes.__getitem__)
        waits = alone + (together - 1) * sum(held**2 for held in pipes.values()) / max(alone, 1)
        full = together * pipes[name]
        tile = (waits, "latency") if waits >= full else (full, name)
        rest = self.outside if outside is None else outside
        found = estimate_launch(work, self.facts, self.gpu, tile=tile, held=held, outside=rest)
        both = (found.bytes_us**SHARP + found.schedule_us**SHARP) ** (1 / SHARP)
        return replace(found, us=found.launch_us + both)


@dataclass(frozen=True)
class Side:
    """A kernel on the batch: its config and its launches."""

    kernel: str
    config: Mapping[str, Any]
    launches: tuple[Launch, ...]

    @cached_property
    def said(self) -> tuple[LaunchEstimate, ...]:
        return tuple(launch.said() for launch in self.launches)

    @property
    def us(self) -> float:
        return sum(one.us for one in self.said)

    @property
    def main(self) -> int:
        """The most expensive launch."""
        return max(range(len(self.said)), key=lambda i: self.said[i].us)


def side(workload: Workload, kernel: str, config: Facts, facts: Sequence[Facts], gpu: Gpu) -> Side:
    """A kernel with the facts of its launches. Raises NoEstimate."""
    machine_of(gpu)
    found = works(kernel, config, [str(fact["kernel"]) for fact in facts], workload)
    if not found:
        raise NoEstimate(f"kernel: found {kernel} with {len(facts)} launches, allowed one with a rule and facts")
    pairs = zip(facts, found, strict=True)
    return Side(kernel, config, tuple(Launch(fact, work, gpu) for fact, work in pairs))


def sides(workload: Workload, kernels: Sequence[str], gpu: Gpu) -> list[Side]:
    """Each kernel compiled for a GPU. Raises NotCompiled, NoEstimate."""
    found: list[Outcome] = list(compile_in_child([Compilation(workload, kernel) for kernel in kernels], gpu))
    for outcome in found:
        if outcome.status != Status.OK:
            raise NotCompiled(f"{outcome.job.kernel}: {outcome.status}: {outcome.reason}")
    return [side(workload, one.job.kernel, one.config or {}, one.facts, gpu) for one in found]


@dataclass(frozen=True)
class Trade:
    """A property of the faster launch, and the microseconds that the slower one loses without it."""

    name: str
    us: float


def trades(slow: Side, fast: Side) -> list[Trade]:
    """What the slower kernel's time loses with each property of the faster one, the most first: the clocks of a kind,
    all instructions, the programs of a unit, what is outside of tiles, how the batch is cut, the other launches.

    Clocks are compared between tiles of one size; those of another size belong to the cut. In place of sums of products
    stand the clocks that the faster one's products take for as many scores.
    """
    mine, theirs = slow.launches[slow.main], fast.launches[fast.main]
    said, found = mine.said(), []
    now, alike = said.us, _size(mine.work) == _size(theirs.work)
    unmultiplied = _multiplies(theirs) and not _multiplies(mine)
    if unmultiplied:
        scale = math.prod(_size(mine.work)) / math.prod(_size(theirs.work))
        scaled = {kind: clocks * scale for kind, clocks in theirs.clocks.items()}
        found.append(Trade("matrix", now - mine.said(scaled, issued=theirs.issued * scale).us))
    elif alike:
        for kind in dict.fromkeys((*mine.clocks, *theirs.clocks)):
            other = mine.clocks | {kind: theirs.clocks.get(kind, 0.0)}
            found.append(Trade(kind, now - mine.said(other).us))
    if alike and said.limiter == "issue":
        found.append(Trade("instructions", now - mine.said(issued=theirs.issued).us))
    found.append(Trade("programs", now - mine.said(held=theirs.held).us))
    found.append(Trade("outside", now - mine.said(outside=theirs.outside).us))
    bytes_ = {name: getattr(mine.work, name) for name in ("read_bytes", "write_bytes")}
    cut = replace(theirs.work, **bytes_)
    clocks = None if alike or unmultiplied else theirs.clocks
    found.append(Trade("cut", now - mine.said(clocks, work=cut).us))
    found.append(Trade("launches", _others(slow) - _others(fast)))
    return sorted(found, key=lambda one: -one.us)


def _multiplies(one: Launch) -> bool:
    return bool((loop_of(one.facts) or {}).get("matrix"))


def _size(work: Work) -> tuple[int, int]:
    """Rows and keys of a tile."""
    return work.rows, work.keys


def _others(one: Side) -> float:
    return sum(said.us for i, said in enumerate(one.said) if i != one.main)


def ordered(both: Iterable[Side]) -> tuple[Side, Side]:
    """The slower and the faster, by the estimate."""
    slow, fast = sorted(both, key=lambda one: -one.us)
    return slow, fast


def cause(slow: Side, fast: Side) -> Trade | None:
    """What explains most; None where the two are alike."""
    return None if slow.us < fast.us * (1 + LITTLE) else trades(slow, fast)[0]


def sentence(slow: Side, fast: Side) -> str:
    """The difference that explains most of the time, in words."""
    found = cause(slow, fast)
    if found is None:
        limit = slow.said[slow.main].limiter
        return f"{slow.kernel} and {fast.kernel} are estimated alike, {slow.us:.1f} and {fast.us:.1f} us, by {limit}."
    whole = slow.us - fast.us
    head = f"{slow.kernel} is estimated {100 * whole / fast.us:.0f}% above {fast.kernel}"
    named: list[Trade] = []
    for one in trades(slow, fast)[:MOST]:
        if one.us >= LITTLE * whole and sum(other.us for other in named) < whole / 2:
            named.append(one)
    if not named:
        return f"{head}, and no single difference explains it."
    share = min(sum(one.us for one in named) / whole, 1)
    return f"{head}, {100 * share:.0f}% of it by {'; by '.join(_words(one.name, slow, fast) for one in named)}."


ISSUED = {
    "address": "integer arithmetic",
    "mask": "masks",
    "convert": "conversions",
    "arithmetic": "arithmetic",
}
WAITED = {
    "loads": "waiting for global loads", "shared": "shared memory", "exchange": "exchanges between lanes",
    "matrix": "its products", "exp": "exponentials", "barrier": "barriers", "spill": "spilled registers",
}  # fmt: skip


def _words(name: str, slow: Side, fast: Side) -> str:
    """A difference with its figures, the slower kernel's first."""
    both = slow.launches[slow.main], fast.launches[fast.main]
    a, b = (one.facts for one in both)
    if name in (words := ISSUED | WAITED):
        clocks = " for ".join(f"{one.clocks.get(name, 0):.0f}" for one in both)
        kinds = [(loop_of(one) or {"kinds": {}})["kinds"].get(name) for one in (a, b)]
        issued = f" ({kinds[0] or 0} instructions for {kinds[1] or 0})" if any(kinds) else ""
        if name == "matrix":
            issued = f" ({' for '.join(_products(loop_of(one)) for one in (a, b))})"
        return f"{words[name]}: {clocks} clocks a tile{issued}"
    if name == "instructions":
        return f"the instructions of a tile: {both[0].issued:.0f} for {both[1].issued:.0f}"
    if name == "programs":
        needs = f"{a['registers']} registers a thread, {a['shared_bytes']} bytes of shared memory"
        return f"the programs of a unit: {both[0].held} for {both[1].held} ({needs})"
    if name == "outside":
        clocks = " for ".join(f"{one.outside:.0f}" for one in both)
        return f"what a program does beside whole tiles, masked tiles included: {clocks} clocks"
    if name == "launches":
        return f"its other launches: {len(slow.launches)} for {len(fast.launches)}"
    cut = (f"{len(one.work.tiles)} programs of up to {max(one.work.tiles, default=0)} tiles" for one in both)
    return f"how the batch is cut: {' for '.join(cut)}"


WORDS = {"HMMA": "mma.sync", "HGMMA": "wgmma"}


def _products(loop: Facts | None) -> str:
    """Matrix instructions of a loop by kind, and its waits."""
    found = loop["matrix"].items() if loop else ()
    told = ", ".join(
        f"{n} {kind} ({word})" if (word := WORDS.get(kind.split()[0])) else f"{n} {kind}" for kind, n in found
    )
    return f"{told}, {loop['waits']} waits" if told else "no products"


def lines(one: Side) -> list[str]:
    """A kernel's config, launches and loops, for people."""
    limit = one.said[one.main].limiter
    found = [f"{one.kernel}: estimated {one.us:.1f} us, limited by {limit}"]
    found += [f"  {registry.config_words(dict(one.config))}"]
    for launch, said in zip(one.launches, one.said, strict=True):
        found += _launch(launch, said)
    return found


def _launch(launch: Launch, said: LaunchEstimate) -> list[str]:
    facts, loop = launch.facts, loop_of(launch.facts)
    resident = f"{launch.held} a unit by {facts['occupancy']['limit']}" if facts["occupancy"] else "unknown"
    found = [
        f"  {facts['kernel']}: {said.us:.1f} us by {said.limiter}; {len(launch.work.tiles)} programs of "
        f"{facts['num_warps']} warps, {said.waves:.2f} waves",
        f"    {facts['registers']} registers, {facts['spills']} spills, {facts['shared_bytes']} bytes shared, "
        f"{resident}",
    ]
    for one in facts["loops"]:
        if one is loop or one["matrix"]:
            loads = ", ".join(f"{n} of {bits} bits" for bits, n in one["loads"].items()) or "none"
            kinds = ", ".join(f"{n} {kind}" for kind in warp.KINDS if (n := one["kinds"].get(kind)))
            found.append(
                f"    {'a tile' if one is loop else 'other loop'}: {one['instructions']} instructions: {kinds}"
            )
            found.append(f"      {_products(one)}; loads {loads}")
    if loop:
        clocks = ", ".join(f"{launch.clocks[k]:.0f} {k}" for k in warp.KINDS if round(launch.clocks.get(k, 0)))
        found.append(f"    a warp alone, clocks a tile: {sum(launch.clocks.values()):.0f}: {clocks}")
    return found


def told(workload: Workload, kernels: Sequence[str], gpu: Gpu) -> list[str]:
    """Both kernels and the difference that explains most. Raises NotCompiled, NoEstimate."""
    found = sides(workload, kernels, gpu)
    return [line for one in found for line in (*lines(one), "")] + [sentence(*ordered(found))]
