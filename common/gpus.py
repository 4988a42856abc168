"""The GPUs that the project knows by name: what they are, what they peak at, and which of them is in this machine.

Peaks are the vendors' figures for dense arithmetic; a time below `bytes / hbm_gbps` or `flops / bf16_tflops` is
therefore impossible from cold caches, and that is all they are used for. No measured figure is in this table.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

KIB, MIB, GIB = 2**10, 2**20, 2**30


class UnknownGpu(ValueError):
    """A GPU name outside the table; `nearest` holds the names most like it, `allowed` all of them."""

    def __init__(self, found: str) -> None:
        self.found = found
        self.allowed = tuple(TABLE)
        self.nearest = tuple(
            dict.fromkeys(_NAMES[n] for n in difflib.get_close_matches(_normal(found), _NAMES, n=3, cutoff=0.5))
        )
        hint = f"; nearest: {', '.join(self.nearest)}" if self.nearest else ""
        super().__init__(f"gpu: found {found!r}, allowed {', '.join(self.allowed)}{hint}")


@dataclass(frozen=True)
class Gpu:
    """One GPU as a program sees it (of a two-die MI250 that is one die). A peak that nobody states is None.

    units: streaming multiprocessors (NVIDIA), compute units (AMD), work-group processors of two (AMD Radeon).
    hbm_gbps: 10^9 bytes/s. bf16_tflops: dense matrix peak, 10^12/s. fp32_tflops: vector peak. shared_bytes: the most
    shared memory (LDS) one program may hold. llc_bytes: the last cache before the memory. memory_bytes: drivers report
    up to 3% less. source: where the figures are from. xcds: dies of compute units, each with an L2 of its own; programs
    are dealt to them in turn (AMD CDNA 3 and CDNA 4 white papers).
    """

    name: str
    title: str
    vendor: Literal["nvidia", "amd"]
    arch: str
    units: int
    warp_size: int
    hbm_gbps: float | None
    bf16_tflops: float | None
    fp32_tflops: float | None
    shared_bytes: int
    llc_bytes: int
    memory_bytes: int
    source: str
    xcds: int = 1

    @property
    def tma(self) -> bool:
        """Tensor descriptors are a unit of the GPU, and a launch may begin before the one it depends on has ended:
        NVIDIA's from sm_90 on."""
        return self.vendor == "nvidia" and int(self.arch.removeprefix("sm_")) >= 90

    @property
    def wgmma(self) -> bool:
        """Products of four warps that read their operands from shared memory: sm_90 alone."""
        return self.arch == "sm_90"

    @property
    def mfma(self) -> bool:
        """AMD's data-centre GPUs: waves of 64 lanes, 512 registers a lane, MFMA of 32 or 16 rows."""
        return self.vendor == "amd" and self.warp_size == 64

    @property
    def fp8_products(self) -> bool:
        """Matrix products of 8-bit floats: sm_89 and gfx942 on."""
        return int(self.arch.removeprefix("sm_")) >= 89 if self.vendor == "nvidia" else self.arch not in _NO_FP8

    @property
    def flops_per_byte(self) -> float | None:
        """Dense bf16 operations in the time that a byte takes to come: its roofline's corner. None where one of both
        peaks is unknown."""
        known = self.bf16_tflops and self.hbm_gbps
        return 1e3 * self.bf16_tflops / self.hbm_gbps if known else None

    @property
    def turns_on_read(self) -> bool:
        """Shared memory gives a transposed tile in wide reads: NVIDIA's ldmatrix, and gfx950's."""
        return self.vendor == "nvidia" or not self.mfma or self.arch == "gfx950"


