"""One warp's pass of a loop of sm_80 and later, clock by clock, from SASS: what it issues and what it waits for.

A warp issues in order, one instruction a clock, and waits until what an instruction reads or overwrites is there. So
each clock belongs to a kind: that of the instruction that is issued, or of the one that is waited for. Passes are
repeated until what one leaves in flight for the next is there too. No clock is fitted to a time of this project.
"""

import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

Sass = tuple[int, str, str]  # address, opcode with modifiers, operands
PASSES, KEPT = 6, 3  # simulated, and of these counted, the last ones

KINDS = ("matrix", "exp", "convert", "address", "mask", "arithmetic", "exchange", "shared", "loads", "barrier", "spill")

# Results: arXiv 2402.13499 (H100: shared memory 29 clocks, mma.m16n8k16 33); others assumed. Issue: lanes a clock and
# SM of CUDA's Programming Guide, arithmetic throughput at 9.0, for a warp of one of four schedulers.
_RESULT = {"matrix": 33, "exp": 20, "convert": 6, "exchange": 24, "shared": 29, "barrier": 30, "spill": 40}
_ALU, _ISSUE = 4, {"matrix": 8, "exp": 8, "convert": 2, "address": 2, "mask": 2, "exchange": 4}
GROUP_START = 30  # from the first wgmma of a group to its first product, assumed as an mma's result
COLD, WARM, NEAR = 965, 273, 41  # a load from memory, under load, as compare.static.estimate has it; L2, L1 (ibid.)
MATRIX = 4096  # bf16 FLOPs of an SM and clock (NVIDIA H100 white paper)

_BY_NAME = {
    "matrix": "HMMA IMMA QMMA DMMA HGMMA IGMMA QGMMA UTCHMMA UTCQMMA WARPGROUP",
    "exp": "MUFU",
    "convert": "F2F F2FP F2I I2F I2FP I2IP F2IP FRND PRMT HADD2 HMUL2 HFMA2 UPRMT",
    "mask": "FSEL SEL ISETP FSETP PLOP3 P2R R2P PSETP VOTE USEL UISETP UPLOP3 UP2UR HSETP2 BRA BSSY BSYNC WARPSYNC",
    "arithmetic": "FADD FMUL FFMA FMNMX FADD2 FMUL2 FFMA2 FCHK",
    "exchange": "SHFL REDUX",
    "shared": "LDS STS LDSM STSM",
    "loads": "LDG LDGSTS UTMALDG LDGDEPBAR DEPBAR STG SYNCS UBLKCP",
    "barrier": "BAR MEMBAR FENCE ERRBAR",
    "spill": "LDL STL",
}
_KIND = {name: kind for kind, names in _BY_NAME.items() for name in names.split()}
_REGISTER = re.compile(r"\b(U?[RP])(\d+)(?!\d)")
_SHAPE = re.compile(r"\.(\d+)x(\d+)x(\d+)")
_NO_RESULT = {
    "STS", "STSM", "STG", "STL", "BAR", "BRA", "LDGSTS", "LDGDEPBAR", "DEPBAR", "WARPGROUP", "UTMALDG", "SYNCS",
}  # fmt: skip


def kind_of(opcode: str) -> str:
    """The kind of an instruction: one of KINDS; integer arithmetic, moves and constants are `address`."""
    return _KIND.get(opcode.partition(".")[0], "address")


@dataclass(frozen=True)
class _Step:
    """kind, registers read and written, clocks for which it holds the warp's issue, clocks until its result."""

    name: str
    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    issue: int
    result: int
    left: int = 0  # of a wait: groups that may stay in flight
    closes: bool = False  # of a wgmma: the last of its group


def _wide(operand: str, count: int) -> tuple[str, ...]:
    found = _REGISTER.search(operand)
    return tuple(f"{found[1]}{int(found[2]) + i}" for i in range(count)) if found else ()


def _width(opcode: str) -> int:
    if found := re.search(r"\.(128|64)(?:\.|$)", opcode):
        return int(found[1]) // 32
    if opcode.startswith("LDSM"):
        return 4 if ".4" in opcode else 2
    return 2 if ".WIDE" in opcode else 1


def _step(opcode: str, operands: str, load: int) -> _Step:
    """Read an instruction. load: clocks of a load of global memory."""
    name, kind = opcode.partition(".")[0], kind_of(opcode)
    parts = [one.strip() for one in operands.split(",")]
    count, shape = _width(opcode), _SHAPE.search(opcode)
    result = load if name in ("LDG", "LDGSTS", "UTMALDG") else _RESULT.get(kind, _ALU)
    if name in ("LDG", "LDGSTS") and count == 1:  # a page id: its line holds those of the next tiles too
        result = NEAR
    issue, sources = _ISSUE.get(kind, 1), [1] * len(parts)
    if name == "SHFL":
        parts, sources = parts[1:], sources[1:]
    if name == "HMMA":
        count, sources = 4, [4, 4, 2, 4]
    if shape and kind == "matrix":
        m, n, k = map(int, shape.groups())
        count, issue, result = n // 2, 1, 2 * m * n * k // MATRIX
    if kind in ("shared", "spill") or name == "STG":
        sources = [1] * (len(parts) - 1) + [count]
    writes = () if name in _NO_RESULT else _wide(parts[0], count)
    if "SETP" in name or name in ("PLOP3", "UPLOP3"):
        writes = _wide(parts[0], 1) + _wide(parts[1], 1)
    begin = 0 if not writes else 2 if "SETP" in name else 1
    reads = [
        register
        for part, many in list(zip(parts, sources, strict=False))[begin:]
        for found in _REGISTER.finditer(part)
        for register in _wide(found[0], 2 if ".64" in part or "desc" in part else many)
    ]
    left = int(parts[-1], 16) if "DEPBAR" in opcode and parts[-1].startswith("0x") else 0
    return _Step(name, kind, tuple(reads), writes, issue, result, left, "gsb0" in operands)


