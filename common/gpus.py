"""The GPUs that the project knows by name: what they are, what they peak at, and which of them is in this machine.

Peaks are the vendors' figures for dense arithmetic; a time below `bytes / hbm_gbps` or `flops / bf16_tflops` is
therefore impossible from cold caches, and that is all they are used for. No measured figure is in this table.
"""

import difflib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

KIB, MIB, GIB = 2**10, 2**20, 2**30
# NVIDIA from sm_80 on: registers of an SM, the most of a thread, and the steps in which a thread gets them.
REGISTERS, MOST_REGISTERS, REGISTER_STEP = 65536, 255, 8


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
    """A GPU as a program sees it: of a two-die MI250, one die. A peak that no vendor states is None.

    units: streaming multiprocessors (NVIDIA), compute units (AMD), work-group processors of two (AMD Radeon). hbm_gbps:
    10^9 bytes/s. bf16_tflops: dense matrix peak, 10^12/s. fp32_tflops: vector peak. shared_bytes: the most shared
    memory (LDS) that a program may use. llc_bytes: the last-level cache. memory_bytes: drivers report up to 3% less.
    source: where the figures come from. xcds: dies of compute units, each with its own L2; programs are dealt to them
    round robin (AMD CDNA 3 and CDNA 4 white papers).
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
    def bytes_per_us(self) -> float:
        """Of the memory's peak; of 1 GB/s where no vendor states one."""
        return (self.hbm_gbps or 1) * 1e3

    @property
    def flops_per_us(self) -> float:
        """Of the dense bf16 peak; of 1 TFLOP/s where no vendor states one."""
        return (self.bf16_tflops or 1) * 1e6

    @property
    def tma(self) -> bool:
        """Whether the GPU has tensor descriptors (TMA) and dependent launches: NVIDIA from sm_90 on."""
        return self.vendor == "nvidia" and int(self.arch.removeprefix("sm_")) >= 90

    @property
    def mfma(self) -> bool:
        """Whether this is an AMD data-centre GPU: waves of 64 lanes, 512 registers a lane, MFMA of 32 or 16 rows."""
        return self.vendor == "amd" and self.warp_size == 64

    @property
    def turns_on_read(self) -> bool:
        """Whether wide reads of shared memory can transpose a tile: NVIDIA's ldmatrix, and gfx950's."""
        return self.vendor == "nvidia" or not self.mfma or self.arch == "gfx950"


def unlike(one: Gpu, other: Gpu) -> float:
    """How different two GPUs are for a program: another vendor, another instruction set, then doublings of units,
    shared memory, bandwidth and peak."""
    pairs = [(one.units, other.units), (one.shared_bytes, other.shared_bytes)]
    pairs += [(one.hbm_gbps, other.hbm_gbps), (one.bf16_tflops, other.bf16_tflops)]
    doublings = sum(abs(math.log2(a / b)) for a, b in pairs if a and b)
    return 100 * (one.vendor != other.vendor) + 10 * (one.arch != other.arch) + doublings


