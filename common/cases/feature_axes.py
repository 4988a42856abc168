"""The axes of random cases that ask for features: values, which may not stand together, and the case they make."""

from __future__ import annotations

import random
from typing import Any

import torch

from common.cases.fills import INVISIBLE
from common.spec.feature_rules import CONTRADICTIONS
from common.spec.paged_batch import E4M3, FP8

INT8 = torch.int8
Values = dict[str, Any]
Lens = list[tuple[int, int]]

_QUERIES = {"query e4m3fn": E4M3[0], "query e4m3fnuz": E4M3[1]}
# (what the caches hold, the query with them where it is one of _QUERIES; the form of their scales)
_STORES = (
    *((dtype, form) for dtype in FP8 for form in (None, "one", "heads", "tokens")),
    (INT8, "tokens"),
    *((query, form) for query in _QUERIES for form in (None, "one", "heads")),
)
# The first value of an axis is the plain one: the feature is off. A chunk is (size, lookback).
FEATURE_AXES: dict[str, tuple[Any, ...]] = {
    "alibi": (None, "linear", "sqrt", "zero"),
    "chunk": (None, (1, 0), (1, 1), (10, 3), ("page", 0), ("page", 1), (64, 0), (400, 0)),
    "spans": (None, "short", "whole", "several", "past the end"),
    "non_causal": (None, "none", "every second", "all"),
    "cross": (False, True),
    "tree": (None, 1, 4, 9),
    "value_size": (None, 16, 64, 200),
    "store": (None, *_STORES),
    "out_dtype": (None, *E4M3),
    "apart": (False, True),
}  # fmt: skip
# names of `feature_rules.CONTRADICTIONS` -> (axis, whether a value of it asks for that)
_ASKS = {
    "sliding_window": ("window", lambda value: value is not None),
    "alibi_slopes": ("alibi", lambda value: value is not None),
    "causal_per_sequence": ("non_causal", lambda value: value is not None),
    "tree_bias": ("tree", lambda value: value is not None),
    "chunk": ("chunk", lambda value: value is not None),
    "spans": ("spans", lambda value: value is not None),
    "cross": ("cross", bool),
    "not causal": ("causal", lambda value: not value),
}  # fmt: skip
# `cross` makes a case of `causal` not causal by itself
_APART = [tuple(_ASKS[side] for side in pair) for pair in CONTRADICTIONS if pair != ("cross", "causal")]


def apart(some: Values) -> bool:
    """Whether two of these values of features may not go together."""

    def both(**wanted: Any) -> bool:
        return all(axis in some and test(some[axis]) for axis, test in wanted.items())

    return any(both(**{a: holds_a, b: holds_b}) for (a, holds_a), (b, holds_b) in _APART) or any(
        (
            both(cross=bool, new_kv=bool),
            both(value_size=bool, style={"stacked"}.__contains__),
            both(store=lambda store: store is not None and store[0] in _QUERIES, new_kv=bool),
            # x is 16 elements of one byte, which a head of 40 is no multiple of
            both(store=lambda store: store is not None, style={"x_packed"}.__contains__),
            # one byte cannot be scaled by a fill
            both(store=lambda store: store is not None, fill=lambda fill: fill is not None and fill not in INVISIBLE),
        )
    )


def _spans(kind: str | None, lens: Lens, rng: random.Random) -> tuple[tuple[tuple[int, int], ...], ...] | None:
    """Of every sequence; most of them among its queries."""
    if kind is None:
        return None
    spans = []
    for query_len, seq_len in lens:
        context, last = seq_len - query_len, seq_len - 1
        if last < 1:
            spans.append(())
        elif kind == "whole":
            spans.append(((0, last),))
        elif kind == "past the end":
            spans.append(((rng.randint(max(0, context - 3), last), last + rng.randint(1, 20)),))
        elif kind == "short":
            begin = rng.randint(max(0, context - 2), last)
            spans.append(((begin, begin + rng.randint(0, 2)),))
        else:
            cuts = sorted(rng.sample(range(seq_len), min(6, seq_len // 2 * 2)))
            spans.append(tuple(zip(cuts[::2], cuts[1::2], strict=True)))
    return tuple(spans)


def _tree(size: int | None, rng: random.Random) -> tuple[int, ...] | None:
    return None if size is None else (-1, *(rng.randrange(-1, token) for token in range(1, size)))


def features_of(values: Values, lens: Lens, rng: random.Random) -> tuple[dict[str, Any], Lens]:
    """The fields of `common.cases.case.Case` that the axes of features set, and its lengths."""
    store, form = values["store"] or (None, None)
    chunk, lookback = values["chunk"] or (None, 0)
    flags = values["non_causal"]
    if values["cross"]:
        lens = [(q, rng.choice((0, 1, 5, n, n + 40)) if q else n) for q, n in lens]
    chosen = {"none": (), "every second": tuple(range(0, len(lens), 2)), "all": tuple(range(len(lens)))}
    fields = {name: values[name] for name in ("alibi", "cross", "value_size", "out_dtype", "apart")}
    fields |= {
        "chunk": values["page"] if chunk == "page" else chunk,
        "chunk_lookback": lookback,
        "spans": _spans(values["spans"], lens, rng),
        "non_causal": None if flags is None else chosen[flags],
        "tree": _tree(values["tree"], rng),
        "kv_dtype": None if store in _QUERIES else store,
        "fp8_query": _QUERIES.get(store),
        "scales": form,
        "out_scale": 1.0 if values["out_dtype"] is None else rng.choice((0.004, 0.0625, 0.5)),
    }
    return fields, lens
