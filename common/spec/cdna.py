"""What a Config says to AMD's data-centre GPUs (CDNA) beside rows, tiles, warps and stages."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Cdna:
    """Fields of the configs of both DSLs, by keyword alone; with their defaults a kernel is what it is without them.

    matrix_instr: rows of a matrix instruction, 16 or 32; 0: the compiler's choice. AMD alone.
    waves_per_eu: waves of a SIMD for which the compiler keeps registers; 0: its choice. AMD alone. More hide latency,
    and spill where a wave needs more registers than they leave.
    xcds: dies to which programs are dealt in turn. The programs of a die then take neighbouring places in an order in
    which those of one KV head follow each other, so that they share an L2; 1: the grid's own order.
    transposed_keys: K is loaded as [head, tile], as its product takes it. Triton 3.7 swizzles it in shared memory only
    so: rows of a K that it transposes itself begin in one bank, and reads of 16 lanes wait for each other.
    stream: K and V pass the cache of a unit without staying there (`.cg`): a decode reads each line once.
    """

    matrix_instr: int = 0
    waves_per_eu: int = 0
    xcds: int = 1
    transposed_keys: bool = False
    stream: bool = False


LEVERS = tuple(field.name for field in fields(Cdna))
