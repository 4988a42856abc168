"""What one tile costs a program, from the facts of its code object.

Where the facts hold the inner loop (`loop`), its instructions are one tile's. Where they hold the whole text only, the
tile's code stands in it once per loop (unmasked, masked twice, what pipelining peeled off): matrix FLOPs of the text
over those of one tile tell how often, and instructions are shared out evenly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compare.estimate_work import Work

TRANSCENDENTAL = 4  # times the clocks of a plain vector instruction: v_exp and MUFU run at a quarter of the rate
_SHAPE = re.compile(r"(?P<kind>mfma|smfmac|wmma|HMMA|HGMMA|QGMMA|IMMA) ?(?P<shape>[0-9x]+)")
_HMMA = {"16816": 16 * 8 * 16, "1688": 16 * 8 * 8, "16832": 16 * 8 * 32}
GROUP = 4  # warps that issue one HGMMA together


@dataclass(frozen=True)
class TileCode:
    """One tile of one program. instructions: of each warp. vector, transcendental: of these, where known.

    matrix_flops: issued by all warps, redundant ones included. ahead: tiles whose loads are
    in flight while one is computed; 0 without a pipeline.
    """

    warps: int
    instructions: float
    vector: float
    transcendental: float
    matrix_flops: float
    ahead: int

    def pipe_clocks(self, vector: int) -> float:
        """Clocks that one warp's tile holds the vector pipe; `vector`: those of a plain instruction."""
        return vector * (self.vector + (TRANSCENDENTAL - 1) * self.transcendental)


def flops_of(instruction: str, warps: int) -> float:
    """Matrix FLOPs of one such instruction in the text, over all warps of a program; 0 for a shape without a rule."""
    found = _SHAPE.match(instruction)
    if not found:
        return 0.0
    if found["kind"] == "HGMMA":
        m, n, k = map(int, found["shape"].split("x"))
        return 2.0 * m * n * k * warps / GROUP
    if "x" in found["shape"]:
        m, n, k = map(int, found["shape"].split("x"))
        return 2.0 * m * n * k * warps
    return 2.0 * _HMMA.get(found["shape"], 0) * warps


def text_flops(matrix: Mapping[str, int], warps: int) -> float:
    """Matrix FLOPs of a text or loop run through once by every warp."""
    return sum(count * flops_of(name, warps) for name, count in matrix.items())


def tile_code(work: Work, facts: Mapping[str, Any]) -> TileCode:
    """What a tile of `work` costs in the code that `facts` describe."""
    warps = int(facts["num_warps"])
    ahead = max(int(facts["num_stages"]) - 1, 1) if facts.get("pipelined") else 0
    issued = text_flops(facts["matrix"], warps)
    copies = max(issued / work.tile_flops, 1.0) if work.tile_flops and issued else 1.0
    each = facts["instructions"] / copies
    return TileCode(warps, each, each, 0.0, float(work.tile_flops if issued else 0), ahead)