# arch: vendor, warp size, KiB of shared memory a program may hold, dies of compute units
_ARCHES: dict[str, tuple[Literal["nvidia", "amd"], int, int, int]] = {
    "sm_80": ("nvidia", 32, 163, 1),
    "sm_90": ("nvidia", 32, 227, 1),
    "sm_100": ("nvidia", 32, 227, 1),
    "sm_89": ("nvidia", 32, 99, 1),
    "sm_120": ("nvidia", 32, 99, 1),
    "gfx90a": ("amd", 64, 64, 1),
    "gfx942": ("amd", 64, 64, 8),
    "gfx950": ("amd", 64, 160, 8),
    "gfx1100": ("amd", 32, 64, 1),
    "gfx1200": ("amd", 32, 64, 1),
}
# Of a row: name, title, arch, units, GB/s, TFLOP/s of bf16 and of fp32, MiB of last-level cache, GiB of memory; source.
_ROWS = (
    ("a100", "NVIDIA A100 SXM 80 GB", "sm_80", 108, 2039.0, 312.0, 19.5, 40, 80,
     "NVIDIA A100 80GB data sheet 2022; NVIDIA Ampere Tuning Guide (163 KB of shared memory a block)"),
    ("h100", "NVIDIA H100 SXM5 80 GB", "sm_90", 132, 3350.0, 989.4, 66.9, 50, 80,
     "NVIDIA H100 architecture whitepaper v1.04, 2023; NVIDIA Hopper Tuning Guide (227 KB a block)"),
    ("h200", "NVIDIA H200 SXM 141 GB", "sm_90", 132, 4800.0, 989.4, 66.9, 60, 141,
     "NVIDIA H200 data sheet 2024; last-level cache: full GH100, NVIDIA H100 architecture whitepaper 2023"),
    ("gh200", "NVIDIA GH200 Grace Hopper 96 GB", "sm_90", 132, 4000.0, 989.4, 66.9, 60, 96,
     "NVIDIA GH200 Grace Hopper Superchip data sheet 2023; last-level cache: full GH100, as for the H200"),
    ("h800", "NVIDIA H800 SXM5 80 GB", "sm_90", 132, 3350.0, 989.4, 66.9, 50, 80,
     "NVIDIA H800 data sheet 2023: an H100 with 400 GB/s of NVLink and 1 TFLOP/s of fp64"),
    ("h20", "NVIDIA H20 96 GB", "sm_90", 78, 4000.0, 148.0, 44.0, 60, 96,
     "NVIDIA H20 product brief 2023, as resellers print it; units by Geekbench's listing of a device 2024"),
    # GB/s: 64 TB/s for eight; bus width and clock of the driver give 7672: the higher keeps floors true
    ("b200", "NVIDIA B200 SXM 180 GB", "sm_100", 148, 8000.0, 2250.0, 75.0, 126, 180,
     "NVIDIA DGX B200 and HGX B200 data sheets 2024, per GPU; NVIDIA Blackwell Tuning Guide (cache, 227 KB)"),
    ("l40s", "NVIDIA L40S", "sm_89", 142, 864.0, 362.05, 91.6, 96, 48,
     "NVIDIA L40S data sheet 2023; NVIDIA Ada Tuning Guide (99 KB a block)"),
    # bf16 with fp32 accumulation
    ("rtx5090", "NVIDIA GeForce RTX 5090", "sm_120", 170, 1792.0, 209.5, 104.8, 96, 32,
     "NVIDIA RTX Blackwell GPU architecture whitepaper 2025; CUDA programming guide (99 KB a block)"),
    ("mi250", "AMD Instinct MI250, one of its two dies", "gfx90a", 104, 1638.4, 181.05, 22.65, 8, 64,
     "AMD Instinct MI250 data sheet 2021, halved; AMD ROCm GPU specifications (104 compute units a die)"),
    ("mi250x", "AMD Instinct MI250X, one of its two dies", "gfx90a", 110, 1638.4, 191.5, 23.95, 8, 64,
     "AMD Instinct MI250X data sheet 2021, halved; AMD ROCm GPU specifications (110 compute units a die)"),
    ("mi300", "AMD Instinct MI300X", "gfx942", 304, 5325.0, 1307.4, 163.4, 256, 192,
     "AMD Instinct MI300X data sheet 2023; AMD ROCm GPU specifications"),
    ("mi325", "AMD Instinct MI325X", "gfx942", 304, 6000.0, 1307.4, 163.4, 256, 256,
     "AMD Instinct MI325X data sheet 2024; AMD ROCm GPU specifications"),
    ("mi350", "AMD Instinct MI350X", "gfx950", 256, 8000.0, 2309.6, 144.2, 256, 288,
     "AMD Instinct MI350X data sheet 2025; AMD ROCm GPU specifications"),
    ("mi355", "AMD Instinct MI355X", "gfx950", 256, 8000.0, 2516.6, 157.3, 256, 288,
     "AMD Instinct MI355X data sheet 2025; AMD ROCm GPU specifications"),
    ("rx7900xtx", "AMD Radeon RX 7900 XTX", "gfx1100", 48, 960.0, 122.8, 61.4, 96, 24,
     "AMD Radeon RX 7900 XTX product page 2022; AMD ROCm GPU specifications"),
    ("rx9060xt", "AMD Radeon RX 9060 XT 16 GB", "gfx1200", 16, 320.0, 103.0, 25.6, 32, 16,
     "AMD Radeon RX 9060 XT product page 2025; AMD ROCm GPU specifications"),
)  # fmt: skip


def _row(name, title, arch, units, hbm_gbps, bf16_tflops, fp32_tflops, llc_mib, memory_gib, source) -> Gpu:
    vendor, warp_size, shared_kib, xcds = _ARCHES[arch]
    peaks = hbm_gbps, bf16_tflops, fp32_tflops
    sizes = shared_kib * KIB, llc_mib * MIB, memory_gib * GIB
    return Gpu(name, title, vendor, arch, units, warp_size, *peaks, *sizes, source, xcds)


_ALL = tuple(_row(*row) for row in _ROWS)
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
    """The row with the longest name that the device's name contains, unless the row is another device's."""
    said = _normal(properties.name)
    return TABLE[_NAMES[max(found, key=len)]] if (found := [name for name in _NAMES if name in said]) else None


def _match(properties: object) -> Gpu | None:
    """The one row of this arch, unit count and memory (within 5%). Twins that differ only in clock or link need the
    name."""
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
    """The GPU that torch sees, or None. A GPU outside the table comes back as `other`, built from its device
    properties."""
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


def warp_size(device: torch.device) -> int:
    """Threads of a warp; of a CPU as many as NVIDIA's."""
    gpu = gpu_of(device)
    return 32 if gpu is None else gpu.warp_size
