"""How fast a kernel may be on a GPU, from its compiled code and the workload alone: never a time.

floor: no call can be faster, from cold caches at the vendor's peaks: Williams, Waterman and Patterson, Roofline, 2009,
    max(distinct bytes / memory peak, useful FLOPs / matrix peak).
estimate: launch by launch, `launch + max(start + bytes, schedule)`:
    bytes     max(bytes / (sustained share x memory peak), bytes of all tiles / second-level cache's rate)
    schedule  the makespan of the programs' tiles, dealt in launch order to units x resident programs (list scheduling,
              Graham 1969): whole waves and uneven lengths cost what they cost
    tile      max(alone, together): alone is one program's chain of dependent steps; together is what the busier of a
              unit's pipes needs for the tiles of all programs that live on it
    alone     instructions of one warp x clocks between two dependent ones + its matrix work + the loads it waits for:
              a latency / tiles in flight (Little's law), or two latencies, the page's and the key's, without a pipeline
    together  resident programs x max(matrix FLOPs / matrix rate, vector instructions x clocks of issue / schedulers,
              bytes of shared memory / its rate)
limiter: what decided: launch, bytes, matrix, issue or latency.

Which Machine constant is from where stands beside it. None is fitted to a time of any kernel of this project.
"""

import heapq
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from common.gpus import Gpu
from common.spec.metadata import cdiv
from compare.static.estimate_work import Work, works
from compare.static.occupancy import occupancy
from compare.workloads import Workload, cost

# What one tile costs a program, from the facts of its code object.
#
# NVIDIA: facts hold counts of the whole text. The tile's code stands in it once per loop (unmasked, masked twice, what
# pipelining peeled off): matrix FLOPs of the text over those of one tile tell how often, and instructions are shared
# out evenly. AMD: facts hold the inner loops by class of instruction; the leanest loop with matrix instructions, or
# the leanest at all where none has any, is one tile's. There redundant matrix work shows, as the loop issues more
# FLOPs than a tile has.


TRANSCENDENTAL = 4  # clocks relative to a vector instruction: v_exp (AMD CDNA3 ISA)
LDS_BYTES = 128  # a clock and compute unit (AMD CDNA3 white paper)
LANES = 64  # of an AMD wave
GROUP = 4  # warps that issue one HGMMA together (PTX ISA, wgmma)
_SHAPE = re.compile(r"(?P<kind>mfma|smfmac|wmma|HMMA|HGMMA|QGMMA|IMMA) ?(?P<shape>[0-9x]+)")
_HMMA = {"16816": 16 * 8 * 16, "1688": 16 * 8 * 8, "16832": 16 * 8 * 32}


@dataclass(frozen=True)
class TileCode:
    """A tile of one program. instructions: of each warp, a transcendental one as four. vector: of these; without a
    distinction all are. shared_bytes: that a warp moves to and from shared memory, bank conflicts as bytes.

    matrix_flops: issued by all warps, redundant ones included. ahead: tiles whose loads are in flight while one is
    computed; 0 without a pipeline.
    """

    warps: int
    instructions: float
    vector: float
    shared_bytes: float
    matrix_flops: float
    ahead: int


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
        executed = facts.get("executed") or {}  # by the ISA model
        fewest = executed.get("lds fewest")
        return _looped(facts["loops"], warps, ahead, executed["lds clocks"] / fewest if fewest else 1.0)
    issued = matrix_flops(facts["matrix"], warps)
    copies = max(issued / work.tile_flops, 1.0) if work.tile_flops and issued else 1.0
    each = facts["instructions"] / copies
    return TileCode(warps, each, each, 0.0, float(work.tile_flops if issued else 0), ahead)


