"""Random cases: `random_case(seed)` is a function of the seed alone, `random-<seed>` its name.

A case is one value on each of AXES and of FEATURE_AXES. The first `num_pairs()` seeds together hold every pair of
values of any two of AXES that may go together, without features; the `num_triples()` behind them every triple of page
size, context, query length and heads ratio; the `num_feature_pairs()` behind those every pair with a value of
FEATURE_AXES. From there on an axis takes one of its values in 70% of the draws, and where it is a number any number,
log-uniform, in 30%; each feature is on in one draw of eight.
"""

import itertools
import math
import random
from functools import lru_cache
from typing import Any

import torch

from common.cases import layouts
from common.cases.case import Case
from common.cases.covering import Rows, Rule, Values, both, covering
from common.cases.fills import FILLS, INVISIBLE
from common.spec import Layout
from common.spec.feature_rules import CONTRADICTIONS
from common.spec.paged_batch import DTYPES, E4M3, FP8

# The axes of features in random cases: their values, which of these exclude each other, and the case they make.


INT8 = torch.int8
Lens = list[tuple[int, int]]

_QUERIES = {"query e4m3fn": E4M3[0], "query e4m3fnuz": E4M3[1]}
# (the caches' dtype, and the query's where it is one of _QUERIES; the form of their scales)
_STORES = (
    *((dtype, form) for dtype in FP8 for form in (None, "one", "heads", "tokens")),
    (INT8, "tokens"),
    *((query, form) for query in _QUERIES for form in (None, "one", "heads")),
)
FP8_QUERIES = tuple(store for store in _STORES if store[0] in _QUERIES)
# The first value of an axis means that the feature is off. A chunk is (size, lookback).
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
# names of `feature_rules.CONTRADICTIONS` -> (axis, whether a value of it asks for that feature)
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
# `cross` alone makes a case of `causal` not causal
_CONTRADICTIONS = [
    both(*_ASKS[one], *_ASKS[other]) for one, other in CONTRADICTIONS if (one, other) != ("cross", "causal")
]


def _is_on(value: Any) -> bool:
    return value is not None


FEATURE_RULES: tuple[Rule, ...] = (
    *_CONTRADICTIONS,
    both("cross", bool, "new_kv", bool),
    both("value_size", bool, "style", {"stacked"}.__contains__),
    both("store", FP8_QUERIES.__contains__, "new_kv", bool),
    # x is 16 elements of one byte, and a head of 40 is no multiple of 16
    both("store", _is_on, "style", {"x_packed"}.__contains__),
    # a fill cannot scale a one-byte dtype
    both("store", _is_on, "fill", lambda fill: fill is not None and fill not in INVISIBLE),
)


