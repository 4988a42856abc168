"""Compilers that generate wrong code for a kernel: the table, the installed compilers, and the refusal.

`auto` then takes the next kernel (common.serving.choice), the named kernel's launch raises RefusedCompiler
(common.spec.kernel.require) and `explain` says why. Add an entry where `study stress` sees a kernel's bits change.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

import torch

from common.gpus import gpu_of
from common.spec.paged_batch import SpecError, UnsupportedFeature

Version = tuple[int, ...]  # () is less than every other version
Span = tuple[Version, Version]  # from the first, below the second
ANY: Span = ((), (2**31,))


@dataclass(frozen=True)
class Toolchain:
    """The compilers of one arch. ptxas: () where there is none (AMD). variable: the environment variable for another
    ptxas."""

    triton: Version
    ptxas: Version = ()
    variable: str = ""

    def __str__(self) -> str:
        ptxas = f" with ptxas {dotted(self.ptxas)}" if self.ptxas else ""
        return f"triton {dotted(self.triton)}{ptxas}"


@dataclass(frozen=True)
class Refused:
    """A kernel that these versions miscompile. kernel: a glob of names as `triton/unpaged`. arch: as `sm_90`. evidence:
    where the wrong bits are documented."""

    kernel: str
    arch: str
    why: str
    evidence: str
    triton: Span = ANY
    ptxas: Span = ANY

    def holds(self, found: Toolchain) -> bool:
        pairs = ((self.triton, found.triton), (self.ptxas, found.ptxas))
        return all(first <= version < last for (first, last), version in pairs)


# None yet. Two hazards are looked for, both of wgmma with its left operand in registers, as P is in P.V: Triton that
# lets those registers be written while the product before reads them (triton-lang/triton#9433, mended behind 3.6.0),
# and ptxas below 13.3 that gives them to somebody else too early (triton-lang/triton#11781).
REFUSED: tuple[Refused, ...] = ()


class RefusedCompiler(UnsupportedFeature):
    """The installed compilers are known to miscompile this kernel."""

    def __init__(self, kernel: str, entry: Refused, found: Toolchain) -> None:
        other = f"another triton, or another ptxas in {found.variable}" if found.variable else "another triton"
        SpecError.__init__(self, "triton", f"{found}, whose {kernel} is wrong: {entry.why} ({entry.evidence})", other)
        self.kernel = kernel


def refusal(kernel: str, arch: str | None) -> RefusedCompiler | None:
    """Why the installed compilers may not compile `kernel` for `arch`; None where they may. Without an arch, on a CPU,
    nothing is compiled."""
    for entry in REFUSED:
        if entry.arch == arch and fnmatchcase(kernel, entry.kernel) and entry.holds(found := toolchain(arch)):
            return RefusedCompiler(kernel, entry, found)
    return None


def expect_compiler(kernel: str, device: torch.device) -> None:
    """Raises RefusedCompiler."""
    if REFUSED and (gpu := gpu_of(device)) and (error := refusal(kernel, gpu.arch)):
        raise error


@lru_cache
def toolchain(arch: str) -> Toolchain:
    """What the installed Triton compiles with for `sm_90` or `gfx942`; Triton's release decides which ptxas. Without
    Triton the version is ()."""
    try:
        import triton
    except ImportError:
        return Toolchain(())
    release = version(triton.__version__)
    if not arch.startswith("sm_"):
        return Toolchain(release)
    from triton import knobs
    from triton.backends.nvidia import compiler

    number = int(arch.removeprefix("sm_"))
    said = re.search(r"\bV(\d+(?:\.\d+)+)", compiler.get_ptxas_version(number))
    newer = compiler.get_ptxas(number) == knobs.nvidia.ptxas_blackwell
    return Toolchain(release, version(said[1]) if said else (), f"TRITON_PTXAS{'_BLACKWELL' if newer else ''}_PATH")


def version(text: str) -> Version:
    """`3.6.0+rocm7` is (3, 6, 0)."""
    return tuple(map(int, re.match(r"\d+(?:\.\d+)*", text)[0].split(".")))


def dotted(numbers: Version) -> str:
    return ".".join(map(str, numbers))
