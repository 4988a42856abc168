"""Small batches for the metamorphic relations, and kernels as the callables that relations take."""

from __future__ import annotations

import math
from typing import Any

import torch

from common.cases.case import Case, build, named
from common.cases.trial import ready
from common.mutants.emulation import Edits, Schedule, emulate
from common.relations.relation import Attend, Result
from common.spec import Features, PagedBatch

MIXED = named("relations", lens=((3, 21), (1, 30), (20, 20)), dtype=torch.float16)
DECODES = named("relations-decodes", lens=((1, 21), (1, 64), (1, 30)), dtype=torch.float16)
WINDOW = MIXED.but(name="relations-window", lens=((3, 40), (1, 30), (5, 50)), sliding_window=9)
FULL = MIXED.but(name="relations-full", lens=((3, 21), (1, 30), (5, 17)), causal=False)
CAPPED = MIXED.but(name="relations-sinks", sinks="near", softcap=15.0)
SHARED = MIXED.but(name="relations-shared", lens=((3, 40), (1, 50), (2, 36)), shared_pages=2)
EMPTY = MIXED.but(name="relations-empty", lens=((3, 21), (0, 0), (2, 0), (1, 9), (0, 12)))
FLOAT = MIXED.but(name="relations-float", dtype=torch.float32)
CHUNKED = MIXED.but(name="relations-chunks", lens=((3, 40), (1, 30), (20, 50)), chunk=12)
QUANTISED = MIXED.but(name="relations-fp8", kv_dtype=torch.float8_e4m3fn)
SUNK = DECODES.but(name="relations-decodes-with-sinks", sinks="near")
FEWER = MIXED.but(name="relations-fewer-keys", lens=((20, 3), (1, 30), (9, 40), (17, 16)), sinks="some")
FEWER_FULL = FEWER.but(name="relations-fewer-keys-full", causal=False, sinks=None)
CASES: tuple[Case, ...] = (
    MIXED, DECODES, WINDOW, FULL, CAPPED, SHARED, EMPTY, FLOAT, CHUNKED, QUANTISED, SUNK, FEWER, FEWER_FULL,
)  # fmt: skip


def problem(case: Case) -> tuple[PagedBatch, Features]:
    return build(case)


def emulated(schedule: Schedule | None = None, edits: Edits | None = None) -> Attend:
    """The emulation; its path is its schedule."""

    def attend(batch: PagedBatch, features: Features) -> Result:
        sizes = (*batch.query.shape[:2], batch.shape.value_lanes)
        out = torch.full(sizes, math.nan, dtype=batch.query.dtype)
        lse = torch.full(batch.query.shape[:2], math.nan)
        emulate(batch, features, out, schedule, lse=lse, edits=edits)
        return Result(out, lse, schedule)

    return attend


def interpreted(kernel: Any, config: Any | None = None) -> Attend:
    """A kernel module under one config, its path."""
    config = config or kernel.DEFAULT

    def attend(batch: PagedBatch, features: Features) -> Result:
        sizes = (*batch.query.shape[:2], batch.shape.value_lanes)
        out = torch.full(sizes, math.nan, dtype=batch.query.dtype, device=batch.device)
        lse = torch.full(tuple(batch.query.shape[:2]), math.nan, device=batch.device)
        kernel.launch(batch, features, out, config, ready(kernel, batch, features, config), lse=lse)
        return Result(out, lse, config)

    return attend
