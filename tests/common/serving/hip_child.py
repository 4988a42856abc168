"""A process that launches for gfx942 through Triton's own driver for AMD, on a HIP that writes launches down.

Run without TRITON_INTERPRET, with tests/support/rocm before all others: python hip_child.py DSL LIBRARY, the second
amdhip64.c compiled. Prints a JSON line per call: what its launches were, and whether it was kept.
"""

import ctypes
import dataclasses
import importlib
import json
import os
import sys

os.environ["TRITON_LIBHIP_PATH"] = sys.argv[2]

import torch
from planted_changes import base, prompts
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from common.serving.call import PagedAttention
from compare.static.amd_code import read_note

hip = ctypes.CDLL(sys.argv[2])
hip.taken.restype = ctypes.c_char_p
dispatched = []


def described(load_binary):
    """Tells the runtime how the arguments of a kernel lie, from its code object."""

    def load(name, code, *rest):
        found = load_binary(name, code, *rest)
        sizes = [size for kind, _, size in read_note(code).arguments if not kind.startswith("hidden")]
        hip.describe(ctypes.c_uint64(found[1]), len(sizes), (ctypes.c_int * len(sizes))(*sizes))
        return found

    return load


def counted(original):
    def run(self, *args, **kwargs):
        dispatched.append(self)
        return original(self, *args, **kwargs)

    return run


def on_gpu(value):
    if isinstance(value, torch.Tensor):
        return value.to("cuda")
    if dataclasses.is_dataclass(value):
        changed = {f.name: on_gpu(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **changed)
    return value


def launches():
    """Of the last call, with streams by the order in which they come."""
    lines, names = hip.taken().decode().splitlines(), {}
    found = []
    for line in lines:
        how, kernel, grid, threads, shared, stream, *arguments = line.split(" ")
        found.append([how, kernel, grid, threads, shared, names.setdefault(stream, len(names)), *arguments])
    return found


def call(attention, options):
    dispatched.clear()
    attention(**options)
    return launches(), not dispatched


def main():
    family = importlib.import_module(f"dsl_{sys.argv[1]}.auto").FAMILY
    utils = driver.active.utils
    utils.load_binary = described(utils.load_binary)
    JITFunction.run = counted(JITFunction.run)
    for name, made in (("decodes", base), ("prompts", prompts)):
        first = {key: on_gpu(value) for key, value in made().items()}
        moved = first | {key: first[key].clone() for key in ("query", "out", "seq_lens")}
        attention, cold = PagedAttention(family), PagedAttention(family)
        call(attention, first)
        for which, options in (("same", first), ("moved", moved)):
            got, kept = call(attention, options)
            wanted, _ = call(PagedAttention(family) if which == "moved" else cold, options)
            print(json.dumps({"name": f"{name}:{which}", "kept": kept, "got": got, "wanted": wanted}), flush=True)


if __name__ == "__main__":
    main()
