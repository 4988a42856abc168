"""Read NVIDIA code objects with `cuobjdump`, which the triton wheel contains and which needs no driver."""

import io
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compare.static import warp
from compare.static.loops import Mix, Seen, UnreadableCode, innermost, mix, worthwhile

CUOBJDUMP_LIMIT_S = 60


@dataclass(frozen=True)
class Usage:
    """registers: of a thread. scratch_bytes: its stack and local memory. code_bytes: machine code."""

    registers: int
    scratch_bytes: int
    code_bytes: int


@dataclass(frozen=True)
class Sass:
    """(address, opcode with modifiers, operands) of every instruction."""

    instructions: tuple[tuple[int, str, str], ...]


_SASS = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)\s*([^;]*);", re.M
)  # HGMMA.64x128x16 has a small x
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


def read(cubin: bytes) -> tuple[Usage, Sass]:
    """Read a cubin. Raises UnreadableCode for bytes that are no complete cubin."""
    text = _cuobjdump(cubin)
    usage, sass = _USAGE.search(text), parse(text)
    if not usage or not sass.instructions:
        raise UnreadableCode(
            f"cubin: found {len(cubin)} bytes without a kernel that cuobjdump can read, allowed a whole cubin"
        )
    return Usage(int(usage[1]), int(usage[2]) + int(usage[4]), _code_bytes(cubin)), sass


def _code_bytes(cubin: bytes) -> int:
    from elftools.common.exceptions import ELFError
    from elftools.construct import ConstructError
    from elftools.elf.elffile import ELFFile

    try:
        sections = ELFFile(io.BytesIO(cubin)).iter_sections()
        return sum(section["sh_size"] for section in sections if section.name.startswith(".text."))
    except (ELFError, ConstructError, UnicodeError) as error:
        raise UnreadableCode(f"cubin: found no whole ELF file ({error}), allowed one") from error


