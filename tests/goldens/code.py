"""E: the machine code that each rung of both DSLs becomes for sm_90 and gfx942, on one row.

The SHA-256 of each code object, compiled without the lines and files of its source, and its static facts: what moves
the lines of a kernel leaves both. `few` is a rung of each DSL; the others take minutes, most of them Helion's.
"""

import os
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch

from common.gpus import resolve
from common.spec import AttentionShape
from compare.competitors.registry import OWN
from compare.static.compile import Outcome, compile_in_child
from compilations import compilation
from goldens.table import Rows

GPUS = ("h200", "mi300")
LENS = ((40, 50), (1, 40), (1, 200))
SHAPE = AttentionShape(8, 2, 64, 16, torch.bfloat16)
FEW = ("triton/q_block", "helion/q_block")
NO_LINES = {"TRITON_DISABLE_LINE_INFO": "1", "OMP_NUM_THREADS": "1"}


def rows(kernels: Sequence[str] = OWN) -> Rows:
    jobs = [compilation(kernel, LENS, SHAPE) for kernel in kernels]
    with mock.patch.dict(os.environ, NO_LINES):
        return {f"{o.job.kernel} for {gpu}": _said(o) for gpu in GPUS for o in compile_in_child(jobs, resolve(gpu))}


def few() -> Rows:
    return rows(FEW)


def _said(outcome: Outcome) -> dict[str, Any]:
    """A config without `auto`'s words on where it is from; facts without what compiling took."""
    config = {name: v for name, v in (outcome.config or {}).items() if name not in ("path", "provenance")}
    facts = [{name: value for name, value in kernel.items() if name != "seconds"} for kernel in outcome.facts]
    return {"status": outcome.status, "reason": outcome.reason, "config": config, "kernels": facts}
