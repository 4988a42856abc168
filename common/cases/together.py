"""Sizes that models have together, and x-packed pages: places of `common.cases.by_axes`, of an axis one of some values.

A kernel goes one way for the size of heads, the query heads of a KV head and the length at once: each alone is asked in
small cases, in which the others are small.
"""

from typing import Any

import torch

from common.spec.paged_batch import E4M3, FP8

Place = dict[str, tuple[Any, ...]]
HALF, BF16 = torch.float16, torch.bfloat16


def _served(
    query: int, context: int, head_size: int, ratio: int, page: int, dtype: torch.dtype = BF16, **more: Any
) -> Place:
    """One sequence, and two KV heads or more with several query heads each, so that a wrong one shows."""
    of = {"query": query, "context": context, "head_size": head_size, "ratio": ratio, "page": page, "dtype": dtype}
    of |= {"kv_heads": 2, "sequences": 1} | more
    return {axis: (value,) for axis, value in of.items()}


SERVED: tuple[Place, ...] = (
    _served(1, 300, 192, 2, 64, value_size=128),
    _served(130, 64, 192, 2, 16, HALF, value_size=128),
    _served(130, 0, 128, 4, 16),
    _served(140, 64, 64, 8, 32, HALF, new_kv=True),
    _served(129, 129, 256, 2, 128, table_dtype=torch.int64),
    _served(1, 1100, 256, 2, 256, HALF),
    _served(4, 1100, 128, 4, 32, HALF, store=(E4M3[0], "one")),
    _served(1, 1100, 128, 8, 16, store=(E4M3[0], "heads")),
    _served(1, 1100, 16, 4, 128, kv_heads=8),
    _served(130, 4200, 16, 2, 64, HALF, window=1000),
    _served(130, 1100, 16, 2, 16, store=(E4M3[0], "one")),
)


def _packed(
    query: int, context: int, head_size: int, ratio: int, dtype: torch.dtype = BF16, store: Any = None
) -> Place:
    pages: Place = {"page": (16, 24, 32, 64), "kv_heads": (1, 2), "sequences": (1, 2, 3)}
    plain: Place = {"key_style": (None,), "value_style": (None,)}  # they lie in one way
    of = {"query": query, "context": context, "head_size": head_size, "ratio": ratio, "dtype": dtype, "store": store}
    return pages | plain | {axis: (value,) for axis, value in of.items()}


PACKED: tuple[Place, ...] = (  # in each width of an element, and over one tile of keys and many
    _packed(1, 1100, 128, 4),
    _packed(1, 4200, 64, 8, HALF),
    _packed(17, 129, 96, 1, HALF),
    _packed(3, 700, 32, 5, torch.float32),
    _packed(1, 700, 128, 8, store=(FP8[0], "one")),
    _packed(3, 1100, 64, 1, HALF, (FP8[0], "heads")),
    _packed(2, 300, 112, 3, HALF, (FP8[2], "tokens")),
    _packed(17, 64, 80, 2, store=(torch.int8, "tokens")),
    _packed(1, 129, 256, 2, store=("query e4m3fn", "heads")),
)
