"""Config fields for AMD's data-centre GPUs (CDNA), beside rows, tiles, warps and stages."""

from dataclasses import dataclass, fields
from typing import Any

from common.spec.toolchain import toolchain


@dataclass(frozen=True, kw_only=True)
class Cdna:
    """Keyword-only fields of both DSLs' configs; their defaults change nothing.

    matrix_instr: rows of a matrix instruction, 16 or 32; 0: the compiler chooses. AMD only.
    waves_per_eu: waves of a SIMD that the compiler keeps registers for; 0: it chooses. AMD only. More waves hide more
    latency, but spill where a wave needs more registers than they leave.
    xcds: dies to which programs are dealt round robin. Programs of one KV head are then placed on one die, so that they
    share its L2; 1: the grid's own order.
    transposed_keys: load K as [head, tile], the operand of its product. Triton 3.7 swizzles K in shared memory only
    then; otherwise 16 lanes read rows that start in one bank, and wait for each other.
    stream: K and V bypass the unit's cache (`.cg`), because a decode reads each line once.
    ilp: LLVM orders instructions for parallelism (iterative-ilp), not for occupancy: a tile's loads are waited for
    behind the products of the tile before. AMD only.
    """

    matrix_instr: int = 0
    waves_per_eu: int = 0
    xcds: int = 1
    transposed_keys: bool = False
    stream: bool = False
    ilp: bool = False

    def options(self) -> dict[str, Any]:
        """Options of Triton's compiler for AMD; none of what the config leaves to the compiler."""
        asked = {"matrix_instr_nonkdim": self.matrix_instr, "waves_per_eu": self.waves_per_eu}
        return {name: value for name, value in asked.items() if value} | scheduling(self)


LEVERS = tuple(field.name for field in fields(Cdna))

ILP = "schedule_hint", "memory-bound-attention"  # of Triton 3.6 to 3.8
ILP_SINCE_3_9 = "llvm_fn_attrs", "amdgpu-sched-strategy=iterative-ilp"


def scheduling(config: Any) -> dict[str, str]:
    """The options that Helion has no setting for."""
    if not getattr(config, "ilp", False):
        return {}
    name, word = ILP if toolchain("gfx9").triton < (3, 9) else ILP_SINCE_3_9
    return {name: word}
