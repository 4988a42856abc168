"""A compiled launch: what the ISA model executes, what facts are read from, what the estimate uses.

It has everything that a driver needs to launch it, and nothing of Triton: bytes, text, numbers and CPU tensors.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from compare.static.loops import UnreadableCode


@dataclass(frozen=True)
class Argument:
    """A run-time argument: a leaf of what was passed, with tuples opened, without None and constants.

    name: the parameter's, with `.0`, `.1` for members of a tuple. type: Triton's, as the binder chose it: `*bf16` and
    other pointers, `i32`, `i64`, `fp32`, `u1`. value: a tensor for a pointer, else a number. Triton passes a Python
    float as fp32 and a bool as u1.
    """

    name: str
    type: str
    value: torch.Tensor | int | float | bool

    @property
    def is_pointer(self) -> bool:
        return self.type.startswith("*")


@dataclass(frozen=True)
class CompiledLaunch:
    """One kernel of a launch, compiled for `arch` with the JIT's own specialisation.

    grid: programs in x, y, z. arguments: in the order of the code object's argument segment, which goes on with hidden
    pointers of Triton's (scratch for profiling and global scratch, null in a launch). shared_bytes: dynamic LDS or
    shared memory of one program. code: the ELF code object (hsaco or cubin). assembly: what the same compiler run
    printed (amdgcn text, or PTX). ttgir: the GPU dialect before it. metadata: Triton's, plain values by name.
    dropped: launch options that the target's compiler does not know. seconds: what compiling took.
    """

    kernel: str
    arch: str
    grid: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    num_warps: int
    num_stages: int
    warp_size: int
    shared_bytes: int
    code: bytes
    assembly: str
    ttgir: str
    metadata: dict[str, Any]
    dropped: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def sha256(self) -> str:
        """The hash of the code object, by which results are keyed."""
        return hashlib.sha256(self.code).hexdigest()

    @property
    def is_amd(self) -> bool:
        return self.arch.startswith("gfx")


_CODE = {"hsaco": "amdgcn", "cubin": "ptx"}  # stage of the code object: stage of its text


def from_triton(
    compiled: Any,
    kernel: str,
    grid: tuple[int, ...],
    arguments: tuple[Argument, ...],
    dropped: tuple[str, ...],
    seconds: float,
) -> CompiledLaunch:
    """From a triton CompiledKernel. Raises UnreadableCode for neither an AMD nor an NVIDIA code object."""
    kind = next((kind for kind in _CODE if kind in compiled.asm), None)
    if kind is None:
        raise UnreadableCode(f"code object: found {sorted(compiled.asm)}, allowed one with {' or '.join(_CODE)}")
    meta, arch = compiled.metadata, compiled.metadata.target.arch
    return CompiledLaunch(
        kernel=kernel,
        arch=f"sm_{arch}" if isinstance(arch, int) else arch.split(":")[0],
        grid=(*grid, 1, 1)[:3],
        arguments=arguments,
        num_warps=meta.num_warps,
        num_stages=meta.num_stages,
        warp_size=meta.target.warp_size,
        shared_bytes=meta.shared,
        code=compiled.asm[kind],
        assembly=compiled.asm[_CODE[kind]],
        ttgir=compiled.asm["ttgir"],
        metadata={name: value for name, value in meta._asdict().items() if name != "target"},
        dropped=dropped,
        seconds=seconds,
    )


Executor = Callable[[CompiledLaunch], object]  # runs a launch on its CPU tensors, in place