class _Warp:
    """The state of a warp: its clock, what is in flight, and to which kind each clock went."""

    def __init__(self, descriptors: int) -> None:
        self.now, self.spent = 0, Counter()
        self.ready: dict[str, tuple[int, str]] = {}
        self.copies: deque[int] = deque()  # when each committed group of copies is there
        self.open = self.products = 0  # when the open group of copies is there; when the matrix unit is free
        self.groups: deque[int] = deque()
        self.descriptors: deque[int] = deque()
        self.ahead = descriptors  # that stay in flight: those of a tile
        self.units: dict[str, int] = {}

    def until(self, when: int, kind: str) -> None:
        if when > self.now:
            self.spent[kind] += when - self.now
            self.now = when

    def step(self, one: _Step) -> None:
        for register in (*one.reads, *one.writes):
            if register in self.ready:
                self.until(*self.ready[register])
        self.until(self.units.get(one.kind, 0), one.kind)  # a pipe that takes several clocks an instruction
        if one.name == "WARPGROUP" or one.name == "DEPBAR":
            flying = self.groups if one.name == "WARPGROUP" else self.copies
            while one.closes * len(flying) > one.left or (one.name == "DEPBAR" and len(flying) > one.left):
                self.until(flying.popleft(), one.kind)
        if one.name == "SYNCS" and len(self.descriptors) > self.ahead:
            self.until(self.descriptors.popleft(), "loads")
        self.spent[one.kind] += 1
        self.now += 1
        self.units[one.kind] = self.now - 1 + one.issue
        self._leave(one)

    def _leave(self, one: _Step) -> None:
        """What an instruction leaves in flight."""
        done = self.now + one.result
        if one.name == "LDGSTS":
            self.open = max(self.open, done)
        elif one.name == "LDGDEPBAR":
            self.copies.append(max(self.open, self.now))
            self.open = 0
        elif one.name == "UTMALDG":
            self.descriptors.append(done)
        elif one.name in ("HGMMA", "QGMMA", "IGMMA"):
            self.products = max(self.products, self.now + GROUP_START) + one.result
            if one.closes:
                self.groups.append(self.products)
        elif one.name == "BAR":
            self.until(done, "barrier")
        else:
            for register in one.writes:
                self.ready[register] = (done, one.kind)


def clocks(loop: Sequence[Sass], load: int) -> dict[str, int]:
    """Clocks of a pass by kind, for a warp that has a scheduler to itself. load: clocks of a load of global memory."""
    steps = [_step(opcode, operands, load) for _, opcode, operands in loop if opcode != "NOP"]
    warp = _Warp(sum(step.name == "UTMALDG" for step in steps))
    for number in range(PASSES):
        if number == PASSES - KEPT:
            warp.spent.clear()
        for step in steps:
            warp.step(step)
    return {kind: round(warp.spent[kind] / KEPT) for kind in KINDS if warp.spent[kind]}


def counts(loop: Sequence[Sass]) -> dict[str, int]:
    """Instructions of a pass by kind."""
    return dict(Counter(kind_of(opcode) for _, opcode, _ in loop if opcode != "NOP"))


_AMD = (
    ("matrix", r"v_(mfma|smfmac|wmma|swmmac)"),
    ("exp", r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_"),
    ("convert", r"v_(cvt|perm_b32|bfe|pack|alignb)"),
    ("mask", r"v_(cmp|cndmask)|s_(cmp|cselect|cbranch|branch|and_saveexec|or_b64)"),
    ("arithmetic", r"v_\w*_f(16|32|64)"),
    ("exchange", r"ds_(b?permute|swizzle)|v_(permlane|readlane|readfirstlane|mov_b32_dpp)"),
    ("shared", r"ds_"),
    ("loads", r"(buffer|global|flat)_|s_(wait|load)"),
    ("barrier", r"s_barrier"),
    ("spill", r"scratch_"),
)


def counts_amd(loop: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Instructions of a pass of a loop of AMDGCN by kind."""
    names = (mnemonic for mnemonic, _ in loop if mnemonic != "s_nop")
    return dict(Counter(next((kind for kind, form in _AMD if re.match(form, name)), "address") for name in names))
