"""Run a kernel: workgroups in batches, waves at the same instruction together, barriers."""

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from compare.static.isa import access, matrix, scalar, vector
from compare.static.isa.errors import Fault, NotExecutable
from compare.static.isa.lds import Lds
from compare.static.isa.memory import Memory
from compare.static.isa.state import POISON, VCC, Waves
from compare.static.isa.text import Instruction, Listing, parse
from compare.static.isa.watch import Watch

BATCH_WAVES = 256  # more cost memory and bring no speed
PATIENCE = 4096  # blocks that a group of waves may run while others wait: spinning must not starve them
NOTHING = ("s_nop", "s_setprio", "s_sleep", "s_sched_barrier", "s_sched_group_barrier", "buffer_inv", "buffer_wbl2")
CONDITIONS = ("scc0", "scc1", "vccz", "vccnz", "execz", "execnz")
FLOW = ("s_branch", "s_endpgm", "s_barrier", *(f"s_cbranch_{condition}" for condition in CONDITIONS))

_VECTORS = re.compile(r"\b([va])\[?(\d+)(?::(\d+)\])?")


def decode(one: Instruction, agprs: int) -> Callable[[Waves], None] | None:
    """A function that does an instruction for the selected waves; None where a functional model has nothing to do.

    Raises NotExecutable for an unknown mnemonic or form.
    """
    if one.mnemonic in NOTHING:
        return None
    if one.mnemonic == "s_waitcnt":
        return access.counters(" ".join(one.operands))
    if one.mnemonic.startswith("v_mfma"):
        return matrix.decode(one, agprs)
    make = access.DECODERS.get(one.base) or vector.DECODERS.get(one.base)
    if make is None:
        return scalar.decode(one)
    step = make(one, agprs)
    one.finish()
    return step


@dataclass(frozen=True)
class Block:
    """Instructions [begin, end) without a branch inside; `last` decides where a wave continues."""

    end: int
    steps: tuple[tuple[Callable[[Waves], None], Instruction], ...]
    last: Instruction | None
    target: int


class Program:
    """One kernel, decoded. Raises NotExecutable, ForeignCode."""

    def __init__(self, assembly: str) -> None:
        self.listing: Listing = parse(assembly)
        last = {"v": 0, "a": -1}  # the highest register of each kind in the text
        for text in (text for one in self.listing.instructions for text in one.operands):
            for kind, low, high in _VECTORS.findall(text):
                last[kind] = max(last[kind], int(high or low))
        self.arch_vgprs = last["v"] + 1
        self.vectors = self.arch_vgprs + last["a"] + 1
        begins = {0, *self.listing.labels.values()}
        begins |= {i + 1 for i, one in enumerate(self.listing.instructions) if one.mnemonic in FLOW}
        self.blocks = {begin: self._block(begin, begins) for begin in begins if begin < len(self.listing.instructions)}

    def _block(self, begin: int, begins: set[int]) -> Block:
        steps, code = [], self.listing.instructions
        for i in range(begin, len(code)):
            one = code[i]
            if one.mnemonic in FLOW:
                target = self.listing.labels.get(one.operands[0]) if one.operands else -1
                if target is None:
                    raise NotExecutable(one.mnemonic, f"to {one.operands[0]}, which is outside the kernel")
                return Block(i + 1, tuple(steps), one, target)
            try:
                step = decode(one, self.arch_vgprs)
            except (IndexError, ValueError) as error:  # fewer or other operands than the mnemonic has
                raise NotExecutable(one.mnemonic, f"{one.operands}: {error}") from error
            steps += [(step, one)] if step else []
            if i + 1 in begins:
                return Block(i + 1, tuple(steps), None, -1)
        raise NotExecutable(code[-1].mnemonic, "the kernel ends without s_endpgm")


@dataclass(frozen=True)
class Kernel:
    """A decoded kernel, its waves a workgroup, and the bytes of LDS of a workgroup and of scratch of a lane."""

    program: Program
    num_warps: int
    lds_bytes: int
    scratch_bytes: int