def _cuobjdump(cubin: bytes) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, "--dump-resource-usage", "-sass", file.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=CUOBJDUMP_LIMIT_S)
    if done.returncode:
        raise UnreadableCode(f"cuobjdump: exit {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def parse(text: str) -> Sass:
    """The instructions of a `cuobjdump -sass` listing."""
    return Sass(tuple((int(at, 16), opcode, operands.strip()) for at, opcode, operands in _SASS.findall(text)))


_MATRIX = {"HMMA", "HGMMA", "UTCHMMA", "IMMA", "QGMMA", "UTCQMMA", "DMMA"}
_BITS = re.compile(r"\.(?:[US]?(128|64|16|8))(?:\.|$)")
_ACCESS = {"LDG": "load", "LDGSTS": "load", "STG": "store", "LDS": "shared_read", "STS": "shared_write"}
_FIXED = {  # opcodes whose modifiers do not change what they are
    "NOP": Seen("nothing"),
    "UTMALDG": Seen("load", "tma", to_shared=True),
    "UTMASTG": Seen("store", "tma"),
    "LDSM": Seen("shared_read", "128"),
    "STSM": Seen("shared_write", "128"),
    "MUFU": Seen("transcendental"),
    "BAR": Seen("barrier"),
    "DEPBAR": Seen("wait"),
    "SYNCS": Seen("wait"),
    "WARPGROUP": Seen("wait"),
}
_UNIFORM = ("U", "S2U", "R2U", "BRA", "EXIT", "CALL", "RET", "BSSY", "BSYNC", "WARPSYNC")


def _flops(name: str, shape: str) -> int | None:
    """FLOPs of one warp's matrix instruction. HMMA.16816 is m16 n8 k16 of a warp; HGMMA.64xNxK is shared by four warps;
    UTCHMMA's shape is in a descriptor (PTX ISA: mma, wgmma, tcgen05.mma)."""
    if found := re.fullmatch(r"(\d+)x(\d+)x(\d+)", shape):
        m, n, k = map(int, found.groups())
        return 2 * m * n * k // 4
    if found := re.fullmatch(r"(16)(8)(\d+)", shape):
        m, n, k = map(int, found.groups())
        return 2 * m * n * k
    return None


def classify(opcode: str, operands: str = "") -> Seen:
    """The class of one SASS instruction. Integer arithmetic counts as vector: it shares the issue slots."""
    name, *modifiers = opcode.split(".")
    found = _BITS.search(opcode)
    bits = found[1] if found else "32"
    if name in _FIXED:
        return _FIXED[name]
    if name in _MATRIX:
        shape = modifiers[0] if modifiers and modifiers[0][0].isdigit() else ""
        return Seen("matrix", f"{name} {shape}".strip(), _flops(name, shape))
    if name in _ACCESS:
        return Seen(_ACCESS[name], bits, to_shared=name == "LDGSTS")
    if name in ("STL", "LDL"):
        return Seen("spill", f"{'store' if name == 'STL' else 'load'} {bits}")
    return Seen("scalar" if name.startswith(_UNIFORM) else "vector")


def spill_stores(sass: Sass) -> Counter[str]:
    """Instructions that store a spilled register, by bits."""
    spills = [seen.key.split() for _, opcode, _ in sass.instructions if (seen := classify(opcode)).kind == "spill"]
    return Counter(bits for what, bits in spills if what == "store")


def whole(sass: Sass) -> Mix:
    """The instruction mix of the whole text without padding."""
    return mix(classify(opcode) for _, opcode, _ in sass.instructions)


def inner_loops(sass: Sass) -> tuple[Mix, ...]:
    """The mix of each innermost loop that multiplies or reads global memory, heaviest first."""
    at_address = {address: at for at, (address, _, _) in enumerate(sass.instructions)}
    branches = []
    for at, (_, opcode, operands) in enumerate(sass.instructions):
        target = re.search(r"0x([0-9a-f]+)", operands) if opcode.split(".")[0] == "BRA" else None
        if target and int(target[1], 16) in at_address:
            branches.append((at, at_address[int(target[1], 16)]))
    return worthwhile([_loop(sass.instructions[slice(*found)]) for found in innermost(branches)])


def _loop(text: Sequence[warp.Sass]) -> Mix:
    kinds, found = warp.counts(text), mix(classify(opcode) for _, opcode, _ in text)
    if (not found.matrix and not found.loads) or any(opcode.startswith("UTC") for _, opcode, _ in text):
        return replace(found, kinds=kinds)  # products of sm_100 are not a warp's
    return replace(found, kinds=kinds, cold=warp.clocks(text, warp.COLD), warm=warp.clocks(text, warp.WARM))


_UNIFORM_REGISTER = re.compile(r"UR\d+")


def lost_descriptors(sass: Sass) -> tuple[int, ...]:
    """Addresses of additions that make a shared-memory descriptor of sm_90 from an unset register: a defect of ptxas
    12.8.93, fixed in 13.0. A product then reads V from a wrong place in shared memory, or the program aborts.

    A descriptor's upper word holds its swizzle (bits 30, 31) and its stride (bits 0 to 13), and is added as a number:
    `UIADD3.X UR21, UR8, 0x40000040, URZ, UP0, !UPT`. What it is added to is the upper half of a 14-bit address: zero.
    """
    set_by, lost = {"URZ": ("UMOV", "URZ")}, []
    for at, opcode, operands in sass.instructions:
        names = [name.strip() for name in operands.split(",")]
        if opcode == "UIADD3.X" and _is_descriptor(names[2]) and set_by.get(names[1]) != ("UMOV", "URZ"):
            lost.append(at)
        if _UNIFORM_REGISTER.fullmatch(names[0]):
            first, wide = int(names[0][2:]), ".64" in opcode or ".WIDE" in opcode
            for register in range(first, first + 1 + wide):
                set_by[f"UR{register}"] = opcode, names[1] if len(names) > 1 else ""
    return tuple(lost)


def _is_descriptor(operand: str) -> bool:
    if not re.fullmatch(r"-?0x[0-9a-f]+", operand):
        return False
    word = int(operand, 16) & 0xFFFFFFFF
    return word >> 30 != 0 and word & 0x3FFFC000 == 0
