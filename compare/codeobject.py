"""Facts read from what Triton compiled: registers, spills, shared memory, matrix instructions, load widths.

AMD: the metadata note of the ELF code object, and the assembly text for instruction counts. NVIDIA: the `cuobjdump`
that ships inside the triton wheel. Counts are of the whole kernel text, prologues that pipelining peeled off included.
No GPU, driver or vendor toolkit is needed.
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compare.compiled import CompiledLaunch

CUOBJDUMP_LIMIT_S = 60


class UnreadableCode(RuntimeError):
    """A code object without the note, section or line that a fact is read from; the message names it."""


@dataclass(frozen=True)
class CodeFacts:
    """What one compiled kernel needs and contains; every field is JSON.

    registers: per thread (AMD: vector registers of a lane, the `agprs` accumulation registers among them).
    sgprs: scalar registers of a wave, None on NVIDIA. spills: registers of a thread that were spilled to memory (AMD),
    or instructions that store one (NVIDIA). spill_bytes: what one thread stores by them. scalar_spills: scalar
    registers that were moved to lanes of a vector register (AMD), which costs no memory. scratch_bytes: memory of a
    thread, spills and local arrays. shared_bytes: of one program. matrix: instructions by shape. loads: vector loads
    from global memory by bits a lane, and `tma`. pipelined: loads of loops that are issued iterations ahead, by the
    buffers that Triton's pipeliner made for them in shared memory. code_bytes: machine code. sha256: of the code
    object.
    """

    registers: int
    agprs: int | None
    sgprs: int | None
    spills: int
    spill_bytes: int
    scalar_spills: int | None
    scratch_bytes: int
    shared_bytes: int
    matrix: dict[str, int] = field(hash=False)
    loads: dict[str, int] = field(hash=False)
    pipelined: int
    instructions: int
    code_bytes: int
    sha256: str


def read(launch: CompiledLaunch) -> CodeFacts:
    """Facts of a compiled launch (for NVIDIA or AMD). Raises UnreadableCode."""
    if launch.is_amd:
        return _read_amd(launch.code, launch.assembly, launch.shared_bytes, _pipelined(launch))
    return _read_nvidia(launch.code, launch.shared_bytes, _pipelined(launch))


# A buffer without a first value; what is staged for a product within one iteration has one.
_BUFFER = re.compile(r"ttg\.local_alloc(?: \{[^}]*\})? : \(\) ->")


def _pipelined(launch: CompiledLaunch) -> int:
    return len(_BUFFER.findall(launch.ttgir))


_AMD_INSTRUCTION = re.compile(r"^\t([a-z][a-z0-9_]+)(?:\s|$)")
_MFMA = re.compile(r"v_(mfma|smfmac|wmma)_\w*?_(\d+x\d+x\d+)")
_AMD_LOAD = re.compile(r"(?:buffer|global|flat)_load_(?:lds_)?(?:format_)?([a-z0-9_]+)")
_AMD_BITS = {"dwordx4": "128", "dwordx3": "96", "dwordx2": "64", "dword": "32"}


def _amd_load_bits(kind: str) -> str:
    if kind in _AMD_BITS:
        return _AMD_BITS[kind]
    return "8" if "byte" in kind else "16"  # ushort, sshort, short_d16


def _amd_counts(assembly: str) -> tuple[int, Counter, Counter]:
    total, matrix, loads = 0, Counter(), Counter()
    for line in assembly.split(".Lfunc_end", 1)[0].splitlines():
        found = _AMD_INSTRUCTION.match(line)
        if not found:
            continue
        mnemonic = found[1]
        total += 1
        if shape := _MFMA.match(mnemonic):
            matrix[f"{shape[1]} {shape[2]}"] += 1
        elif load := _AMD_LOAD.match(mnemonic):
            loads[_amd_load_bits(load[1])] += 1
    return total, matrix, loads


def _amd_note(elf: Any) -> dict:
    import msgpack

    for section in elf.iter_sections():
        if section["sh_type"] == "SHT_NOTE":
            for note in section.iter_notes():
                if note["n_name"] == "AMDGPU" and note["n_type"] in (32, "NT_AMDGPU_METADATA"):
                    return msgpack.unpackb(note["n_descdata"])["amdhsa.kernels"][0]
    raise UnreadableCode("hsaco: found no AMDGPU metadata note, allowed exactly one")


def _read_amd(hsaco: bytes, assembly: str, shared_bytes: int, pipelined: int) -> CodeFacts:
    """`shared_bytes` comes from the compiler's metadata: LDS is dynamic, so the note says 0."""
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(io.BytesIO(hsaco))
    note = _amd_note(elf)
    symbol = elf.get_section_by_name(".symtab").get_symbol_by_name(note[".name"])
    total, matrix, loads = _amd_counts(assembly)
    return CodeFacts(
        registers=note[".vgpr_count"],  # on gfx90a and later the unified total: accumulation registers are among them
        agprs=note.get(".agpr_count", 0),
        sgprs=note[".sgpr_count"],
        spills=note[".vgpr_spill_count"],
        spill_bytes=4 * note[".vgpr_spill_count"],
        scalar_spills=note[".sgpr_spill_count"],
        scratch_bytes=note[".private_segment_fixed_size"],
        shared_bytes=shared_bytes,
        matrix=dict(matrix),
        loads=dict(loads),
        pipelined=pipelined,
        instructions=total,
        code_bytes=symbol[0]["st_size"],
        sha256=hashlib.sha256(hsaco).hexdigest(),
    )