_NO_FP8 = ("gfx90a", "gfx1100")
_SM80 = {"vendor": "nvidia", "arch": "sm_80", "warp_size": 32, "shared_bytes": 163 * KIB}
_SM90 = {"vendor": "nvidia", "arch": "sm_90", "warp_size": 32, "shared_bytes": 227 * KIB}
_SM100 = {"vendor": "nvidia", "arch": "sm_100", "warp_size": 32, "shared_bytes": 227 * KIB}
_SM89 = {"vendor": "nvidia", "arch": "sm_89", "warp_size": 32, "shared_bytes": 99 * KIB}
_GFX90A = {"vendor": "amd", "arch": "gfx90a", "warp_size": 64, "shared_bytes": 64 * KIB, "llc_bytes": 8 * MIB}
_GFX942 = {"vendor": "amd", "arch": "gfx942", "warp_size": 64, "shared_bytes": 64 * KIB,
           "llc_bytes": 256 * MIB, "xcds": 8}  # fmt: skip
_GFX950 = {"vendor": "amd", "arch": "gfx950", "warp_size": 64, "shared_bytes": 160 * KIB,
           "llc_bytes": 256 * MIB, "xcds": 8}  # fmt: skip
_RDNA = {"vendor": "amd", "warp_size": 32, "shared_bytes": 64 * KIB}
_ALL = (
    Gpu(
        name="a100",
        title="NVIDIA A100 SXM 80 GB",
        units=108,
        hbm_gbps=2039.0,
        bf16_tflops=312.0,
        fp32_tflops=19.5,
        llc_bytes=40 * MIB,
        memory_bytes=80 * GIB,
        source="NVIDIA A100 80GB data sheet 2022; NVIDIA Ampere Tuning Guide (163 KB of shared memory a block)",
        **_SM80,
    ),
    Gpu(
        name="h100",
        title="NVIDIA H100 SXM5 80 GB",
        units=132,
        hbm_gbps=3350.0,
        bf16_tflops=989.4,
        fp32_tflops=66.9,
        llc_bytes=50 * MIB,
        memory_bytes=80 * GIB,
        source="NVIDIA H100 architecture whitepaper v1.04, 2023; NVIDIA Hopper Tuning Guide (227 KB a block)",
        **_SM90,
    ),
    Gpu(
        name="h200",
        title="NVIDIA H200 SXM 141 GB",
        units=132,
        hbm_gbps=4800.0,
        bf16_tflops=989.4,
        fp32_tflops=66.9,
        llc_bytes=60 * MIB,
        memory_bytes=141 * GIB,
        source="NVIDIA H200 data sheet 2024; last-level cache: full GH100, NVIDIA H100 architecture whitepaper 2023",
        **_SM90,
    ),
    Gpu(
        name="gh200",
        title="NVIDIA GH200 Grace Hopper 96 GB",
        units=132,
        hbm_gbps=4000.0,
        bf16_tflops=989.4,
        fp32_tflops=66.9,
        llc_bytes=60 * MIB,
        memory_bytes=96 * GIB,
        source="NVIDIA GH200 Grace Hopper Superchip data sheet 2023; last-level cache: full GH100, as for the H200",
        **_SM90,
    ),
    Gpu(
        name="h800",
        title="NVIDIA H800 SXM5 80 GB",
        units=132,
        hbm_gbps=3350.0,
        bf16_tflops=989.4,
        fp32_tflops=66.9,
        llc_bytes=50 * MIB,
        memory_bytes=80 * GIB,
        source="NVIDIA H800 data sheet 2023: an H100 with 400 GB/s of NVLink and 1 TFLOP/s of fp64",
        **_SM90,
    ),
    Gpu(
        name="h20",
        title="NVIDIA H20 96 GB",
        units=78,
        hbm_gbps=4000.0,
        bf16_tflops=148.0,
        fp32_tflops=44.0,
        llc_bytes=60 * MIB,
        memory_bytes=96 * GIB,
        source="NVIDIA H20 product brief 2023, as resellers print it; units by Geekbench's listing of a device 2024",
        **_SM90,
    ),
    Gpu(
        name="b200",
        title="NVIDIA B200 SXM 180 GB",
        units=148,
        hbm_gbps=8000.0,  # 64 TB/s for eight; bus width and clock of the driver give 7672: the higher keeps floors true
        bf16_tflops=2250.0,
        fp32_tflops=75.0,
        llc_bytes=126 * MIB,
        memory_bytes=180 * GIB,
        source="NVIDIA DGX B200 and HGX B200 data sheets 2024, per GPU; NVIDIA Blackwell Tuning Guide (cache, 227 KB)",
        **_SM100,
    ),
    Gpu(
        name="l40s",
        title="NVIDIA L40S",
        units=142,
        hbm_gbps=864.0,
        bf16_tflops=362.05,
        fp32_tflops=91.6,
        llc_bytes=96 * MIB,
        memory_bytes=48 * GIB,
        source="NVIDIA L40S data sheet 2023; NVIDIA Ada Tuning Guide (99 KB a block)",
        **_SM89,
    ),
    Gpu(
        name="rtx5090",
        title="NVIDIA GeForce RTX 5090",
        units=170,
        hbm_gbps=1792.0,
        bf16_tflops=209.5,  # with fp32 accumulation
        fp32_tflops=104.8,
        llc_bytes=96 * MIB,
        memory_bytes=32 * GIB,
        source="NVIDIA RTX Blackwell GPU architecture whitepaper 2025; CUDA programming guide (99 KB a block)",
        **_SM89 | {"arch": "sm_120"},
    ),
    Gpu(
        name="mi250",
        title="AMD Instinct MI250, one of its two dies",
        units=104,
        hbm_gbps=1638.4,
        bf16_tflops=181.05,
        fp32_tflops=22.65,
        memory_bytes=64 * GIB,
        source="AMD Instinct MI250 data sheet 2021, halved; AMD ROCm GPU specifications (104 compute units a die)",
        **_GFX90A,
    ),
    Gpu(
        name="mi250x",
        title="AMD Instinct MI250X, one of its two dies",
        units=110,
        hbm_gbps=1638.4,
        bf16_tflops=191.5,
        fp32_tflops=23.95,
        memory_bytes=64 * GIB,
        source="AMD Instinct MI250X data sheet 2021, halved; AMD ROCm GPU specifications (110 compute units a die)",
        **_GFX90A,
    ),
    Gpu(
        name="mi300",
        title="AMD Instinct MI300X",
        units=304,
        hbm_gbps=5325.0,
        bf16_tflops=1307.4,
        fp32_tflops=163.4,
        memory_bytes=192 * GIB,
        source="AMD Instinct MI300X data sheet 2023; AMD ROCm GPU specifications",
        **_GFX942,
    ),
    Gpu(
        name="mi325",
        title="AMD Instinct MI325X",
        units=304,
        hbm_gbps=6000.0,
        bf16_tflops=1307.4,
        fp32_tflops=163.4,
        memory_bytes=256 * GIB,
        source="AMD Instinct MI325X data sheet 2024; AMD ROCm GPU specifications",
        **_GFX942,
    ),
    Gpu(
        name="mi350",
        title="AMD Instinct MI350X",
        units=256,
        hbm_gbps=8000.0,
        bf16_tflops=2309.6,
        fp32_tflops=144.2,
        memory_bytes=288 * GIB,
        source="AMD Instinct MI350X data sheet 2025; AMD ROCm GPU specifications",
        **_GFX950,
    ),
    Gpu(
        name="mi355",
        title="AMD Instinct MI355X",
        units=256,
        hbm_gbps=8000.0,
        bf16_tflops=2516.6,
        fp32_tflops=157.3,
        memory_bytes=288 * GIB,
        source="AMD Instinct MI355X data sheet 2025; AMD ROCm GPU specifications",
        **_GFX950,
    ),
    Gpu(
        name="rx7900xtx",
        title="AMD Radeon RX 7900 XTX",
        arch="gfx1100",
        units=48,
        hbm_gbps=960.0,
        bf16_tflops=122.8,
        fp32_tflops=61.4,
        llc_bytes=96 * MIB,
        memory_bytes=24 * GIB,
        source="AMD Radeon RX 7900 XTX product page 2022; AMD ROCm GPU specifications",
        **_RDNA,
    ),
    Gpu(
        name="rx9060xt",
        title="AMD Radeon RX 9060 XT 16 GB",
        arch="gfx1200",
        units=16,
        hbm_gbps=320.0,
        bf16_tflops=103.0,
        fp32_tflops=25.6,
        llc_bytes=32 * MIB,
        memory_bytes=16 * GIB,
        source="AMD Radeon RX 9060 XT product page 2025; AMD ROCm GPU specifications",
        **_RDNA,
    ),
)

