"""Cases that call a kernel on one batch with many windows, or many chunks, one after another.

A value costs one call instead of the four of a case, so every small value and all neighbours of powers of two are
asked. SWEPT has a batch of few keys for small values and longer batches for larger ones. Each batch also
has the values of BEYOND, which no sequence reaches: a position plus such a number is past 16, 24 or 31 bits.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from common.cases.boundaries import around
from common.cases.case import Case, named
from common.cases.random_cases import log_uniform
from common.spec import Features

WORDS = ("window", "chunk")
BEYOND = (2**15, 2**16, 2**24 + 1, 2**30, 2**31 - 1)
EVERY, STEP, MOST_STEPS, NEAR, DRAWN = 160, 16, 1024, 3, 12
_SMALL = {"head_size": 16, "block_size": 8}


def _swept(name: str, keys: int, **options: Any) -> Case:
    return named(f"swept-{name}", lens=((1, keys), (2, 20), (3, 3)), **_SMALL | options)  # the last sees its first key


SWEPT: tuple[Case, ...] = (
    _swept("window", 340, sweep="window", sliding_window=1, dtype=torch.float32),
    _swept("window-of-hundreds", 1100, sweep="window", sliding_window=341, dtype=torch.float16),
    _swept("window-of-thousands", 8300, sweep="window", sliding_window=1101, dtype=torch.bfloat16, block_size=64),
    _swept("chunk", 340, sweep="chunk", chunk=1, chunk_lookback=1, dtype=torch.float16),
    _swept("chunk-of-hundreds", 1100, sweep="chunk", chunk=341, dtype=torch.float32),
)


def values(least: int, most: int, seed: int) -> tuple[int, ...]:
    """Values from `least` to `most`: all up to EVERY, multiples of STEP up to MOST_STEPS, those within NEAR of a power
    of two, and DRAWN that the seed draws."""
    rng = random.Random(f"swept {seed}")
    near = {power + step for power in around(1, most + NEAR) for step in range(1 - NEAR, NEAR)}
    found = {*range(1, EVERY + 1), *range(STEP, MOST_STEPS + 1, STEP), *near}
    found |= {log_uniform(rng, least, most) for _ in range(DRAWN)}
    return tuple(sorted(value for value in found if least <= value <= most))


def sweep(case: Case, features: Features) -> Iterator[tuple[str, Features]]:
    """(words, features) for each value that a case sweeps, except its own."""
    field = {"window": "sliding_window", "chunk": "chunk"}[case.sweep]
    least, most = getattr(features, field) + 1, max(seq_len for _, seq_len in case.lens)
    for value in (*values(least, most, case.seed), *BEYOND) if least <= most else ():
        yield f"a {case.sweep} of {value}", replace(features, **{field: value})