class _Batch:
    """Workgroups `ids` (each x, y, z) running together."""

    def __init__(
        self,
        kernel: Kernel,
        ids: np.ndarray,
        memory: Memory,
        arguments: int,
        watch: Watch | None = None,
        first: int = 0,
    ) -> None:
        program, per_group = kernel.program, kernel.num_warps
        count = len(ids) * per_group
        lds = Lds(len(ids), kernel.lds_bytes, per_group)
        sizes = count, per_group, program.vectors, program.arch_vgprs
        self.waves = w = Waves(*sizes, memory, lds, kernel.scratch_bytes, watch, first)
        self.program, self.lds = program, lds
        self.pc, self.alive, self.waiting = np.zeros(count, np.int64), np.ones(count, bool), np.zeros(count, bool)
        start = program.listing.start
        buffer = 4 * start.get("user_sgpr_private_segment_buffer", 0)
        w.s[:buffer] = POISON  # where gfx90a's scratch would be: an access by it is refused
        at = buffer + 2 * start.get("user_sgpr_dispatch_ptr", 0) + 2 * start.get("user_sgpr_queue_ptr", 0)
        w.set_pair(at, np.full(count, arguments, np.uint64))
        w.clamps[:] = start.get("fp16_overflow", 0)
        register = start["user_sgpr_count"]
        for axis, name in enumerate("xyz"):
            if start.get(f"system_sgpr_workgroup_id_{name}"):
                w.s[register] = np.repeat(ids[:, axis], per_group)
                register += 1
        lane = np.arange(64)[None] + 64 * (np.arange(count) % per_group)[:, None]
        w.v[0] = lane.astype(np.uint32)

    def run(self) -> None:
        patience = PATIENCE
        while self.alive.any():
            ready = self.alive & ~self.waiting
            if not ready.any():
                raise Fault("a barrier that not every wave of its workgroup reaches")
            places = self.pc[ready]
            at = places.min()
            if patience == 0 or at == places.max():
                at, patience = places.max(), PATIENCE
            patience -= 1
            self.waves.select(np.flatnonzero(ready & (self.pc == at)))
            while (at := self._block(int(at))) is not None:
                pass

    def _block(self, begin: int) -> int | None:
        """Run one block; returns the next one where all selected waves go there and no others wait, else None."""
        w, block = self.waves, self.program.blocks[begin]
        if w.watch:
            w.watch.ran(begin, block.end, w.groups)
        for step, one in block.steps:
            try:
                step(w)
            except Fault as fault:
                raise Fault(f"{fault}; at {one.mnemonic} {', '.join(one.operands)}") from fault
        name = block.last.mnemonic if block.last else ""
        if name == "s_endpgm":
            self._end()
            return None
        if name == "s_barrier":
            self._barrier(block.end)
            return block.end if w.n == len(self.pc) else None
        taken = self._taken(name)
        self.pc[w.here] = next_pc = np.where(taken, block.target, block.end)
        return int(next_pc.flat[0]) if w.n == len(self.pc) and (next_pc == next_pc.flat[0]).all() else None

    def _taken(self, name: str) -> np.ndarray:
        w = self.waves
        if name in ("", "s_branch"):
            return np.full(w.n, name == "s_branch")
        condition = name.removeprefix("s_cbranch_")
        if condition.startswith("scc"):
            return w.scc[w.here] == (condition == "scc1")
        value = w.exec[w.here] if condition.startswith("exec") else w.pair(VCC)
        return (value == 0) == condition.endswith("z") if not condition.endswith("nz") else value != 0

    def _end(self) -> None:
        w = self.waves
        self.alive[w.here] = False
        groups = np.unique(w.waves // w.per_group)
        if self.waiting.reshape(-1, w.per_group)[groups].any():
            raise Fault("a wave ended while others of its workgroup wait at a barrier")

    def _barrier(self, behind: int) -> None:
        w, lds = self.waves, self.lds
        self.pc[w.here] = behind
        self.waiting[w.here] = True
        whole = self.waiting.reshape(-1, w.per_group).all(1)
        if not self.alive.reshape(-1, w.per_group)[np.unique(w.waves // w.per_group)].all():
            raise Fault("a wave waits at a barrier that others of its workgroup have ended without")
        passing = np.repeat(whole, w.per_group)
        self.waiting[passing] = False
        lds.epoch[passing] += 1
        for pending in w.pending["lds"]:
            if pending.note is not None and passing[pending.waves].any():
                reading, waves, granules = pending.note
                late = passing[waves] & np.isin(waves, pending.waves)
                lds.unproved((reading, waves[late], granules[late]))


def launch(
    kernel: Kernel,
    grid: Sequence[int],
    block: np.ndarray,
    ranges: Sequence[tuple[int, int]],
    watch: Watch | None = None,
) -> None:
    """Run every workgroup of `grid` (up to 3 axes). block: uint8, the packed arguments; ranges: (address, bytes) that
    the kernel may touch; watch: who is told what happens. Raises NotExecutable, Fault."""
    block = np.concatenate([block, np.zeros(64, np.uint8)])  # a scalar load may fetch past the last argument
    address = block.ctypes.data_as(ctypes.c_void_p).value
    memory = Memory([*ranges, (address, len(block))])
    sizes = [*grid, 1, 1][:3]
    ids = np.stack(np.meshgrid(*(np.arange(n) for n in sizes), indexing="ij"), -1).transpose(2, 1, 0, 3).reshape(-1, 3)
    groups = max(BATCH_WAVES // kernel.num_warps, 1)
    with np.errstate(all="ignore"):
        for first in range(0, len(ids), groups):
            _Batch(kernel, ids[first : first + groups], memory, address, watch, first).run()