def _spans(kind: str | None, lens: Lens, rng: random.Random) -> tuple[tuple[tuple[int, int], ...], ...] | None:
    """The spans of every sequence; most lie among its queries."""
    if kind is None:
        return None
    spans = []
    for query_len, seq_len in lens:
        context, last = seq_len - query_len, seq_len - 1
        if last < 1:
            spans.append(())
        elif kind == "whole":
            spans.append(((0, last),))
        elif kind == "before":  # the first query
            begin = rng.randint(0, max(0, context // 4))
            spans.append(((begin, rng.randint(begin + 1, context - 1)),) if context > 2 else ())
        elif kind == "past the end":
            spans.append(((rng.randint(max(0, context - 3), last), last + rng.randint(1, 20)),))
        elif kind == "short":
            begin = rng.randint(max(0, context - 2), last)
            spans.append(((begin, begin + rng.randint(0, 2)),))
        else:
            cuts = sorted(rng.sample(range(seq_len), min(50 if kind == "many" else 6, seq_len // 2 * 2)))
            spans.append(tuple(zip(cuts[::2], cuts[1::2], strict=True)))
    return tuple(spans)


def _tree(size: int | None, rng: random.Random) -> tuple[int, ...] | None:
    return None if size is None else (-1, *(rng.randrange(-1, token) for token in range(1, size)))


def features_of(values: Values, lens: Lens, rng: random.Random) -> tuple[dict[str, Any], Lens]:
    """The arguments for `common.cases.case.Case.of`: the features' values and the lengths of the case."""
    store, form = values["store"] or (None, None)
    chunk, lookback = values["chunk"] or (None, 0)
    flags = values["non_causal"]
    if values["cross"]:
        lens = [(q, rng.choice((0, 1, 5, n, n + 40)) if q else n) for q, n in lens]
    everyone = range(len(lens))
    chosen = {
        "none": (), "every second": everyone[::2], "every third": everyone[::3], "all": everyone,
        "the last": everyone[-1:], "but the first": everyone[1:],
        "any": sorted(rng.sample(everyone, len(lens) // 2)) if flags == "any" else (),
    }  # fmt: skip
    fields = {name: values[name] for name in ("alibi", "cross", "value_size", "out_dtype", "apart")}
    fields |= {
        "chunk": values["page"] if chunk == "page" else chunk,
        "chunk_lookback": lookback,
        "spans": _spans(values["spans"], lens, rng),
        "non_causal": None if flags is None else tuple(chosen[flags]),
        "tree": _tree(values["tree"], rng),
        "kv_dtype": None if store in _QUERIES else store,
        "fp8_query": _QUERIES.get(store),
        "scales": form,
    }
    if values["out_dtype"] is not None:
        fields["out_scale"] = values.get("out_scale") or rng.choice(_OUT_SCALES)
    return fields, lens


# They, or what they divide by, lie between two numbers of bf16: 2^-8 (1 + 2^-8), 2^-4 (1 + 2^-8), 2^-1 / (1 + 2^-8).
_OUT_SCALES = (0.0039215088, 0.062744141, 0.49805447)
# The first value of an axis is the plain one. Contexts and windows in pages are relative to the page size.
AXES: dict[str, tuple[Any, ...]] = {
    "query": (1, 0, 2, 3, 5, 9, 15, 16, 17, 33),
    "context": (
        0, 1, 63, 64, 65, 130, "page - 1", "page", "page + 1", "to a whole page", "to 128 keys", "no keys",
        "fewer keys",
    ),
    "companions": ("none", "decodes", "prompts", "mixed", "empty"),
    "ratio": (2, 1, 3, 4, 5, 6, 7, 8, 12, 16, 17),
    "kv_heads": (1, 2, 3),
    "head_size": (32, 40, 64, 80, 96, 112, 120, 128, 192, 256),
    "page": (16, 8, 24, 32, 48, 64, 128, 544),
    "tile": (None, 16, 32, 64, 128),
    "dtype": DTYPES,
    "causal": (True, False),
    "window": (None, 1, 33, "page - 1", "page", "page + 1", "all keys"),
    "softcap": (None, 15.0, 50.0),
    "sinks": (None, "near", "off", "some", "heavy"),
    "style": ("nhd", "hnd", "stacked", "interleaved", "x_packed"),
    "arrange": (
        None, layouts.reversed_pages, layouts.last_pages, layouts.table_columns, layouts.table_rows, layouts.stale_tail,
        layouts.fused_query, layouts.padded_query, layouts.unaligned, layouts.small_hints, layouts.large_hints,
    ),
    "shared_pages": (0, 2),
    "pad_tokens": (0, 5),
    "extra_columns": (3, 0, 1),
    "spare_pages": (3, 0),
    "table_dtype": (torch.int32, torch.int64),
    "pad_out": (False, True),
    "new_kv": (False, True),
    "fill": (None, *FILLS),
}  # fmt: skip
ALL_AXES = AXES | FEATURE_AXES
LARGE_HEAD = 256  # the largest drawn head; named cases have larger ones
RANGES = {  # axis: (least, most, multiple of), drawn log-uniform
    "query": (1, 70, 1), "context": (1, 400, 1), "ratio": (1, 24, 1), "kv_heads": (1, 5, 1), "page": (8, 1024, 8),
    "head_size": (8, LARGE_HEAD, 8), "window": (1, 300, 1), "pad_tokens": (1, 40, 1), "extra_columns": (1, 40, 1),
    "spare_pages": (1, 60, 1), "shared_pages": (1, 4, 1),
}  # fmt: skip
_TRIPLED = ("page", "context", "query", "ratio")
TILE_ELEMENTS = 128 * 64  # 32 KiB of K in fp32: two stages of K and V fit into an SM's shared memory
_MOVE_PAGES = (layouts.reversed_pages, layouts.last_pages)


def _past_a_tile(tile: int | None, size: int | None) -> bool:
    return bool(tile) and bool(size) and tile * size > TILE_ELEMENTS


RULES: tuple[Rule, ...] = (
    # only a page of one sequence can be moved
    both("arrange", _MOVE_PAGES.__contains__, "shared_pages", bool),
    # x is 16 bytes, which an odd offset would split
    both("style", {"x_packed"}.__contains__, "arrange", {layouts.unaligned}.__contains__),
    # P V would be subnormal in fp32, and GPUs flush it to 0
    both("sinks", {"heavy"}.__contains__, "fill", {"values-tiny"}.__contains__),
    Rule("tile", "head_size", _past_a_tile),
    Rule("tile", "value_size", _past_a_tile),
    *FEATURE_RULES,
)


def may_go_together(some: Values) -> bool:
    """Whether these values of some axes allow a case for some values of the other axes."""
    return not any(rule.broken(some) for rule in RULES)


@lru_cache(maxsize=1)
def _pairs() -> Rows:
    return covering(AXES, RULES, seed=1)


@lru_cache(maxsize=1)
def _feature_pairs() -> Rows:
    return covering(ALL_AXES, RULES, seed=3, of=FEATURE_AXES)


@lru_cache(maxsize=1)
def _triples() -> list[Values]:
    """Every triple of the four axes of _TRIPLED, in as many rows as the three largest axes have triples.

    The page follows from the sum of the other three places: with two of them fixed, the third runs through all pages.
    """
    pages, *others = (AXES[axis] for axis in _TRIPLED)
    rows = []
    for places in itertools.product(*(range(len(values)) for values in others)):
        chosen = [values[place] for values, place in zip(others, places, strict=True)]
        rows.append(dict(zip(_TRIPLED, (pages[sum(places) % len(pages)], *chosen), strict=True)))
    random.Random(2).shuffle(rows)
    return rows


def num_pairs() -> int:
    """The number of seeds, from 0, that cover every pair."""
    return len(_pairs())


def num_triples() -> int:
    """The number of further seeds that cover every triple of page, context, query and ratio."""
    return len(_triples())


def num_feature_pairs() -> int:
    """The number of further seeds that cover every pair with a value of a feature."""
    return len(_feature_pairs())


def log_uniform(rng: random.Random, least: int, most: int, multiple: int = 1) -> int:
    drawn = math.exp(rng.uniform(math.log(least), math.log(most)))
    return min(most, max(least, round(drawn / multiple) * multiple))


def _draw(rng: random.Random, axis: str, given: Values) -> Any:
    """A value of one axis, given those of others. Half of the draws take the plain value, so that failures stay
    readable."""
    if axis in FEATURE_AXES:
        return rng.choice(FEATURE_AXES[axis]) if rng.random() < 1 / 8 else FEATURE_AXES[axis][0]
    if axis in RANGES and rng.random() < 0.3 and not any(name in given for name in _TRIPLED):
        return log_uniform(rng, *RANGES[axis])
    return AXES[axis][0] if rng.random() < 0.5 else rng.choice(AXES[axis])


def values_of(seed: int) -> Values:
    """The value of every axis."""
    if seed < 0:
        raise ValueError(f"seed: found {seed}, allowed 0 and above")
    plain = {axis: values[0] for axis, values in FEATURE_AXES.items()}
    if seed < num_pairs():
        return _pairs()[seed] | plain
    at = seed - num_pairs() - num_triples()
    if 0 <= at < num_feature_pairs():
        return dict(_feature_pairs()[at])
    rng = random.Random(seed)
    fixed = dict(_triples()[at + num_triples()]) if at < 0 else {}
    values, axes = fixed | (plain if fixed else {}), AXES if fixed else ALL_AXES
    for axis in rng.sample(list(axes), len(axes)):
        if axis not in values:
            options = (_draw(rng, axis, fixed) for _ in itertools.count())
            values[axis] = next(v for v in options if may_go_together(values | {axis: v}))
    return {axis: values[axis] for axis in ALL_AXES}


def fewer_keys(query: int) -> int:
    """The seq_len of a sequence with fewer keys than queries."""
    return query // 3


def _in_pages(value: Any, page: int) -> Any:
    return {"page - 1": page - 1, "page": page, "page + 1": page + 1}.get(value, value)


def _sequence(query: int, context: Any, page: int) -> tuple[int, int]:
    """(query_len, seq_len)."""
    if context in ("no keys", "fewer keys"):
        return query, fewer_keys(query) if context == "fewer keys" else 0
    if context in ("to a whole page", "to 128 keys"):
        edge = page if context == "to a whole page" else 128
        return query, -(-max(query, 1) // edge) * edge
    return query, query + _in_pages(context, page)


def _companions(rng: random.Random, kind: str) -> list[tuple[int, int]]:
    def decode() -> tuple[int, int]:
        return 1, log_uniform(rng, 1, 150)

    def prompt() -> tuple[int, int]:
        length = rng.choice((2, 15, 16, 17, 31))
        return length, length

    if kind == "decodes":
        return [decode() for _ in range(rng.randint(1, 4))]
    if kind == "prompts":
        return [prompt() for _ in range(rng.randint(1, 2))]
    if kind == "mixed":
        chunk = rng.randint(2, 18)
        return rng.sample([decode(), prompt(), (chunk, chunk + log_uniform(rng, 1, 100))], 3)
    return rng.sample([(0, 0), (0, 7), (1, 0), (3, 0)], rng.randint(1, 2)) if kind == "empty" else []


def random_case(seed: int) -> Case:
    """The case of a seed. Raises ValueError unless the seed is a non-negative integer."""
    values = values_of(seed)
    rng = random.Random(~seed)
    page, ratio, kv_heads = values["page"], values["ratio"], values["kv_heads"]
    lens = _companions(rng, values["companions"])
    lens.insert(rng.randint(0, len(lens)), _sequence(values["query"], values["context"], page))
    features, lens = features_of(values, lens, rng)
    window = _in_pages(values["window"], page)
    if window == "all keys":
        window = max(1, *(seq_len for _, seq_len in lens))
    packed = values["style"] == "x_packed"
    same = ("head_size", "dtype", "causal", "softcap", "sinks", "arrange", "shared_pages", "pad_tokens")
    same += ("extra_columns", "spare_pages", "table_dtype", "pad_out", "new_kv")
    return Case.of(
        f"random-{seed}", (), tuple(lens), heads=(ratio * kv_heads, kv_heads),
        block_size=page, sliding_window=window, tile_size=values["tile"], fill=FILLS.get(values["fill"]),
        style="nhd" if packed else values["style"], layout=Layout.X_PACKED if packed else Layout.PAGED,
        **{name: values[name] for name in same}, **features,
    )  # fmt: skip
