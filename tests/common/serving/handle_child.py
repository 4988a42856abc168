"""A process that launches nothing: every planted change of a call, through the kept launches and through Triton's JIT.

Run without TRITON_INTERPRET: python handle_child.py DSL GPU. Prints one JSON line per change: whether the kept tape was
used, whether Triton's own specialisation is another one, and whether what reached the driver is what a first call of
the same arguments hands to it.
"""

# ruff: noqa: E402 - the paths come before the imports that need them
import importlib
import json
import sys
from pathlib import Path
from unittest import mock

sys.path[:0] = [str(Path(__file__).parents[3]), str(Path(__file__).parents[2] / "support")]

import torch
from planted_changes import CHANGES, UNCHANGED, base, prompts
from triton.runtime.jit import JITFunction

from common import gpus
from common.absent import helion_as
from common.serving import arguments, prepared, tape
from common.serving import call as public_call
from common.serving.call import PagedAttention
from compare.static.crosscompile import code_key
from compare.static.jit import Launch, flatten

GPU = gpus.resolve(sys.argv[2])
public_call.check_values = lambda *_: None  # the tensors stand for those of a GPU, whose values no call looks at
driven: list = []  # what reached the driver: code, grid, stream, pointers and integers
dispatched: list = []  # codes that the JIT was asked for


class Compiled:
    """A compiled kernel of triton 3.6 and 3.7 as common.serving.tape uses it."""

    packed_metadata = ()

    def __init__(self, code):
        self.function = code

    def run(self, x, y, z, stream, function, packed, metadata, enter, leave, *args):
        drive(function, (x, y, z), stream, args)


def drive(code, grid, stream, args):
    driven.append((code, grid, stream, [plain(arg) for arg in flatten(args)]))


def plain(arg):
    if hasattr(arg, "block_shape"):  # a tensor descriptor
        return (arg.base.data_ptr(), *arg.shape, *arg.strides, *arg.block_shape)
    return arg.data_ptr() if isinstance(arg, torch.Tensor) else arg


def jit_run(self, *args, grid, warmup, **kwargs):
    code = code_key(Launch(self, tuple(grid), args, kwargs), GPU)
    dispatched.append(code)
    kept = tape.Launch.of(self, None, grid, args, kwargs, 0)
    drive(code, kept.grid, tape.current_stream(-1), kept.args)
    return Compiled(code)


def call(attention, options):
    """(what reached the driver, codes that the JIT looked up)."""
    driven.clear()
    dispatched.clear()
    attention(**options)
    return list(driven), list(dispatched)


def judge(family, name, change, first):
    """One change planted into a warm call, `first`."""
    attention, cold = PagedAttention(family), PagedAttention(family)
    _, before = call(attention, first)
    _, again = call(attention, first)
    assert not again and driven, "the same call was dispatched twice"
    with change(first) as changed:
        got, looked_up = call(attention, changed)
        wanted, code = call(cold, changed)
    return {"name": name, "kept": not looked_up, "same_code": code == before, "right": got == wanted and bool(got)}


def main():
    family = importlib.import_module(f"dsl_{sys.argv[1]}.auto").FAMILY
    patches = [
        mock.patch.object(tape, "has_jit", lambda device: True),
        mock.patch.object(tape, "current_device", lambda: -1),
        mock.patch.object(tape, "current_stream", lambda device: 7),
        mock.patch.object(prepared, "gpu_of", lambda device: GPU),
        mock.patch.object(arguments, "WITHIN", 2**31 - 1),
        mock.patch.object(JITFunction, "run", jit_run),
    ]
    for patch in patches:
        patch.start()
    changes = CHANGES | UNCHANGED
    with helion_as(GPU):
        for name in sys.argv[3:] or changes:
            kind, _, change = name.rpartition(":")  # prompts:out-moved is that change of a call with prompts
            first = prompts() if kind else base()
            print(json.dumps(judge(family, name, changes[change], first)), flush=True)


if __name__ == "__main__":
    main()
