"""How many programs of a kernel one unit holds at once, computed from what the compiled code needs.

AMD: waves of a SIMD = min(slots, registers of a lane // registers of a wave, rounded up to the granule); the SIMDs of a
unit share its waves evenly, and LDS divides by a program's, rounded up. NVIDIA: warps of an SM = 65536 // (32 x the
registers of a thread, rounded up to 256), down to a multiple of the four sub-partitions; shared memory divides by a
program's and 1 KiB of the driver's. The compiler's own comment (`; Occupancy`) leaves LDS out.
"""

from dataclasses import dataclass

from common.gpus import REGISTERS


@dataclass(frozen=True)
class Occupancy:
    """programs: that one unit holds at once. waves: of one unit. limit: registers, shared memory or slots."""

    programs: int
    waves: int
    limit: str


class UnknownArch(KeyError):
    """An arch whose limits this file lacks."""


@dataclass(frozen=True)
class _Amd:
    """Of one lane of a SIMD: registers and their granule. Slots of a SIMD. LDS of a unit and its granule, in bytes."""

    registers: int
    granule: int
    slots: int
    simds: int
    lds: int
    lds_granule: int


@dataclass(frozen=True)
class _Nvidia:
    """Shared memory of an SM in bytes; warps and blocks that it holds."""

    shared: int
    warps: int
    blocks: int


# LLVM AMDGPU back end (AMDGPUBaseInfo: VGPR and LDS granules, waves per EU); AMD CDNA 3 and CDNA 4 ISA manuals. A unit
# of RDNA is a work-group processor of two compute units: 4 SIMDs and 128 KiB of LDS.
_CDNA = {"registers": 512, "granule": 8, "slots": 8, "simds": 4}
_RDNA = {"registers": 1536, "granule": 24, "slots": 16, "simds": 4, "lds": 128 * 1024, "lds_granule": 1024}
_AMD = {
    "gfx90a": _Amd(**_CDNA, lds=64 * 1024, lds_granule=512),
    "gfx942": _Amd(**_CDNA, lds=64 * 1024, lds_granule=512),
    "gfx950": _Amd(**_CDNA, lds=160 * 1024, lds_granule=1280),
    "gfx1100": _Amd(**_RDNA),
    "gfx1200": _Amd(**_RDNA),
}
# CUDA C++ Programming Guide, technical specifications per compute capability.
_NVIDIA = {
    "sm_80": _Nvidia(164 * 1024, 64, 32),
    "sm_89": _Nvidia(100 * 1024, 48, 24),
    "sm_90": _Nvidia(228 * 1024, 64, 32),
    "sm_100": _Nvidia(228 * 1024, 64, 32),
    "sm_120": _Nvidia(100 * 1024, 48, 24),
}
_WARP_GRANULE, _PARTITIONS = 256, 4
_RESERVED, _SHARED_GRANULE = 1024, 128  # of shared memory a block, from sm_80 on
_AMD_GROUPS = 32  # work groups of several waves a unit (LLVM: getMaxWorkGroupsPerCU)


def _up(value: int, granule: int) -> int:
    return -(-value // granule) * granule


def occupancy(arch: str, registers: int, shared_bytes: int, num_warps: int) -> Occupancy:
    """registers: of a lane (AMD: accumulation registers included). shared_bytes and num_warps: of one program.

    Raises UnknownArch.
    """
    if arch in _AMD:
        bounds = _amd(_AMD[arch], registers, shared_bytes, num_warps)
    elif arch in _NVIDIA:
        bounds = _nvidia(_NVIDIA[arch], registers, shared_bytes, num_warps)
    else:
        raise UnknownArch(f"arch: found {arch!r}, allowed {', '.join((*_AMD, *_NVIDIA))}")
    limit = min(bounds, key=bounds.__getitem__)
    return Occupancy(bounds[limit], bounds[limit] * num_warps, limit)


def _amd(has: _Amd, registers: int, shared_bytes: int, num_warps: int) -> dict[str, int]:
    waves = has.registers // max(_up(registers, has.granule), has.granule)
    slots = has.slots * has.simds // num_warps
    return {
        "slots": min(slots, _AMD_GROUPS),
        "registers": waves * has.simds // num_warps,
        "shared memory": has.lds // _up(shared_bytes, has.lds_granule) if shared_bytes else slots,
    }


def _nvidia(has: _Nvidia, registers: int, shared_bytes: int, num_warps: int) -> dict[str, int]:
    warps = REGISTERS // _up(max(registers, 1) * 32, _WARP_GRANULE) // _PARTITIONS * _PARTITIONS
    return {
        "slots": min(has.warps // num_warps, has.blocks),
        "registers": warps // num_warps,
        "shared memory": has.shared // (_up(shared_bytes, _SHARED_GRANULE) + _RESERVED),
    }
