"""Explain why one kernel takes longer than another on a batch, from the code of both: no GPU is needed, nothing is
timed.

Both are compiled for the GPU at the configs chosen there. Each launch is described by its facts, and by what a warp
issues for a tile in the innermost loop with products, by kind. The estimate (compare/static/estimate.py) says how long
each may take and what limits it. Then one property of the slower kernel after another is replaced by the faster one's,
in the most expensive launch: the one that shortens the estimate most explains most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.gpus import Gpu
from compare.competitors import registry
from compare.record.records import Status
from compare.static.compile import Compilation, Outcome, compile_in_child
from compare.static.estimate import Estimate, LaunchEstimate, NoEstimate, estimate, estimate_launch
from compare.static.estimate_work import Work, works
from compare.workloads import Workload

KINDS = ("matrix", "transcendental", "vector", "scalar", "loads", "shared_reads", "shared_writes", "barriers", "waits")
LITTLE = 0.02  # part of an estimate below which there is no difference


class NotCompiled(RuntimeError):
    """A kernel has no code for the GPU; the message says why."""


@dataclass(frozen=True)
class Side:
    """A kernel on the batch: its compiled launches, what each does, and how long it may take."""

    kernel: str
    outcome: Outcome
    works: Sequence[Work]
    estimate: Estimate

    @property
    def main(self) -> int:
        """The most expensive launch."""
        launches = self.estimate.launches
        return max(range(len(launches)), key=lambda i: launches[i].us)


def sides(workload: Workload, kernels: Sequence[str], gpu: Gpu) -> list[Side]:
    """Each kernel compiled for a GPU. Raises NotCompiled, NoEstimate."""
    found = []
    for outcome in compile_in_child([Compilation(workload, kernel) for kernel in kernels], gpu):
        kernel = outcome.job.kernel
        if outcome.status != Status.OK:
            raise NotCompiled(f"{kernel}: {outcome.status}: {outcome.reason}")
        said = estimate(workload, kernel, outcome.config or {}, outcome.facts, gpu)
        symbols = [str(fact["kernel"]) for fact in outcome.facts]
        found.append(Side(kernel, outcome, works(kernel, outcome.config or {}, symbols, workload) or (), said))
    return found


def loop_of(facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The leanest innermost loop with products, that of a whole tile; None where there is none."""
    mine = [loop for loop in facts.get("loops", ()) if loop["matrix"]]
    return min(mine, key=lambda loop: loop["instructions"], default=None)


def count(loop: Mapping[str, Any], kind: str) -> int:
    """Instructions of a kind that a warp issues in a pass of a loop."""
    found = loop[kind]
    return sum(found.values()) if isinstance(found, Mapping) else found