_SASS = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)", re.M
)  # HGMMA.64x128x16 has a small x
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_MATRIX = {"HMMA", "HGMMA", "UTCHMMA", "IMMA", "QGMMA", "UTCQMMA", "DMMA"}
_BITS = re.compile(r"\.(?:[US]?(128|64|16|8))(?:\.|$)")


def _cuobjdump(cubin: bytes) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [tool, "--dump-resource-usage", "-sass", file.name],
            capture_output=True,
            text=True,
            timeout=CUOBJDUMP_LIMIT_S,
        )
    if done.returncode:
        raise UnreadableCode(f"cuobjdump: exit {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def _nvidia_counts(sass: str) -> tuple[int, Counter, Counter, Counter]:
    """Instructions without padding NOPs, matrix shapes, loads by bits, spill stores by bits."""
    total, matrix, loads, spills = 0, Counter(), Counter(), Counter()
    for opcode in _SASS.findall(sass):
        name, *modifiers = opcode.split(".")
        total += name != "NOP"
        bits = _BITS.search(opcode)
        if name in _MATRIX:
            shape = modifiers[0] if modifiers and modifiers[0][0].isdigit() else ""
            matrix[f"{name} {shape}".strip()] += 1
        elif name in ("LDG", "LDGSTS"):
            loads[bits[1] if bits else "32"] += 1
        elif name == "UTMALDG":
            loads["tma"] += 1
        elif name == "STL":
            spills[bits[1] if bits else "32"] += 1
    return total, matrix, loads, spills


def _read_nvidia(cubin: bytes, shared_bytes: int, pipelined: int) -> CodeFacts:
    """`shared_bytes` comes from the compiler's metadata: it is dynamic, so the code object says 0."""
    from elftools.elf.elffile import ELFFile

    text = _cuobjdump(cubin)
    usage = _USAGE.search(text)
    if not usage:
        raise UnreadableCode("cuobjdump: found no line REG:.. STACK:.., allowed one")
    total, matrix, loads, spills = _nvidia_counts(text)
    code = [s["sh_size"] for s in ELFFile(io.BytesIO(cubin)).iter_sections() if s.name.startswith(".text.")]
    return CodeFacts(
        registers=int(usage[1]),
        agprs=None,
        sgprs=None,
        spills=sum(spills.values()),
        spill_bytes=sum(int(bits) // 8 * count for bits, count in spills.items()),
        scalar_spills=None,
        scratch_bytes=int(usage[2]) + int(usage[4]),
        shared_bytes=shared_bytes,
        matrix=dict(matrix),
        loads=dict(loads),
        pipelined=pipelined,
        instructions=total,
        code_bytes=sum(code),
        sha256=hashlib.sha256(cubin).hexdigest(),
    )
