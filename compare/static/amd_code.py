"""Read AMD code objects: the ELF's metadata note, and the assembly text that Triton's compiler printed with it.

What the note states is never read from the text: its comments leave LDS out and come from the printer.
"""

import io
import re
from collections import defaultdict, deque
from dataclasses import dataclass, replace
from typing import Any

from compare.static import warp
from compare.static.loops import Mix, Seen, UnreadableCode, innermost, mix, worthwhile

_EM_AMDGPU = ("EM_AMDGPU", 224)


@dataclass(frozen=True)
class Note:
    """The metadata note of the kernel in a code object. registers: unified total, including `agprs`.

    arguments: (kind, offset, bytes) of each in its argument segment of `argument_bytes`; hidden ones have a kind
    `hidden_...`.
    """

    name: str
    registers: int
    agprs: int
    sgprs: int
    spills: int
    scalar_spills: int
    scratch_bytes: int
    code_bytes: int
    argument_bytes: int = 0
    arguments: tuple[tuple[str, int, int], ...] = ()


def read_note(hsaco: bytes) -> Note:
    """The note of an hsaco. Raises UnreadableCode for bytes that are no complete AMD code object."""
    from elftools.common.exceptions import ELFError
    from elftools.construct import ConstructError
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(io.BytesIO(hsaco))
        if elf["e_machine"] not in _EM_AMDGPU:
            raise UnreadableCode(f"hsaco: found an ELF file for {elf['e_machine']}, allowed EM_AMDGPU")
        plain = _metadata(elf)
        symbol = elf.get_section_by_name(".symtab").get_symbol_by_name(plain[".name"])
        return Note(
            name=plain[".name"],
            registers=plain[".vgpr_count"],
            agprs=plain.get(".agpr_count", 0),
            sgprs=plain[".sgpr_count"],
            spills=plain[".vgpr_spill_count"],
            scalar_spills=plain[".sgpr_spill_count"],
            scratch_bytes=plain[".private_segment_fixed_size"],
            code_bytes=symbol[0]["st_size"],
            argument_bytes=plain[".kernarg_segment_size"],
            arguments=tuple((one[".value_kind"], one[".offset"], one[".size"]) for one in plain.get(".args", ())),
        )
    except (ELFError, ConstructError, AttributeError, KeyError, TypeError, ValueError, UnicodeError) as error:
        found = f"{len(hsaco)} bytes that end or break off in {type(error).__name__}: {error}"
        raise UnreadableCode(f"hsaco: found {found}; allowed a whole ELF code object") from error


def _metadata(elf: Any) -> dict[str, Any]:
    import msgpack

    for section in elf.iter_sections():
        if section["sh_type"] == "SHT_NOTE":
            for note in section.iter_notes():
                if note["n_name"] == "AMDGPU" and note["n_type"] in (32, "NT_AMDGPU_METADATA"):
                    return msgpack.unpackb(note["n_descdata"])["amdhsa.kernels"][0]
    raise UnreadableCode("hsaco: found no AMDGPU metadata note, allowed exactly one")


_LINE = re.compile(r"^\t([a-z][a-z0-9_]+)(?:\s+(.*?))?(?:\s*;.*)?$")
_LABEL = re.compile(r"^(\.L[A-Za-z0-9_]+):")
_KERNEL = re.compile(r"^[A-Za-z_]\w*:")


@dataclass(frozen=True)
class Text:
    """The instructions of the kernel, (mnemonic, operands), and where its labels point."""

    instructions: tuple[tuple[str, str], ...]
    labels: dict[str, int]


def parse(assembly: str) -> Text:
    """The first function of an AMD assembly text. Raises UnreadableCode where it has no beginning or no end."""
    instructions: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    begun = ended = False
    for line in assembly.splitlines():
        if not begun:
            begun = bool(_KERNEL.match(line))
            continue
        if line.startswith(".Lfunc_end"):
            ended = True
            break
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := _LINE.match(line):
            instructions.append((found[1], found[2] or ""))
    if not ended or not any(mnemonic == "s_endpgm" for mnemonic, _ in instructions):
        raise UnreadableCode(
            f"assembly: found {len(instructions)} instructions without an end, allowed a whole AMD function"
        )
    return Text(tuple(instructions), labels)