TABLE: dict[str, Gpu] = {gpu.name: gpu for gpu in _ALL}
ALIASES = {"mi300x": "mi300", "mi325x": "mi325", "mi350x": "mi350", "mi355x": "mi355"}
_NAMES = {name: name for name in TABLE} | ALIASES
ARCHES: tuple[str, ...] = tuple(dict.fromkeys(gpu.arch for gpu in _ALL))


def _normal(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def resolve(name: str) -> Gpu:
    """The GPU of that name or alias; case, spaces, dashes and a vendor in front do not matter. Raises UnknownGpu."""
    key = _normal(name)
    for vendor in ("nvidia", "amd", "instinct"):
        key = key.removeprefix(vendor)
    if key not in _NAMES:
        raise UnknownGpu(name)
    return TABLE[_NAMES[key]]


def arch_of(properties: object) -> str:
    """`sm_90` or `gfx942` from torch's device properties."""
    if torch.version.hip:
        return str(properties.gcnArchName).split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def _named(properties: object) -> Gpu | None:
    """The row whose name, the longest one, is in that of the device; that is no device of another row."""
    said = _normal(properties.name)
    return TABLE[_NAMES[max(found, key=len)]] if (found := [name for name in _NAMES if name in said]) else None


def _match(properties: object) -> Gpu | None:
    """The one row of this arch, unit count and memory (within 5%), which is no other than the name's; twins, which
    differ in clock or link alone, need the name."""
    arch, named = arch_of(properties), _named(properties)
    rows = [
        gpu
        for gpu in _ALL
        if gpu.arch == arch
        and gpu.units == properties.multi_processor_count
        and abs(properties.total_memory / gpu.memory_bytes - 1) < 0.05
        and named in (None, gpu)
    ]
    return rows[0] if len(rows) == 1 else None


def _from_properties(properties: object) -> Gpu:
    amd, named = bool(torch.version.hip), _named(properties)
    share = properties.multi_processor_count / named.units if named else 0
    clock_khz = getattr(properties, "memory_clock_rate", 0)
    bus_bits = getattr(properties, "memory_bus_width", 0)
    shared = getattr(properties, "shared_memory_per_block_optin", 0) or properties.shared_memory_per_block
    return Gpu(
        name="other",
        title=properties.name,
        vendor="amd" if amd else "nvidia",
        arch=arch_of(properties),
        units=properties.multi_processor_count,
        warp_size=properties.warp_size,
        hbm_gbps=2 * clock_khz * bus_bits / 8e6 or None,  # double data rate
        bf16_tflops=named.bf16_tflops * share or None if named and named.bf16_tflops else None,  # as the row it names
        fp32_tflops=None,
        shared_bytes=shared,
        llc_bytes=properties.L2_cache_size,
        memory_bytes=properties.total_memory,
        source="device properties",
    )


def detect(index: int = 0) -> Gpu | None:
    """What torch sees, or None. One outside the table comes back as `other`, built from its device properties."""
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        return None
    properties = torch.cuda.get_device_properties(index)
    return _match(properties) or _from_properties(properties)


# The GPU behind a device, asked of the driver once.


_at = lru_cache(maxsize=64)(detect)


def gpu_of(device: torch.device) -> Gpu | None:
    """The GPU behind a device; None for a CPU."""
    if device.type != "cuda":
        return None
    return _at(torch.cuda.current_device() if device.index is None else device.index)
