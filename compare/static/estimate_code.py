"""What one tile costs a program, from the facts of its code object.

NVIDIA: facts hold counts of the whole text. The tile's code stands in it once per loop (unmasked, masked twice, what
pipelining peeled off): matrix FLOPs of the text over those of one tile tell how often, and instructions are shared out
evenly. AMD: facts hold the inner loops by class of instruction; the leanest loop with matrix instructions, or the
leanest at all where none has any, is one tile's. There redundant matrix work shows, as the loop issues more FLOPs than
a tile has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compare.static.estimate_work import Work

TRANSCENDENTAL = (
    4  # times the clocks of a plain vector instruction: v_exp runs at a quarter of the rate (AMD CDNA3 ISA)
)
LDS_BYTES = 128  # a clock and compute unit (AMD CDNA3 white paper)
LANES = 64  # of an AMD wave
GROUP = 4  # warps that issue one HGMMA together (PTX ISA, wgmma)
_SHAPE = re.compile(r"(?P<kind>mfma|smfmac|wmma|HMMA|HGMMA|QGMMA|IMMA) ?(?P<shape>[0-9x]+)")
_HMMA = {"16816": 16 * 8 * 16, "1688": 16 * 8 * 8, "16832": 16 * 8 * 32}


@dataclass(frozen=True)
class TileCode:
    """One tile of one program. instructions: of each warp. vector, transcendental: of these; where they are not told
    apart, all are vector ones. shared_bytes: that a warp moves to and from shared memory.

    matrix_flops: issued by all warps, redundant ones included. ahead: tiles whose loads are in flight while one is
    computed; 0 without a pipeline.
    """

    warps: int
    instructions: float
    vector: float
    transcendental: float
    shared_bytes: float
    matrix_flops: float
    ahead: int

    def vector_clocks(self, vector: int) -> float:
        """Clocks that one warp's tile holds the vector pipe; `vector`: those of a plain instruction."""
        return vector * (self.vector + (TRANSCENDENTAL - 1) * self.transcendental)

    def alone_clocks(self, dependent: float) -> float:
        """Clocks that one warp needs to issue a tile by itself; `dependent`: between two plain instructions."""
        return dependent * (self.instructions + (TRANSCENDENTAL - 1) * self.transcendental)


def flops_of(instruction: str, warps: int) -> float:
    """Matrix FLOPs of one such instruction in the text, over all warps of a program; 0 for a shape without a rule."""
    found = _SHAPE.match(instruction)
    if not found:
        return 0.0
    if "x" not in found["shape"]:
        return 2.0 * _HMMA.get(found["shape"], 0) * warps
    m, n, k = map(int, found["shape"].split("x")[:3])
    return 2.0 * m * n * k * warps / (GROUP if found["kind"] == "HGMMA" else 1)


def matrix_flops(matrix: Mapping[str, int], warps: int) -> float:
    """Matrix FLOPs of a text or loop that every warp runs through once."""
    return sum(count * flops_of(name, warps) for name, count in matrix.items())


def tile_code(work: Work, facts: Mapping[str, Any]) -> TileCode:
    """What a tile of `work` costs in the code that `facts` describe."""
    warps = int(facts["num_warps"])
    ahead = max(int(facts["num_stages"]) - 1, 1) if facts.get("pipelined") else 0
    if str(facts["arch"]).startswith("gfx") and facts.get("loops"):
        return _looped(facts["loops"], warps, ahead)
    issued = matrix_flops(facts["matrix"], warps)
    copies = max(issued / work.tile_flops, 1.0) if work.tile_flops and issued else 1.0
    each = facts["instructions"] / copies
    return TileCode(warps, each, each, 0.0, 0.0, float(work.tile_flops if issued else 0), ahead)


def _looped(loops: Sequence[Mapping[str, Any]], warps: int, ahead: int) -> TileCode:
    """The leanest loop with matrix instructions; loops are compare.static.loops.Mix as plain values, of one wave."""
    loop = min(loops, key=lambda one: (not one["matrix"], one["instructions"]))
    issues = sum(loop["matrix"].values())  # a matrix instruction takes a vector instruction's turn
    moved = sum(int(bits) // 8 * LANES * n for way in ("reads", "writes") for bits, n in loop[f"shared_{way}"].items())
    flops = loop["matrix_flops"] * warps if loop["matrix_flops"] else 0.0
    vector = loop["vector"] + loop["transcendental"] + issues
    return TileCode(warps, loop["instructions"], vector, loop["transcendental"], moved, flops, ahead)