_MATRIX = re.compile(r"v_(mfma|smfmac|wmma|swmmac)_\w*?_(\d+)x(\d+)x(\d+)_?(\w*)")
# Products of several small blocks whose mnemonic, up to gfx90a, does not tell the number: (M, K) -> blocks.
_BLOCKS = {(4, 4): 16, (4, 1): 16, (4, 2): 16, (16, 1): 4, (32, 1): 2}
_BLOCKS_16BIT = {(16, 4): 4, (32, 4): 2}
_MEMORY = re.compile(r"(?:buffer|global|flat)_(load|store)_(?:lds_)?(?:format_)?(\w+)")
_LDS = re.compile(r"ds_(read|write|load|store)(?:_?(2)(?:addr)?)?(?:_?st(?:ride)?64)?_(?:tr\d+_)?([bui]\d+)")
_BITS = {"dwordx4": "128", "dwordx3": "96", "dwordx2": "64", "dword": "32", "ubyte": "8", "sbyte": "8", "byte": "8"}
_LEFT = re.compile(r"vmcnt\((\d+)\)")  # loads that a wait leaves in flight
_PASSES = 8  # of a loop, until the loads of its first are few
_TRANSCENDENTAL = ("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_")


def _flops(found: re.Match[str]) -> int:
    """FLOPs of one wave's matrix instruction: 2 M N K for each of its blocks (AMD matrix instruction calculator)."""
    m, n, k = (int(found[i]) for i in (2, 3, 4))
    if said := re.match(r"(\d+)b(?:_|$)", found[5]):
        return 2 * m * n * k * int(said[1])
    old = found[5].endswith("_1k") or found[5] == "f16"
    return 2 * m * n * k * (_BLOCKS.get((m, k)) or (_BLOCKS_16BIT.get((m, k), 1) if old else 1))


def _bits(kind: str) -> str:
    """Bits a lane of a global access: dwordx4, b128, ushort, u16, short_d16, d16_b16 ..."""
    if kind in _BITS:
        return _BITS[kind]
    if size := re.search(r"[bui](8|16|32|64|96|128)$", kind):
        return size[1]
    return "8" if "byte" in kind else "16"


def classify(mnemonic: str, operands: str) -> Seen:
    """The class of one AMD instruction."""
    if found := _MATRIX.match(mnemonic):
        return Seen("matrix", f"{found[1]} {found[2]}x{found[3]}x{found[4]}", _flops(found))
    if found := _MEMORY.match(mnemonic):
        if found[1] == "store":
            return Seen("store", _bits(found[2]))
        return Seen("load", _bits(found[2]), to_shared="load_lds" in mnemonic or bool(re.search(r"\blds\b", operands)))
    if found := _LDS.match(mnemonic):
        bits = int(found[3][1:]) * (2 if found[2] else 1)
        return Seen("shared_read" if found[1] in ("read", "load") else "shared_write", str(bits))
    if mnemonic.startswith("scratch_"):
        return Seen("spill")
    if mnemonic.startswith(("s_barrier", "s_wait")):
        # gfx12 has a barrier in two instructions; the wait is the second
        return Seen("wait" if mnemonic.startswith("s_wait") or mnemonic == "s_barrier_wait" else "barrier")
    if mnemonic.startswith(_TRANSCENDENTAL):
        return Seen("transcendental")
    return Seen("vector" if mnemonic.startswith(("v_", "ds_")) else "scalar")


def whole(text: Text) -> Mix:
    """The mix of the whole text, including prologues that pipelining peeled off."""
    return mix(classify(*one) for one in text.instructions)


def _inner(text: Text) -> list[tuple[tuple[str, str], ...]]:
    """The instructions of each innermost loop."""
    branches = [
        (at, text.labels[operands.split()[0]])
        for at, (mnemonic, operands) in enumerate(text.instructions)
        if mnemonic.startswith(("s_cbranch", "s_branch")) and operands.split()[0] in text.labels
    ]
    return [text.instructions[slice(*found)] for found in innermost(branches)]


def inner_loops(text: Text) -> tuple[Mix, ...]:
    """The mix of each innermost loop that multiplies or reads global memory, heaviest first."""
    loops = _inner(text)
    return worthwhile([replace(mix(classify(*one) for one in loop), kinds=warp.counts_amd(loop)) for loop in loops])


def flights(text: Text) -> dict[str, float]:
    """How many instructions a wave issues between a load and the `s_waitcnt` that waits for it: the mean by bits a
    lane. Of the shortest inner loop with products, which has no masks; empty without one."""
    loops = [loop for loop in _inner(text) if any(_MATRIX.match(mnemonic) for mnemonic, _ in loop)]
    loop = min(loops, key=len, default=())
    under_way, found = deque(), defaultdict(list)
    for clock, (mnemonic, operands) in enumerate(loop * _PASSES):
        seen = classify(mnemonic, operands)
        if seen.kind == "load":
            under_way.append((clock, seen.key))
        elif left := _LEFT.search(operands) if mnemonic == "s_waitcnt" else None:
            while len(under_way) > int(left[1]):
                begun, bits = under_way.popleft()
                found[bits].append(clock - begun)
    return {bits: sum(each) / len(each) for bits, each in found.items()}