def _fast_for(slow: Mapping[str, Any], fast: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {**slow, **{name: fast[name] for name in names}}


# The property of a launch's facts that a difference is about, and its words for the slower and the faster launch.
TRADES: dict[str, tuple[str, ...]] = {
    "instructions a tile": ("instructions", "loops"),
    "kind of product": ("matrix",),
    "programs of a unit": ("registers", "shared_bytes", "num_warps"),
    "loads ahead": ("pipelined", "num_stages"),
}


def trades(slow: Side, fast: Side, gpu: Gpu) -> dict[str, float]:
    """Microseconds that the slower kernel's estimate loses with each property of the faster one, the most first.

    Properties are exchanged in the more expensive launch of either; `launches`: what the slower kernel's other launches
    take beyond the faster one's; `tiles`: how the batch is cut into programs, segments and tiles.
    """
    a, b = slow.main, fast.main
    facts, theirs = slow.outcome.facts[a], fast.outcome.facts[b]
    now = slow.estimate.launches[a].us
    found = {name: now - _us(slow.works[a], _fast_for(facts, theirs, names), gpu) for name, names in TRADES.items()}
    found["tiles"] = now - _us(_as_cut(slow.works[a], fast.works[b]), facts, gpu)
    found["launches"] = _others(slow, a) - _others(fast, b)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _us(work: Work, facts: Mapping[str, Any], gpu: Gpu) -> float:
    return estimate_launch(work, facts, gpu).us


def _as_cut(slow: Work, fast: Work) -> Work:
    """The slower launch's batch, cut as the faster one cuts it."""
    return replace(fast, read_bytes=slow.read_bytes, write_bytes=slow.write_bytes, page_bytes=slow.page_bytes)


def _others(side: Side, main: int) -> float:
    return sum(one.us for i, one in enumerate(side.estimate.launches) if i != main)


def sentence(slow: Side, fast: Side, gpu: Gpu) -> str:
    """The difference that explains most of the time, in words."""
    ratio = slow.estimate.us / max(fast.estimate.us, 1e-9)
    if ratio < 1 + LITTLE:
        us = f"{slow.estimate.us:.1f} and {fast.estimate.us:.1f} us"
        return f"{slow.kernel} and {fast.kernel} are estimated alike: {us}."
    found = trades(slow, fast, gpu)
    name, gain = next(iter(found.items()))
    head = f"{slow.kernel} is estimated {100 * (ratio - 1):.0f}% above {fast.kernel}"
    if gain < LITTLE * slow.estimate.us:
        return f"{head}, and no single difference of their code explains it."
    share = min(gain / (slow.estimate.us - fast.estimate.us), 1.0)
    return f"{head}, {100 * share:.0f}% of it by its {name}: {_words(name, slow, fast)}."


def _words(name: str, slow: Side, fast: Side) -> str:
    """The figures behind a difference, the slower kernel's first."""
    a, b = slow.outcome.facts[slow.main], fast.outcome.facts[fast.main]
    loops = [loop_of(one) for one in (a, b)]
    if name == "instructions a tile" and all(loops):
        most = max(KINDS, key=lambda kind: count(loops[0], kind) - count(loops[1], kind))
        told = f"a warp issues {loops[0]['instructions']} for {loops[1]['instructions']}"
        return f"{told}, {count(loops[0], most)} {most.replace('_', ' ')} for {count(loops[1], most)}"
    if name == "kind of product":
        return " for ".join(", ".join(f"{n} {kind}" for kind, n in one["matrix"].items()) or "none" for one in (a, b))
    if name == "programs of a unit":
        held = [one["occupancy"] for one in (a, b)]
        told = f"{held[0]['programs']} for {held[1]['programs']}"
        return f"{told}, limited by {held[0]['limit']} ({a['registers']} registers a thread, {a['shared_bytes']} bytes)"
    if name == "loads ahead":
        return f"{a['num_stages']} stages for {b['num_stages']}, {a['pipelined']} pipelined loads for {b['pipelined']}"
    if name == "launches":
        return f"{len(slow.outcome.facts)} for {len(fast.outcome.facts)}"
    works_ = slow.works[slow.main], fast.works[fast.main]
    cut = (f"{len(one.tiles)} programs of up to {max(one.tiles, default=0)} tiles" for one in works_)
    return " for ".join(cut)


def lines(side: Side) -> list[str]:
    """A kernel's config, launches and loop, for people."""
    words = registry.config_words(side.outcome.config or {})
    found = [f"{side.kernel}: estimated {side.estimate.us:.1f} us, limited by {side.estimate.limiter}", f"  {words}"]
    for facts, work, said in zip(side.outcome.facts, side.works, side.estimate.launches, strict=True):
        found += _launch(facts, work, said)
    return found


def _launch(facts: Mapping[str, Any], work: Work, said: LaunchEstimate) -> list[str]:
    held = facts["occupancy"]
    resident = f"{held['programs']} a unit by {held['limit']}" if held else "programs a unit unknown"
    loads = ", ".join(f"{n} of {bits} bits" for bits, n in facts["loads"].items()) or "none"
    found = [
        f"  {facts['kernel']}: {said.us:.1f} us by {said.limiter}; {len(work.tiles)} programs, {said.waves:.2f} waves",
        f"    {facts['registers']} registers, {facts['spills']} spills, {facts['shared_bytes']} bytes shared",
        f"    {resident}; loads {loads}; {facts['instructions']} instructions in all",
    ]
    if loop := loop_of(facts):
        kinds = ", ".join(f"{count(loop, kind)} {kind.replace('_', ' ')}" for kind in KINDS if count(loop, kind))
        matrix = ", ".join(f"{n} {kind}" for kind, n in loop["matrix"].items())
        found.append(f"    a tile, each warp: {loop['instructions']} instructions: {kinds} ({matrix})")
    return found


def told(workload: Workload, kernels: Sequence[str], gpu: Gpu) -> list[str]:
    """Both kernels and the difference that explains most. Raises NotCompiled, NoEstimate."""
    found = sides(workload, kernels, gpu)
    slow, fast = sorted(found, key=lambda side: -side.estimate.us)
    return [line for side in found for line in (*lines(side), "")] + [sentence(slow, fast, gpu)]


__all__ = ["NoEstimate", "NotCompiled", "Side", "lines", "sentence", "sides", "told", "trades"]
