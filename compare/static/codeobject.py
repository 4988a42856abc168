"""Read facts from compiled code: registers, spills, shared memory, matrix work, load widths, inner loops.

Each comes from its most robust source: AMD's ELF metadata note (compare.static.amd_code) and NVIDIA's cuobjdump
(compare.static.nvidia_code) for a program's needs, Triton's metadata for shared memory (it is dynamic: code objects say
0), the machine code's text for counts, the GPU dialect for the products that the kernel asked for. Occupancy is
computed. No GPU, driver or vendor toolkit is needed.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from compare.static import amd_code, nvidia_code
from compare.static.compiled import CompiledLaunch
from compare.static.loops import Mix, UnreadableCode
from compare.static.occupancy import Occupancy, UnknownArch, occupancy

__all__ = ["CodeFacts", "UnreadableCode", "read"]


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
    object. Counts are of the whole text, prologues that pipelining peeled off included; `loops` has those of a pass of
    each innermost loop, heaviest first. matrix_redundancy: matrix work that all waves issue in a pass of a loop / that
    of its products in the GPU dialect (1 = none twice), the worst loop's; of the whole text where no loop multiplies.
    None where there is no product or its instructions do not say their shape.
    occupancy: programs that one unit holds, None for an arch without known limits. lost_descriptors: operands of
    products that ptxas has lost (nvidia_code.lost_descriptors): anything above 0 is wrong code.
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
    barriers: int
    waits: int
    matrix_redundancy: float | None
    occupancy: Occupancy | None
    loops: tuple[Mix, ...] = field(hash=False)
    lost_descriptors: int = 0


def read(launch: CompiledLaunch) -> CodeFacts:
    """Facts of a compiled launch (for NVIDIA or AMD); code that was read before is not read again.

    Raises UnreadableCode.
    """
    key = (launch.sha256, launch.shared_bytes, hash(launch.assembly), hash(launch.ttgir))
    if key not in _read:
        _read[key] = _read_amd(launch) if launch.is_amd else _read_nvidia(launch)
    return _read[key]


_read: dict[tuple, CodeFacts] = {}  # by the code object's sha256 and its context

# A buffer without a first value; a value staged for a product within one iteration has one.
_BUFFER = re.compile(r"ttg\.local_alloc(?: \{[^}]*\})? : \(\) ->")
_PRODUCT = re.compile(r"^\s*(?:%\S+ = )?(?:tt\.dot|ttng\.warp_group_dot|ttng\.tc_gen5_mma)\b.*$", re.M)
_LOOP = re.compile(r"\s*(?:%\S+ = )?scf\.(?:for|while)\b")
_OPERAND = re.compile(r"(?:tensor|memdesc)<((?:\d+x)+)\w+")


def product_flops(ttgir: str) -> int:
    """Multiplications and additions of every matrix product in the dialect's text, each counted once."""
    total = 0
    for product in _PRODUCT.findall(ttgir):
        shapes = [[int(size) for size in shape.split("x") if size] for shape in _OPERAND.findall(product)]
        if len(shapes) >= 2:
            total += 2 * math.prod(shapes[0]) * shapes[1][-1]
    return total


def pass_flops(ttgir: str) -> list[int]:
    """`product_flops` of one pass of each innermost loop with products, in the text's order."""
    open_: list[list[int]] = []  # of each loop around a line: its indentation, its products, inner loops with products
    found = []
    for line in ttgir.splitlines():
        bare = line.lstrip()
        indent = len(line) - len(bare)
        if open_ and indent == open_[-1][0] and bare.startswith("}") and "do {" not in bare:
            _, flops, inner = open_.pop()
            if flops and not inner:
                found.append(flops)
            if open_:
                open_[-1][2] += flops + inner
        if _LOOP.match(line):
            open_.append([indent, 0, 0])
        elif open_:
            open_[-1][1] += product_flops(line)
    return found


def _redundancy(launch: CompiledLaunch, whole: Mix, loops: Sequence[Mix]) -> float | None:
    """The matrix_redundancy of CodeFacts.

    Computed a pass, because LLVM duplicates a peeled iteration that two paths lead to: the text then has more products
    than are issued.
    """
    asked, issued = product_flops(launch.ttgir), whole.matrix_flops
    if not (asked and issued):
        return None
    passes, turns = pass_flops(launch.ttgir), [loop.matrix_flops for loop in loops if loop.matrix_flops]
    if not (passes and turns):
        return issued * launch.num_warps / asked
    work = [turn * launch.num_warps for turn in turns]
    return max(one / max((asked for asked in passes if asked <= one), default=min(passes)) for one in work)


def _common(launch: CompiledLaunch, whole: Mix, loops: tuple[Mix, ...], registers: int) -> dict:
    try:
        held = occupancy(launch.arch, registers, launch.shared_bytes, launch.num_warps)
    except UnknownArch:
        held = None
    return {
        "registers": registers,
        "shared_bytes": launch.shared_bytes,
        "matrix": whole.matrix,
        "loads": whole.loads,
        "pipelined": len(_BUFFER.findall(launch.ttgir)),
        "instructions": whole.instructions,
        "sha256": launch.sha256,
        "barriers": whole.barriers,
        "waits": whole.waits,
        "matrix_redundancy": _redundancy(launch, whole, loops),
        "occupancy": held,
        "loops": loops,
    }


def _read_amd(launch: CompiledLaunch) -> CodeFacts:
    note, text = amd_code.read_note(launch.code), amd_code.parse(launch.assembly)
    return CodeFacts(
        **_common(launch, amd_code.whole(text), amd_code.inner_loops(text), note.registers),
        agprs=note.agprs,
        sgprs=note.sgprs,
        spills=note.spills,
        spill_bytes=4 * note.spills,
        scalar_spills=note.scalar_spills,
        scratch_bytes=note.scratch_bytes,
        code_bytes=note.code_bytes,
    )


def _read_nvidia(launch: CompiledLaunch) -> CodeFacts:
    usage, sass = nvidia_code.read(launch.code)
    spills = nvidia_code.spill_stores(sass)
    return CodeFacts(
        **_common(launch, nvidia_code.whole(sass), nvidia_code.inner_loops(sass), usage.registers),
        agprs=None,
        sgprs=None,
        spills=sum(spills.values()),
        spill_bytes=sum(int(bits) // 8 * count for bits, count in spills.items()),
        scalar_spills=None,
        scratch_bytes=usage.scratch_bytes,
        code_bytes=usage.code_bytes,
        lost_descriptors=len(nvidia_code.lost_descriptors(sass)),
    )
