"""The counts of one launch, taken while the model executes it."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.gpus import Gpu
from compare.static import amd_code
from compare.static.codeobject import read
from compare.static.compiled import CompiledLaunch
from compare.static.counts import banks
from compare.static.counts.l2 import L2, LINE, Fetches, fetches
from compare.static.crosscompile import executing
from compare.static.isa.execute import execute
from compare.static.isa.watch import Watch
from compare.static.occupancy import Occupancy

_HINTS = {"nt", "sc0", "sc1"}  # bits of a load that tell caches how to keep its line
_NO_LINE = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class Counts:
    """What one launch does. Instructions are of waves, an access is one instruction of one wave.

    instructions: by mnemonic. kinds: by class (loops.Mix). matrix: by shape. loads: accesses of global memory by bytes
    a lane; read: bytes that lanes load, by bytes a lane. lines: of 128 bytes that the loads touch, a line once an
    access. hinted: loads that tell the caches how to keep a line. waits: s_waitcnt that wait for loads; ahead: loads
    that these let stay in flight. flights: amd_code.flights. lds_clocks, lds_fewest: compare.static.counts.banks. work:
    matrix FLOPs of each workgroup. accesses: lines of each load of each workgroup.
    """

    programs: int
    instructions: Counter[str]
    kinds: Counter[str]
    matrix: Counter[str]
    loads: Counter[int]
    read: Counter[int]
    lines: int
    hinted: int
    waits: int
    ahead: int
    flights: dict[str, float]
    lds_clocks: int
    lds_fewest: int
    work: np.ndarray
    accesses: tuple[tuple[np.ndarray, ...], ...]
    spills: int
    registers: int
    occupancy: Occupancy | None

    def l2(self, l2: L2) -> Fetches:
        """What the dies fetch for this launch's loads."""
        return fetches(self.accesses, l2)

    def unevenness(self, dies: int) -> float:
        """The matrix work of the busiest die over the mean."""
        each = [float(self.work[die::dies].sum()) for die in range(dies)]
        return max(each) * dies / sum(each) if sum(each) else 1.0

    def executed(self, l2: L2) -> dict[str, int]:
        """The sums that a record keeps of a launch, by name."""
        found = self.l2(l2)
        return {
            "workgroups": self.programs,
            "instructions": sum(self.instructions.values()),
            "matrix flops": int(self.work.sum()),
            "loads": sum(self.loads.values()),
            "load lines": self.lines,
            "load bytes": sum(self.read.values()),
            "wide bytes": self.read[16],
            "waits": self.waits,
            "ahead": self.ahead,
            "lds clocks": self.lds_clocks,
            "lds fewest": self.lds_fewest,
            "lines": found.distinct,
            "fetched": sum(found.each),
        }


class Counting(Watch):
    """Watches one launch of a kernel for `arch`."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.blocks: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        self.numbers: Counter[tuple[str, int]] = Counter()
        self.accesses: dict[int, list[np.ndarray]] = defaultdict(list)
        self.lines = self.waits = self.ahead = self.lds_clocks = self.lds_fewest = 0

    def ran(self, begin: int, end: int, groups: np.ndarray) -> None:
        self.blocks[begin, end].update(groups.tolist())

    def touched(self, way: str, size: int, groups: np.ndarray, where: np.ndarray, inside: np.ndarray) -> None:
        active = inside.any(1)
        self.numbers[way, size] += int(active.sum())
        self.numbers[f"{way} bytes", size] += size * int(inside.sum())
        if way != "load":
            return
        lines = np.sort(np.where(inside, where // np.uint64(LINE), _NO_LINE), axis=1)
        first = lines != _NO_LINE
        first[:, 1:] &= lines[:, 1:] != lines[:, :-1]
        self.lines += int(first.sum())
        for wave in np.flatnonzero(active).tolist():
            self.accesses[int(groups[wave])].append(lines[wave][first[wave]])

    def shared(self, way: str, size: int, at: np.ndarray, mask: np.ndarray) -> None:
        taken, fewest = banks.clocks(self.arch, way, size, at, mask)
        self.lds_clocks += taken
        self.lds_fewest += fewest

    def waited(self, under_way: np.ndarray, left: int) -> None:
        waits = under_way > left
        self.waits += int(waits.sum())
        self.ahead += int(waits.sum()) * left

    def of(self, name: str) -> Counter[int]:
        return Counter({size: count for (way, size), count in self.numbers.items() if way == name})


def counted(compiled: CompiledLaunch) -> Counts:
    """Execute a launch in the model, in place, and count. Raises what `execute` raises."""
    watch = Counting(compiled.arch)
    execute(compiled, watch=watch)
    facts, programs = read(compiled), math.prod(compiled.grid)
    told = _instructions(watch, compiled.assembly, programs)
    return Counts(
        programs=programs,
        loads=watch.of("load"),
        read=watch.of("load bytes"),
        lines=watch.lines,
        waits=watch.waits,
        ahead=watch.ahead,
        flights=amd_code.flights(amd_code.parse(compiled.assembly)),
        lds_clocks=watch.lds_clocks,
        lds_fewest=watch.lds_fewest,
        accesses=tuple(tuple(watch.accesses.get(group, ())) for group in range(programs)),
        spills=facts.spills,
        registers=facts.registers,
        occupancy=facts.occupancy,
        **told,
    )


def _instructions(watch: Counting, assembly: str, programs: int) -> dict[str, Any]:
    """The fields of Counts that depend on how often each block ran."""
    listing = amd_code.parse(assembly).instructions
    names, kinds, matrix, work = Counter(), Counter(), Counter(), np.zeros(programs)
    hinted = 0
    for (begin, end), runs in watch.blocks.items():
        times, flops = sum(runs.values()), 0
        for name, operands in listing[begin:end]:
            seen = amd_code.classify(name, operands)
            names[name] += times
            kinds[seen.kind] += times
            if seen.kind == "matrix":
                matrix[seen.key.partition(" ")[2]] += times
                flops += seen.flops or 0
            elif seen.kind == "load":
                hinted += times * bool(_HINTS & set(operands.split()))
        for group, count in runs.items() if flops else ():
            work[group] += count * flops
    return {"instructions": names, "kinds": kinds, "matrix": matrix, "work": work, "hinted": hinted}


@contextmanager
def counting(gpu: Gpu) -> Iterator[list[Counts]]:
    """In this context launches of either DSL are compiled for `gpu`, executed in the model on their CPU tensors, and
    counted.

    Raises what `executing` raises.
    """
    found: list[Counts] = []
    with executing(gpu, lambda launch: found.append(counted(launch))):
        yield found
