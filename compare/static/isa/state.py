"""The registers of all waves that run together, and their loads in flight.

A step works on the waves at one instruction: `here` selects them, as the first axis of length n. Vector registers are
uint32 [register, wave, 64 lanes], scalar ones uint32 [register, wave]; vcc is 106 and 107, m0 124. MODE is as Triton
and Helion start every kernel: round to nearest even, denormals kept. Only its bit FP16_OVFL may change: with it
(`clamps`) a float16 or fp8 overflow becomes the largest number, not infinity or NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compare.static.isa.watch import Watch

LANES = np.arange(64)
VCC, M0 = 106, 124
# The accesses that counters of 6 and 4 bits can count. A further one is issued only when the oldest has landed: LLVM
# omits waits for older ones.
MOST = {"vm": 63, "lds": 15}
POISON = np.uint32(0x7FC0DEAD)  # a NaN, and no address: the register's value until a wait completes its load
_ALL = slice(None)


def to_mask(bits: np.ndarray) -> np.ndarray:
    """uint64 [n] -> bool [n, 64], bit l for lane l."""
    return np.unpackbits(np.ascontiguousarray(bits).view(np.uint8).reshape(-1, 8), axis=1, bitorder="little").view(bool)


def to_bits(mask: np.ndarray) -> np.ndarray:
    """bool [n, 64] -> uint64 [n]."""
    return np.packbits(mask, axis=1, bitorder="little").view(np.uint64)[:, 0]


@dataclass
class Pending:
    """A load in flight: `waves` int [m], each with the number of the load among its own of that kind; `data` uint32
    [registers, m, lanes] for vector registers from `first` on, written in the lanes of `mask` when it lands."""

    waves: np.ndarray
    order: np.ndarray
    first: int
    data: np.ndarray | None
    mask: np.ndarray | None
    scalar: bool = False
    land: Callable | None = None  # for data that go to LDS: called with what landed
    note: tuple | None = None  # what LDS knows of it

    def split(self, landed: np.ndarray) -> "Pending":
        """Remove the landed waves; the others stay pending."""
        gone = Pending(self.waves[landed], self.order[landed], self.first, None, None, self.scalar, self.land)
        if self.data is not None:
            gone.data, self.data = self.data[:, landed], self.data[:, ~landed]
        if self.mask is not None:
            gone.mask, self.mask = self.mask[landed], self.mask[~landed]
        self.waves, self.order = self.waves[~landed], self.order[~landed]
        return gone


@dataclass
class Waves:
    """`count` waves of `per_group` waves a workgroup. vectors: registers of a lane; lds, scratch: bytes of a workgroup
    and of a lane. `memory` and `lds` are set by the machine; `arch_vgprs` is where accumulation registers begin. watch:
    who is told what happens; first_group: the place of the first wave's workgroup among all of the launch."""

    count: int
    per_group: int
    vectors: int
    arch_vgprs: int
    memory: Any
    lds: Any
    scratch_bytes: int = 0
    watch: Watch | None = None
    first_group: int = 0
    issued: dict[str, np.ndarray] = field(default_factory=dict)
    pending: dict[str, list[Pending]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.v = np.zeros((self.vectors, self.count, 64), np.uint32)
        self.s = np.zeros((128, self.count), np.uint32)
        self.scc, self.clamps = np.zeros(self.count, bool), np.zeros(self.count, bool)
        self.exec = np.full(self.count, 0xFFFFFFFFFFFFFFFF, np.uint64)
        self.scratch = np.zeros((self.count, self.scratch_bytes // 4 + 1, 64), np.uint32)
        self.everyone = np.arange(self.count)
        for kind in ("vm", "lds", "smem"):
            self.issued[kind], self.pending[kind] = np.zeros(self.count, np.int64), []
        self.select(self.everyone)

    def select(self, waves: np.ndarray) -> None:
        """Work on these waves (sorted indices) from now on."""
        self.waves = waves
        self.n = len(waves)
        self.here = _ALL if self.n == self.count else waves
        self.member = np.zeros(self.count, bool)
        self.member[waves] = True
        self._exec_changed()

    @property
    def groups(self) -> np.ndarray:
        """int [n]: the workgroup of each selected wave, by its place in the launch."""
        return self.first_group + self.waves // self.per_group

    def under_way(self, kind: str) -> np.ndarray:
        """int [n]: loads of each selected wave that have not landed."""
        count = np.zeros(self.count, np.int64)
        for access in self.pending[kind]:
            count[access.waves] += 1
        return count[self.here]

    def _exec_changed(self) -> None:
        self.mask = to_mask(self.exec[self.here])
        self.full = bool(self.mask.all())

    def set_exec(self, bits: np.ndarray) -> None:
        self.exec[self.here] = bits
        self._exec_changed()

    def pair(self, i: int) -> np.ndarray:
        """uint64 [n]: scalar registers i and i + 1."""
        low, high = self.s[i][self.here], self.s[i + 1][self.here]
        return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))

    def set_pair(self, i: int, value: np.ndarray) -> None:
        self.s[i][self.here] = np.asarray(value, np.uint64).astype(np.uint32)
        self.s[i + 1][self.here] = (np.asarray(value, np.uint64) >> np.uint64(32)).astype(np.uint32)

    def put(self, i: int, value: np.ndarray) -> None:
        """Write vector register i in the active lanes; value: uint32, broadcast to [n, 64]."""
        if self.full:
            self.v[i][self.here] = value
        elif self.here is _ALL:
            np.copyto(self.v[i], value, where=self.mask)
        else:
            self.v[i][self.here] = np.where(self.mask, value, self.v[i][self.here])

    def issue(self, kind: str, first: int = 0, data: np.ndarray | None = None, **more: Any) -> None:
        """Count one access of `kind` (vm, lds, smem); its vector registers are poisoned until `wait` completes it."""
        self.issued[kind][self.here] += 1
        if self.pending[kind] and kind in MOST:
            self.wait(kind, MOST[kind])
        if data is None and not more:
            return
        mask = None if self.full or more.get("scalar") else self.mask
        for k in range(len(data) if data is not None else 0):
            if more.get("scalar"):
                self.s[first + k][self.here] = POISON
            else:
                self.put(first + k, POISON)
        order = self.issued[kind][self.here].copy()
        self.pending[kind].append(Pending(self.waves, order, first, data, mask, **more))

    def wait(self, kind: str, left: int) -> None:
        """Complete all but the last `left` accesses of each selected wave."""
        kept = []
        for access in self.pending[kind]:
            landed = self.member[access.waves] & (access.order <= self.issued[kind][access.waves] - left)
            if landed.all():
                self._land(access)
                continue
            if landed.any():
                self._land(access.split(landed))
            kept.append(access)
        self.pending[kind] = kept

    def _land(self, access: Pending) -> None:
        if access.land is not None:
            access.land(access)
        elif access.data is None:
            return
        elif access.scalar:
            self.s[access.first : access.first + len(access.data), access.waves] = access.data
        else:
            for k, data in enumerate(access.data):
                old = self.v[access.first + k]
                if access.mask is not None:
                    data = np.where(access.mask, data, old[access.waves])
                old[access.waves] = data
