"""The executor of compare.static.crosscompile.executing: one compiled launch, run on the CPU tensors passed to it."""

import functools
import struct
from typing import Any

import numpy as np
import torch

from compare.static import amd_code
from compare.static.compiled import Argument, CompiledLaunch
from compare.static.isa.errors import NotExecutable
from compare.static.isa.machine import Kernel, Program, launch
from compare.static.isa.watch import Watch

_PACK = {1: "<b", 2: "<h", 4: "<i", 8: "<q"}


@functools.lru_cache(maxsize=256)
def _program(assembly: str) -> Program:
    return Program(assembly)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """(address, bytes) from the first to the last element of a view."""
    if tensor.numel() == 0:
        return tensor.data_ptr(), 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()


def _hidden(kind: str, compiled: CompiledLaunch) -> int | None:
    """The value that the runtime fills in; None for what none of our kernels has read yet."""
    sizes = {f"hidden_block_count_{axis}": count for axis, count in zip("xyz", compiled.grid, strict=True)}
    sizes |= {"hidden_group_size_x": compiled.num_warps * 64, "hidden_group_size_y": 1, "hidden_group_size_z": 1}
    sizes |= {f"hidden_{name}_{axis}": 0 for name in ("remainder", "global_offset") for axis in "xyz"}
    return sizes.get(kind)


def _leaves(argument: Argument) -> list[Any]:
    """What the launcher passes: a tensor descriptor becomes its base, shape, strides, two flags, shape and strides."""
    value = argument.value
    if argument.type.startswith("tensordesc"):
        shape = [*map(int, value.shape), *map(int, value.strides)]
        return [value.base, *shape, int(value.padding == "nan"), int(value.round_f32_to_tf32), *shape]
    return [float(value) if argument.type == "fp32" else value if argument.is_pointer else int(value)]


def _block(note: amd_code.Note, compiled: CompiledLaunch, values: list[Any]) -> np.ndarray:
    """The argument segment; unfilled bytes are 0xA5, so that reading them shows."""
    visible = [one for one in note.arguments if not one[0].startswith("hidden_")]
    agree = all((one[0] == "by_value") != torch.is_tensor(value) for one, value in zip(visible, values, strict=False))
    if len(values) > len(visible) or not agree:
        raise NotExecutable(
            "launch", f"{len(values)} arguments where the code object has {len(visible)}, or other kinds"
        )
    null = [0] * (len(visible) - len(values))  # Triton's own scratch pointers
    hidden = [(one, _hidden(one[0], compiled)) for one in note.arguments if one not in visible]
    filled = [*zip(visible, values + null, strict=True), *hidden]
    block = bytearray(b"\xa5" * note.argument_bytes)
    for (_, offset, size), value in filled:
        value = value.data_ptr() if torch.is_tensor(value) else value
        if value is not None:
            struct.pack_into("<f" if isinstance(value, float) else _PACK[size], block, offset, value)
    return np.frombuffer(bytes(block), np.uint8)


def execute(compiled: CompiledLaunch, program: Program | None = None, watch: Watch | None = None) -> None:
    """Run a launch in the model, in place.

    program: decoded code other than the launch's own. watch: is told what happens. Raises NotExecutable, ForeignCode or
    UnreadableCode before anything runs, Fault (or NotExecutable) while it runs.
    """
    note = amd_code.read_note(compiled.code)
    program = program or _program(compiled.assembly)
    kernel = Kernel(program, compiled.num_warps, compiled.shared_bytes, note.scratch_bytes)
    values = [leaf for argument in compiled.arguments for leaf in _leaves(argument)]
    tensors = [_extent(value) for value in values if torch.is_tensor(value)]
    launch(kernel, compiled.grid, _block(note, compiled, values), tensors, watch)
