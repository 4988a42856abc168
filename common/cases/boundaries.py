"""The values of each numeric axis at which kernels break.

They are powers of two and their neighbours, sizes in use (`common.cases.published`), all small values, and values that
a seed draws.
"""

import math
import random
from collections.abc import Iterable
from typing import Any

from common.cases import published
from common.cases.random_cases import log_uniform
from common.spec.paged_batch import MAX_HEAD_SIZE

RATIO = 129  # the most query heads of a KV head that are asked, and the most KV heads


def around(least: int, most: int) -> tuple[int, ...]:
    """Each power of two from `least` to `most`, and one to either side."""
    powers = (1 << bit for bit in range(most.bit_length()))
    near = {power + step for power in powers for step in (-1, 0, 1) if power <= most}
    return tuple(sorted(value for value in near if value >= least))


def _joined(*parts: Iterable[int], most: int) -> tuple[int, ...]:
    return tuple(sorted({value for part in parts for value in part if value <= most}))


def _eights(*parts: Iterable[int]) -> tuple[int, ...]:
    """The values, each rounded up to a multiple of 8."""
    return tuple(sorted({-(-value // 8) * 8 for part in parts for value in part if value}))


NEAR = {power + step for power in (128, 256, 512) for step in range(-3, 4)}


_WINDOWS = _joined(range(1, 10), around(8, 16384), published.TILES, (100, 1000, 3000, 5001, 10007), most=2**15)
_CHUNKS = _joined(
    range(1, 10), around(8, 128), published.TILES, (10, 100, 500, 1000, 2048, 3000, 4096, 8192), most=8192
)
# Fixed values, each of which is asked at `smoke`. A chunk is (size, lookback).
FIXED: dict[str, tuple[Any, ...]] = {
    "query": _joined(range(1, 34), around(32, 1024), (40, 48, 80, 96, 112, 192, 200, 300, 700, 1500), most=1500),
    "context": _joined(range(19), around(32, 32768), (24, 48, 80, 96, 112, 192, 300, 700, 3000, 40001), most=40001),
    "sequences": _joined(
        range(1, 34), range(32, 513, 32), around(1, 512), (40, 48, 56, 72, 80, 100, 200, 300, 600), most=600
    ),
    "ratio": _joined(range(1, 34), around(1, 128), published.ratios(), most=RATIO),
    "kv_heads": _joined(range(1, 21), around(1, 128), published.kv_heads(), most=RATIO),
    "head_size": tuple(range(8, MAX_HEAD_SIZE + 1, 8)),
    "page": _joined(
        range(8, 129, 8), range(144, 513, 16), _eights(published.PAGES, around(128, 1024)), most=2096
    ),
    "window": _WINDOWS,
    "chunk": tuple((size, number % 4 if size < 2000 else number % 2) for number, size in enumerate(_CHUNKS)),
    "value_size": tuple(range(8, MAX_HEAD_SIZE + 1, 8)),
    "tree": _joined(range(1, 10), around(16, 128), (24, 48, 60), most=129),
    "shared_pages": (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 32, 33, 64, 65, 100),
    "pad_tokens": _joined(range(18), around(1, 256), most=512),
    "extra_columns": _joined(range(18), around(1, 1024), (600,), most=1025),
    "spare_pages": _joined(range(1, 10), around(1, 2048), (40, 100, 1000), most=2049),
}  # fmt: skip
# Between which values are drawn, and what they are multiples of: (least, most, multiple).
RANGES: dict[str, tuple[int, int, int]] = {
    "query": (1, 1500, 1), "context": (1, 40_000, 1), "sequences": (1, 520, 1), "ratio": (1, RATIO, 1),
    "kv_heads": (1, 96, 1), "head_size": (8, MAX_HEAD_SIZE, 8), "page": (8, 1200, 8), "window": (1, 20_000, 1),
    "chunk": (1, 10_000, 1), "value_size": (8, MAX_HEAD_SIZE, 8), "tree": (1, 129, 1), "shared_pages": (1, 100, 1),
    "pad_tokens": (1, 400, 1), "extra_columns": (1, 1100, 1), "spare_pages": (1, 2500, 1),
}  # fmt: skip
_REALS = {
    "softcap": (0.1, 300.0),
    "softmax_scale": (0.003, 1.0),
    "scale_factor": (0.01, 300.0),
    "out_scale": (0.004, 4.0),
}
_SERVED = {"sequences": published.GRAPHS, "page": _eights(published.PAGES), "ratio": published.ratios()}
DRAWN = (*RANGES, *_REALS)


def drawn(axis: str, rng: random.Random) -> Any:
    """Draw a value of an axis of DRAWN: log-uniform; in a third of the draws near a power of two or a size in use."""
    if axis in _REALS:
        least, most = _REALS[axis]
        return round(math.exp(rng.uniform(math.log(least), math.log(most))), 4)
    least, most, step = RANGES[axis]
    kind = rng.randrange(3)
    if kind == 0:
        found = rng.choice(around(1, most)) + rng.randint(-2, 2)
    elif kind == 1 and axis in _SERVED:
        found = rng.choice(_SERVED[axis])
    elif kind == 1 and axis in ("sequences", "query", "context", "window"):  # whole tiles
        found = rng.choice((16, 32, 64)) * rng.randint(1, max(1, min(most, 1024) // 64))
    else:
        found = log_uniform(rng, least, most, step)
    found = min(most, max(least, round(found / step) * step))
    return (found, rng.choice((0, 0, 1, 2, 5))) if axis == "chunk" else found
