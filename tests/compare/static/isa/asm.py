"""Runs single instructions of the model on registers that a test sets."""

import numpy as np

from compare.static.isa import machine
from compare.static.isa.lds import Lds
from compare.static.isa.memory import Memory
from compare.static.isa.state import Waves
from compare.static.isa.text import instruction

AGPRS = 64  # where a0 lies
LANE = np.arange(64)


def words(count=4096, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)


def waves(count=1, per_group=1, lds_bytes=1024, tensors=(), scratch=64):
    """Waves without code. tensors: arrays that global accesses may touch."""
    memory = Memory([(array.ctypes.data, array.nbytes) for array in tensors])
    return Waves(count, per_group, 96, AGPRS, memory, Lds(count // per_group, lds_bytes, per_group), scratch)


def run(w, *lines, arch="gfx942"):
    """Decode and execute lines of assembly, one after another, on the waves that are selected."""
    with np.errstate(all="ignore"):
        for line in lines:
            name, _, operands = line.strip().partition(" ")
            step = machine.decode(instruction(name, operands, arch), AGPRS)
            if step:
                step(w)
    return w


def landed(w, *lines):
    """`run`, then wait for everything."""
    return run(w, *lines, "s_waitcnt vmcnt(0) lgkmcnt(0)")
