"""The counts of one launch, taken while the model executes it."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

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

_HINTS = {"nt", "sc0", "sc1"}  # bits of a load that tell caches how to keep its line
_NO_LINE = np.uint64(2**64 - 1)


class Counts(Watch):
    """What one launch of a kernel for `arch` does, as the model tells it while it runs and then its listing.

    Instructions are of waves, an access is one instruction of one wave.

    instructions: by mnemonic. kinds: by class (loops.Mix). matrix: by shape. loads: accesses of global memory by bytes
    a lane; read: bytes that lanes load, by bytes a lane. lines: of 128 bytes that the loads touch, a line once an
    access. hinted: loads that tell the caches how to keep a line. waits: s_waitcnt that wait for loads; ahead: loads
    that these let stay in flight. flights: amd_code.flights. lds_clocks, lds_fewest: compare.static.counts.banks. work:
    matrix FLOPs of each workgroup. accesses: lines of each load of each workgroup. spills, registers, occupancy: as
    compare.static.codeobject has them.
    """

    def __init__(self, arch: str, programs: int = 1) -> None:
        self.arch, self.programs = arch, programs
        self.blocks: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        self.numbers: Counter[tuple[str, int]] = Counter()
        self.accesses: dict[int, list[np.ndarray]] = defaultdict(list)
        self.lines = self.waits = self.ahead = self.lds_clocks = self.lds_fewest = self.hinted = 0
        self.instructions, self.kinds, self.matrix = Counter(), Counter(), Counter()
        self.work = np.zeros(programs)

    @property
    def loads(self) -> Counter[int]:
        return self.of("load")

    @property
    def read(self) -> Counter[int]:
        return self.of("load bytes")

    def l2(self, l2: L2) -> Fetches:
        """What the dies fetch for this launch's loads."""
        return fetches([self.accesses.get(group, ()) for group in range(self.programs)], l2)

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

    def listed(self, compiled: CompiledLaunch) -> None:
        """What the listing says, by how often each block of it ran."""
        facts, text = read(compiled), amd_code.parse(compiled.assembly)
        self.spills, self.registers, self.occupancy = facts.spills, facts.registers, facts.occupancy
        self.flights = amd_code.flights(text)
        for (begin, end), runs in self.blocks.items():
            times, flops = sum(runs.values()), 0
            for name, operands in text.instructions[begin:end]:
                seen = amd_code.classify(name, operands)
                self.instructions[name] += times
                self.kinds[seen.kind] += times
                if seen.kind == "matrix":
                    self.matrix[seen.key.partition(" ")[2]] += times
                    flops += seen.flops or 0
                elif seen.kind == "load":
                    self.hinted += times * bool(_HINTS & set(operands.split()))
            for group, count in runs.items() if flops else ():
                self.work[group] += count * flops


def counted(compiled: CompiledLaunch) -> Counts:
    """Execute a launch in the model, in place, and count. Raises what `execute` raises."""
    found = Counts(compiled.arch, math.prod(compiled.grid))
    execute(compiled, watch=found)
    found.listed(compiled)
    return found


@contextmanager
def counting(gpu: Gpu) -> Iterator[list[Counts]]:
    """In this context launches of either DSL are compiled for `gpu`, executed in the model on their CPU tensors, and
    counted.

    Raises what `executing` raises.
    """
    found: list[Counts] = []
    with executing(gpu, lambda launch: found.append(counted(launch))):
        yield found
