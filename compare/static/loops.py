"""Innermost loops of a kernel's text, and what one wave issues in a pass: the same counts for AMD and NVIDIA code.

A loop is the text between a label and the last branch back to it. Pipelining peels off prologues and epilogues, so
counts of the whole text would count such a loop several times.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Mix:
    """Instructions of one wave (AMD) or warp (NVIDIA), counted by class.

    matrix: by shape; matrix_flops: FLOPs of these, None where the code does not tell. vector: arithmetic other than
    matrix and transcendental. loads: of global memory, by bits a lane (`tma`: a descriptor's); to_shared: loads that
    bypass registers. shared_reads, shared_writes: LDS, by bits a lane (`ldmatrix` is 128). spill_traffic: accesses
    of scratch. waits: for memory. kinds: all instructions by the kinds of compare.static.warp; cold, warm: clocks of a
    pass of a warp alone, by kind, where loads of global memory come from memory or from L2 (NVIDIA up to sm_90).
    """

    instructions: int
    matrix: dict[str, int] = field(hash=False)
    matrix_flops: int | None
    vector: int
    transcendental: int
    loads: dict[str, int] = field(hash=False)
    to_shared: int
    shared_reads: dict[str, int] = field(hash=False)
    shared_writes: dict[str, int] = field(hash=False)
    spill_traffic: int
    barriers: int
    waits: int
    kinds: dict[str, int] = field(hash=False, default_factory=dict)
    cold: dict[str, int] = field(hash=False, default_factory=dict)
    warm: dict[str, int] = field(hash=False, default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """One instruction: its class in Mix, and its key there (shape or bits). flops: of a matrix instruction."""

    kind: str
    key: str = ""
    flops: int | None = 0
    to_shared: bool = False


def mix(seen: Iterable[Seen]) -> Mix:
    """Count classified instructions."""
    seen = list(seen)
    kinds = Counter(one.kind for one in seen)

    def by_key(kind: str) -> dict[str, int]:
        return dict(Counter(one.key for one in seen if one.kind == kind))

    flops = [one.flops for one in seen if one.kind == "matrix"]
    return Mix(
        instructions=len(seen) - kinds["nothing"],
        matrix=by_key("matrix"),
        matrix_flops=None if None in flops else sum(flops),
        vector=kinds["vector"],
        transcendental=kinds["transcendental"],
        loads=by_key("load"),
        to_shared=sum(one.to_shared for one in seen),
        shared_reads=by_key("shared_read"),
        shared_writes=by_key("shared_write"),
        spill_traffic=kinds["spill"],
        barriers=kinds["barrier"],
        waits=kinds["wait"],
    )


def innermost(branches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Half-open ranges of instructions between a target and its backward branch that contain no other such range."""
    ends: dict[int, int] = {}
    for at, target in branches:
        if target <= at:
            ends[target] = max(ends.get(target, 0), at + 1)
    ranges = sorted(ends.items())
    return [a for a in ranges if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in ranges)]


def worthwhile(loops: Sequence[Mix]) -> tuple[Mix, ...]:
    """The loops that multiply or read global memory, heaviest first; searches and scalar copies are irrelevant."""
    kept = [loop for loop in loops if loop.matrix or loop.loads]
    return tuple(sorted(kept, key=lambda loop: (-(loop.matrix_flops or 0), -loop.instructions)))


# The error of everything that reads compiled code.


class UnreadableCode(RuntimeError):
    """A code object or text lacks the note, section or line of a fact; the message names it."""
