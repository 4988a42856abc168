"""Compile a kernel of several copies of the family, in a process that does not interpret; JSON to stdout.

Arguments: the folder of the copies, a kernel, and for each copy `package`, or `package:feature` with that one on.
{copy: {arch: [sha256 of each launch's code object]}}
"""

import importlib
import json
import sys
from typing import Any

import torch

from common.absent import gpu_target
from common.cases.batch import make_batch
from common.spec import AttentionShape, Features
from common.spec.kernel import Capacity
from compare.static import jit
from compare.static.compiled import from_triton

ARCHES = ("sm_90", "gfx942")
SHAPE, LENS = AttentionShape(4, 2, 32, 16, torch.bfloat16), ((40, 50), (1, 40))
ON = {"": Features(), "softcap": Features(softcap=2.0)}


def codes(kernel: Any, features: Features) -> dict[str, list[str]]:
    batch = make_batch(LENS, SHAPE)
    with jit.recorded() as launches:
        workspace = kernel.workspace(SHAPE, Capacity.of(batch), kernel.DEFAULT)
        kernel.launch(batch, features, torch.empty_like(batch.query), kernel.DEFAULT, workspace)
    found: dict[str, list[str]] = {}
    for arch in ARCHES:
        target = gpu_target(arch)
        for launch in launches:
            bound = jit.bind(launch, target)
            compiled = jit.compile_for(bound, target)
            result = from_triton(compiled, "kernel", launch.grid, bound.arguments, bound.dropped, 0.0)
            found.setdefault(arch, []).append(result.sha256)
    return found


def main(root: str, kernel: str, *copies: str) -> None:
    sys.path.insert(0, root)
    answers = {}
    for copy in copies:
        package, _, on = copy.partition(":")
        answers[copy] = codes(importlib.import_module(f"{package}.{kernel}"), ON[on])
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