def _looped(loops: Sequence[Mapping[str, Any]], warps: int, ahead: int, conflicts: float) -> TileCode:
    """The leanest loop with matrix instructions; loops are compare.static.loops.Mix as plain values, of one wave."""
    loop = min(loops, key=lambda one: (not one["matrix"], one["instructions"]))
    issues = sum(loop["matrix"].values())  # a matrix instruction takes an issue slot
    moved = sum(int(bits) // 8 * LANES * n for way in ("reads", "writes") for bits, n in loop[f"shared_{way}"].items())
    flops = loop["matrix_flops"] * warps if loop["matrix_flops"] else 0.0
    vector = loop["vector"] + TRANSCENDENTAL * loop["transcendental"] + issues
    instructions = loop["instructions"] + (TRANSCENDENTAL - 1) * loop["transcendental"]
    return TileCode(warps, instructions, vector, moved * conflicts, flops, ahead)


SCHEDULERS = 4  # AMD CDNA3 and NVIDIA H100 white papers
START_LOADS = 3  # lengths, page, keys, before the first product
SPREAD = Path(__file__).parent / "estimate_spread.json"  # by vendor: 10% and 90% of measured / estimate


@dataclass(frozen=True)
class Machine:
    """What an architecture does in a clock. A source in brackets; `assumed` is a figure without one.

    matrix: bf16 FLOPs of a unit and clock. vector: clocks that one warp's instruction holds a scheduler's vector pipe.
    dependent: clocks between two instructions of one warp, on average. latency_ns: a load that misses every cache,
    under load. l2: bytes a clock of the second-level cache, all of it. sustained: share of the memory's peak that a
    copy reaches. launch_us: from the end of one kernel to the start of the next in a replayed graph.
    """

    matrix: int
    vector: int
    dependent: float
    latency_ns: float
    l2: int
    sustained: float
    launch_us: float


# matrix: AMD matrix instruction calculator; NVIDIA A100, H100, Blackwell white papers.
# vector: a wave of 64 on 16 lanes takes 4 clocks (AMD CDNA3 ISA guide), a warp of 32 on 32 lanes 1 (NVIDIA H100 white
#   paper). dependent: 4 for a wave; NVIDIA: 4 clocks (doi 10.1016/j.ultsonch.2023.106546, table 3), two independent
#   chains assumed. latency_ns: 400 clocks of an idle Hopper (ibid.) are 230 ns; 550 under load assumed, 800 for AMD.
# l2: 128 bytes x 16 channels x 8 dies (AMD CDNA3 white paper), x 32 channels (CDNA2's); 5120 (NVIDIA A100 white paper),
#   the same assumed for the next two. sustained: 0.81 on MI300X, 0.9 on NVIDIA (arXiv 2510.27583).
# launch_us: NVIDIA 1.0 on an H200 (docs/measuring.md); AMD 5.0 assumed.
_CDNA = {"vector": 4, "dependent": 4.0, "latency_ns": 800.0, "sustained": 0.81, "launch_us": 5.0}
_NVIDIA = {"vector": 1, "dependent": 2.0, "latency_ns": 550.0, "sustained": 0.9, "launch_us": 1.0}
MACHINES: dict[str, Machine] = {
    "gfx90a": Machine(matrix=1024, l2=128 * 32, **_CDNA),
    "gfx942": Machine(matrix=2048, l2=128 * 16 * 8, **_CDNA),
    "gfx950": Machine(matrix=4096, l2=128 * 16 * 8, **_CDNA),
    "sm_80": Machine(matrix=2048, l2=5120, **_NVIDIA),
    "sm_90": Machine(matrix=4096, l2=5120, **_NVIDIA),
    "sm_100": Machine(matrix=8192, l2=5120, **_NVIDIA),
}


class NoEstimate(ValueError):
    """A GPU or kernel that the model has no rule for; the message names it."""


@dataclass(frozen=True)
class LaunchEstimate:
    """A launch, in microseconds. waves: programs over the GPU's slots for them."""

    kernel: str
    us: float
    limiter: str
    launch_us: float
    bytes_us: float
    schedule_us: float
    resident: int
    waves: float


@dataclass(frozen=True)
class Estimate:
    """A call. floor_us: no call is faster from cold caches. us: the estimate; limiter: of the most expensive launch, or
    `launch` where launching is half of it."""

    floor_us: float
    us: float
    limiter: str
    launches: tuple[LaunchEstimate, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a record."""
        return asdict(self) | {"launches": [asdict(one) for one in self.launches]}


def machine_of(gpu: Gpu) -> tuple[Machine, float]:
    """The constants and the clock in GHz that the stated matrix peak implies. Raises NoEstimate."""
    machine = MACHINES.get(gpu.arch)
    if machine is None or not gpu.bf16_tflops or not gpu.hbm_gbps:
        raise NoEstimate(f"gpu: found {gpu.name} ({gpu.arch}), allowed one of {', '.join(MACHINES)} with stated peaks")
    return machine, gpu.bf16_tflops * 1e3 / (gpu.units * machine.matrix)


def makespan(tiles: Sequence[int], slots: int, per_tile: float, start: float) -> float:
    """The end of the last program, each `start + tiles x per_tile` long, dealt in order to the slot that is free."""
    if len(tiles) <= slots:
        return start + max(tiles, default=0) * per_tile
    ends = [0.0] * slots
    for count in tiles:
        heapq.heapreplace(ends, ends[0] + start + count * per_tile)
    return max(ends)


def _tile_clocks(machine: Machine, code: TileCode, latency: float, together: int) -> tuple[float, str]:
    """Clocks between two tiles of one program where `together` programs share a unit, and what limits them."""
    matrix = code.matrix_flops / machine.matrix
    share = min(code.warps, SCHEDULERS) / SCHEDULERS
    alone = machine.dependent * code.instructions + matrix / share
    alone = max(alone, latency / code.ahead) if code.ahead else alone + 2 * latency
    issue = max(machine.vector * code.vector / SCHEDULERS, code.shared_bytes / LDS_BYTES) * code.warps
    pipes = {"matrix": matrix, "issue": issue}
    name = max(pipes, key=pipes.__getitem__)
    shared = together * pipes[name]
    return (alone, "latency") if alone >= shared else (shared, name)


def estimate_launch(
    work: Work,
    facts: Mapping[str, Any],
    gpu: Gpu,
    tile: tuple[float, str] | None = None,
    held: int = 0,
    outside: float = 0.0,
) -> LaunchEstimate:
    """Estimate one launch from what its programs do and the facts of its code object.

    tile: clocks of a tile and what limits them, where these are known better; held: programs of a unit, in place of
    those that the facts allow; outside: clocks of a program beside its tiles. Raises NoEstimate.
    """
    machine, ghz = machine_of(gpu)
    allowed = occupancy(gpu.arch, facts["registers"], facts["shared_bytes"], facts["num_warps"]).programs
    resident = held or max(allowed, 1)
    together = min(resident, max(cdiv(len(work.tiles), gpu.units), 1))
    latency = machine.latency_ns * ghz
    clocks, who = tile or _tile_clocks(machine, tile_code(work, facts), latency, together)
    start = (START_LOADS * latency + outside) / ghz / 1e3 if work.tiles else 0.0
    schedule = makespan(work.tiles, gpu.units * together, clocks / ghz / 1e3, start)
    memory = (work.read_bytes + work.write_bytes) / (machine.sustained * gpu.bytes_per_us)
    cache = sum(work.tiles) * work.tile_bytes / (machine.l2 * ghz * 1e3)
    moved = start + max(memory, cache)
    us = machine.launch_us + max(moved, schedule)
    limiter = "launch" if 2 * machine.launch_us >= us else "bytes" if moved >= schedule else who
    waves = len(work.tiles) / (gpu.units * resident)
    return LaunchEstimate(
        str(facts["kernel"]), us, limiter, machine.launch_us, max(memory, cache), schedule, resident, waves
    )


def estimate(
    workload: Workload,
    kernel_id: str,
    config: Mapping[str, Any],
    facts: Sequence[Mapping[str, Any]],
    gpu: Gpu,
) -> Estimate:
    """Floor and estimate of one call. facts: of each launch, as a record holds them, compiled for `gpu`.

    Raises NoEstimate for a kernel without a rule, for a GPU without stated peaks, and where there are no facts.
    """
    machine_of(gpu)
    found = works(kernel_id, config, [str(f["kernel"]) for f in facts], workload)
    if not found:
        raise NoEstimate(f"kernel: found {kernel_id} with {len(facts)} launches, allowed one with a rule and facts")
    launches = tuple(estimate_launch(work, fact, gpu) for work, fact in zip(found, facts, strict=True))
    floor = cost.floor_us(workload, gpu)
    us = max(sum(one.us for one in launches), floor)
    launching = sum(one.launch_us for one in launches)
    limiter = "launch" if 2 * launching >= us else max(launches, key=lambda one: one.us).limiter
    return Estimate(floor, us, limiter, launches)


def column(
    workload: Workload, kernel_id: str, config: Mapping[str, Any] | None, facts: Sequence[Mapping[str, Any]], gpu: Gpu
) -> dict[str, Any] | None:
    """The estimate as a record of an absent GPU holds it, with its vendor's spread.

    Only the floor where the model has no rule for the kernel or the GPU; None where no peak is stated either.
    """
    try:
        said = estimate(workload, kernel_id, config or {}, facts, gpu)
    except NoEstimate as error:
        floor = cost.floor_us(workload, gpu)
        told = None if floor is None else f"{floor:.1f} .. unknown"
        return told and {"floor_us": floor, "us": None, "limiter": None, "text": told, "reason": str(error)}
    p10, p90 = spread(gpu.vendor) or (None, None)
    return said.as_dict() | {"p10": p10, "p90": p90, "text": text(said.floor_us, said.us, gpu.vendor)}


@cache
def spread(vendor: str) -> tuple[float, float] | None:
    """10% and 90% of measured / estimate over the points of a vendor's page; None without a page."""
    known = json.loads(SPREAD.read_text()).get(vendor) if SPREAD.exists() else None
    return (known["p10"], known["p90"]) if known else None


def text(floor_us: float, us: float, vendor: str) -> str:
    """`floor .. estimate x [p10, p90]` in microseconds: a bound and a range, never one number."""
    known = spread(vendor)
    factor = f" x [{known[0]:.2f}, {known[1]:.2f}]" if known else " x [unknown]"
    return f"{floor_us:.1f} .. {us:.1f}{factor}"
