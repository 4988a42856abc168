"""The axes of cases: boundary and odd values of each, and which may not stand together.

`common.cases.by_axes` chooses the cases that hold them.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from common.cases import boundaries, layouts, random_cases
from common.cases.calls import CHANGES
from common.cases.case import LSE_STYLES
from common.cases.covering import Rule, Values, both
from common.cases.fills import FILLS
from common.cases.random_cases import FEATURE_AXES
from common.spec.paged_batch import DTYPES, FP8

DRAWN = {  # words of lengths that are drawn for each case, log-uniform: (least, most)
    "few": (1, 40), "some": (41, 300), "tiles": (132, 190), "many": (301, 2000), "most": (2001, 9000),
}  # fmt: skip
# The first value of an axis is the plain one. Lengths and windows in pages are relative to the page size.
AXES: dict[str, tuple[Any, ...]] = {
    "query": (1, 0, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 129, 257, 513, 1500, "few", "some"),
    "context": (
        "some", 0, 1, 15, 16, 17, 33, 63, 64, 65, 127, 128, 129, 255, 257, 511, 513, 1023, 1025, 2049, 4095, 4097, 8193,
        16385, 40001, "few", "many", "most", "page - 1", "page", "page + 1", "to a whole page",
        "fewer keys",
    ),
    "sequences": (1, 2, 3, 5, 16, 17, 65, 129, 257, 600),
    "mix": ("decodes", "prompts", "mixed", "empty", "long", "padded", "last empty", "sparse"),
    "place": ("first", "last", "middle"),
    "ratio": (2, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 24, 32, 48, 64, 96),
    "kv_heads": (2, 1, 3, 4, 5, 7, 8, 9, 12, 16, 32, 33, 96),
    "head_size": (
        32, 8, 16, 24, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 136, 144, 160, 192, 200, 224, 248, 256, 264,
        320, 512,
    ),
    "page": (
        16, 8, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 120, 128, 136, 144, 160, 192, 200, 256, 264, 320, 512, 528, 544,
        784, 1024,
    ),
    "dtype": DTYPES[::-1],  # float32 first, where the checker sees most
    "softmax_scale": (None, 1.0, 0.05, 0.5, 0.003, 2.0**-4, 0.37),
    "loud": (1.0, 4.0, 25.0),
    "causal": (True, False),
    "window": (
        None, 1, 2, 3, 7, 16, 17, 33, 63, 64, 65, 100, 127, 129, 257, 1000, 1023, 2049, 4096, 4097, 5001, 10007,
        128, "page - 1", "page", "page + 1", "two pages", "all keys", "all keys - 1", "all keys + 1", "some",
    ),
    "softcap": (None, 0.3, 0.77, 1.0, 2.5, 7.3, 15.0, 30.0, 50.0, 63.5, 88.8, 200.5, 5000.0),
    "sinks": (None, "near", "off", "some", "heavy", "drawn"),
    "style": ("nhd", "hnd", "stacked", "interleaved"),
    "query_style": (None, *layouts.STRIDES),
    "key_style": (None, *layouts.STRIDES),
    "value_style": (None, *layouts.STRIDES),
    "out_style": (None, *layouts.STRIDES),
    "arrange": (
        None, layouts.reversed_pages, layouts.last_pages, layouts.table_columns, layouts.table_rows, layouts.stale_tail,
        layouts.small_hints, layouts.large_hints,
    ),
    "shared_pages": (0, 1, 2, 7, 33),
    "pad_tokens": (0, 1, 5, 64),
    "extra_columns": (3, 0, 1, 65, 600),
    "spare_pages": (3, 0, 1, 40, 1000),
    "table_dtype": (torch.int32, torch.int64),
    "new_kv": (False, True),
    "fill": (None, *FILLS),
    "change": (*CHANGES,),
    "lse": (*LSE_STYLES, None),
} | FEATURE_AXES | {
    "alibi": (None, "linear", "sqrt", "zero", "drawn", "sqrt-drawn"),
    "chunk": (None, (1, 0), (2, 1), (10, 3), ("page", 0), ("page", 1), (33, 2), (64, 0), (100, 1), (500, 0), (1000, 1),
              (4096, 0)),
    "spans": (*FEATURE_AXES["spans"], "before", "many"),
    "non_causal": (*FEATURE_AXES["non_causal"], "every third", "the last", "but the first", "any"),
    "flag": (1, 2, -1, 256, -(2**31)),
    "tree": (None, 1, 2, 4, 9, 31, 64, 129),
    "value_size": (None, 8, 16, 48, 64, 72, 128, 200, 256, 264),
    "scale_factor": (1.0, 0.02, 7.0, 100.0),
    "key_scale_factor": (1.0, 40.0),
    "out_scale": (None, 1.0, 2.0078125, 32.125),  # None: small, drawn for each case; between two numbers of bf16
}  # fmt: skip
# Of what concerns masks, few values whose triples are all asked: in one case many features are on.
MASKS: dict[str, tuple[Any, ...]] = {
    "query": (1, 3, 17, 65),
    "context": (0, 5, 64, 129, 700, "page", 4200, "fewer keys"),
    "causal": (True, False),
    "window": (None, 1, 16, 33, 150),
    "softcap": (None, 0.77, 7.3),
    "sinks": (None, "drawn", "some"),
    "alibi": (None, "drawn", "sqrt-drawn"),
    "chunk": (None, (10, 3), ("page", 1), (33, 2)),
    "spans": (None, "several", "past the end", "whole", "before"),
    "non_causal": (None, "every second"),
    "tree": (None, 4, 9),
    "cross": (False, True),
    "store": (None, (FP8[0], "heads"), (FP8[2], "tokens"), (torch.int8, "tokens"), ("query e4m3fn", "heads")),
}  # fmt: skip
# What else varies in those cases, at random.
BESIDE: dict[str, tuple[Any, ...]] = {
    "sequences": (1, 2, 3, 5), "mix": ("decodes", "mixed", "prompts"), "place": AXES["place"], "ratio": (2, 1, 3, 5, 9),
    "kv_heads": (1, 2, 3), "head_size": (32, 40, 64, 72, 128), "page": (16, 24, 32, 64, 80), "dtype": DTYPES,
    "softmax_scale": AXES["softmax_scale"], "change": AXES["change"], "key_style": AXES["key_style"],
    "value_style": AXES["value_style"], "lse": AXES["lse"],
}  # fmt: skip
PLAIN = {axis: values[:1] for axis, values in AXES.items()}


def beside(more: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """AXES with more values of some."""
    return AXES | {axis: tuple(dict.fromkeys((*AXES[axis], *values))) for axis, values in more.items()}


# Every value that is asked at `smoke`; pairs are asked of AXES alone. Where a context may be any, it is one that tells.
EVERY = beside(boundaries.FIXED)
EVERY |= {"context": ("tiles", *EVERY["context"]), "query": tuple(dict.fromkeys((2, *EVERY["query"])))}
# (axis, axis): the product of two numbers that keeps a case cheap on a CPU
_MOST = {
    ("query", "context"): 700_000, ("query", "ratio"): 2_000, ("query", "kv_heads"): 1_500,
    ("query", "head_size"): 80_000, ("query", "sequences"): 20_000, ("query", "value_size"): 80_000,
    ("context", "ratio"): 45_000, ("context", "kv_heads"): 41_000, ("context", "head_size"): 530_000,
    ("context", "value_size"): 530_000, ("context", "sequences"): 3_000_000,
    ("ratio", "kv_heads"): 2 * boundaries.RATIO,
    ("ratio", "head_size"): 6_200, ("kv_heads", "head_size"): 3_100, ("kv_heads", "value_size"): 3_100,
    ("sequences", "ratio"): 6_000, ("sequences", "kv_heads"): 1_200, ("sequences", "head_size"): 20_000,
    ("sequences", "value_size"): 20_000, ("sequences", "page"): 15_000, ("sequences", "extra_columns"): 160_000,
    ("tree", "sequences"): 2_000, ("page", "head_size"): 140_000, ("page", "value_size"): 140_000,
    ("page", "kv_heads"): 10_000, ("spare_pages", "page"): 24_000, ("spare_pages", "head_size"): 40_000,
    ("spare_pages", "kv_heads"): 3_000,
}  # fmt: skip


# Of the many cases of pairs, whose pools are copied a dozen times a call.
_MOST_OF_PAIRS = {
    ("page", "kv_heads"): 3_300, ("page", "head_size"): 70_000, ("page", "value_size"): 70_000,
    ("kv_heads", "head_size"): 1_600, ("kv_heads", "value_size"): 1_600, ("sequences", "page"): 9_000,
    ("sequences", "head_size"): 9_000, ("sequences", "value_size"): 9_000, ("sequences", "kv_heads"): 600,
    ("spare_pages", "page"): 9_000, ("spare_pages", "head_size"): 9_000, ("spare_pages", "value_size"): 9_000,
    ("spare_pages", "kv_heads"): 1_000, ("context", "kv_heads"): 41_000, ("context", "head_size"): 400_000,
    ("context", "value_size"): 400_000,
}  # fmt: skip


def _most(value: Any) -> int:
    return DRAWN[value][1] if value in DRAWN else value if isinstance(value, int) else 0


def _least(value: Any) -> int:
    return DRAWN[value][0] if value in DRAWN else value if isinstance(value, int) else 0


def _past(most: int) -> Callable[[Any, Any], bool]:
    return lambda one, other: _most(one) * _most(other) > most


def _on(value: Any) -> bool:
    return value is not None


POSSIBLE: tuple[Rule, ...] = (
    # a tensor lies in one way
    both("key_style", bool, "style", lambda style: style != "nhd"),
    both("value_style", bool, "style", lambda style: style != "nhd"),
    both("loud", lambda loud: loud != 1.0, "fill", bool),
    # logits past a thousand: one key has all the mass
    both("loud", lambda loud: loud > 4.0, "softmax_scale", lambda scale: scale is not None and scale > 0.4),
    # under a sink logits of -30 leave weights of e^-30, and P V would be a subnormal in fp32, which GPUs flush to 0
    both("fill", {"values-tiny"}.__contains__, "softmax_scale", lambda scale: scale is not None and scale > 0.3),
    # one byte cannot be scaled
    both("loud", lambda loud: loud != 1.0, "store", random_cases.FP8_QUERIES.__contains__),
    both("mix", {"long"}.__contains__, "sequences", lambda count: count > 5),
    # K of 16 bits would pass its range
    both("fill", {"logits-far-below"}.__contains__, "softmax_scale", lambda scale: scale is not None and scale < 0.045),
    both("fill", {"logits-far-below"}.__contains__, "key_scale_factor", lambda gain: gain > 1.0),
    # logits of hundreds otherwise
    both(
        "key_scale_factor", lambda factor: factor > 1.0, "softmax_scale", lambda scale: scale is None or scale > 0.005
    ),
    both("out_scale", _on, "out_dtype", lambda dtype: dtype is None),
    # what is smaller than a step of fp8 is 0
    Rule("out_scale", "scale_factor", lambda scale, factor: scale is not None and scale > 4.0 * factor),
    *random_cases.RULES,
)
RULES = (*(Rule(one, other, _past(most)) for (one, other), most in _MOST.items()), *POSSIBLE)
# A span in the context needs one.
MASK_RULES = (*RULES, both("spans", {"before"}.__contains__, "context", {0, 5, "fewer keys"}.__contains__))
MASKED = PLAIN | BESIDE | MASKS


def _hides(size: Any, context: Any) -> bool:
    """Whether a window or a chunk ends inside the context."""
    size = size[0] if isinstance(size, tuple) else size
    return not isinstance(size, int) or size < 50 or (isinstance(context, int) and context > size)


def _unscaled(store: Any) -> bool:
    return store is None or store[1] is None


# A draft of as many tokens as its tree.
WHOLE_DRAFT = Rule("tree", "query", lambda tree, query: (tree or 0) > 9 and not tree <= _most(query) < 400)
# Where few cases hold a value, it is to show.
SHOWS: tuple[Rule, ...] = (
    Rule("window", "context", lambda size, context: not _hides(size, context)),
    Rule("chunk", "context", lambda size, context: not _hides(size, context)),
    both("softcap", lambda cap: cap is not None and cap > 20.0, "loud", lambda loud: loud < 4.0),
    both("softcap", lambda cap: cap is not None and cap > 20.0, "softmax_scale",
         lambda scale: scale is not None and scale < 0.3),
    both("place", lambda place: place != "first", "sequences", lambda count: count < 3),
    both("mix", {"last empty"}.__contains__, "place", {"last"}.__contains__),
    both("mix", {"last empty"}.__contains__, "sequences", lambda count: count < 3),
    # in a graph of many sequences few have tokens
    both("sequences", lambda count: count > 64, "mix", lambda mix: mix not in LIVE),
    both("shared_pages", bool, "sequences", lambda count: count < 2),
    both("shared_pages", bool, "context", lambda context: not 129 <= _most(context) <= 3000),
    Rule("shared_pages", "context", lambda pages, context: pages * 16 > _most(context)),
    both("shared_pages", lambda pages: pages > 7, "page", lambda page: page > 16),
    both("shared_pages", bool, "mix", lambda mix: mix != "decodes"),  # whose sequences all have the prefix
    both("arrange", {layouts.stale_tail, layouts.table_rows}.__contains__, "sequences", lambda count: count < 2),
    both("arrange", {layouts.small_hints}.__contains__, "query", lambda query: _most(query) < 3),
    # the sequence of many tokens is causal by the flag; and where no flag is strange it is one without
    both("flag", lambda flag: flag != 1, "non_causal", lambda flags: flags != "none"),
    both("non_causal", {"every second", "every third"}.__contains__, "place", lambda place: place != "first"),
    both("non_causal", {"the last"}.__contains__, "place", lambda place: place != "last"),
    both("non_causal", {"but the first"}.__contains__, "place", {"first"}.__contains__),
    both("non_causal", _on, "sequences", lambda count: count < 3),
    both("non_causal", _on, "query", lambda query: _most(query) < 2),
    both("scale_factor", lambda factor: factor != 1.0, "store", _unscaled),
    both("key_scale_factor", lambda factor: factor != 1.0, "store", _unscaled),
    # a context of two pages
    Rule("page", "context", lambda page, context: context != "page + 1" and 16 < page >= _least(context)),
    WHOLE_DRAFT,
)  # fmt: skip


TILES = 128  # keys beyond which most kernels need a second tile, or one tile in each of two segments


def _short(size: Any) -> bool:
    """Whether a window or a chunk leaves a row fewer keys than TILES."""
    return size is not None and _most(size[0] if isinstance(size, tuple) else size) <= TILES


MUTE: dict[str, Callable[[Any], bool]] = {  # values beside which some mistakes at others do not show
    "query": lambda query: _least(query) < 2,
    "context": lambda context: context != "page + 1" and _least(context) < TILES,
    "ratio": lambda ratio: ratio == 1, "kv_heads": lambda heads: heads == 1, "window": _short, "chunk": _short,
    "fill": _on, "sinks": {"heavy"}.__contains__, "softmax_scale": {0.003}.__contains__, "loud": {25.0}.__contains__,
    "cross": bool, "causal": lambda causal: not causal,
}  # fmt: skip


def tells(values: Values) -> bool:
    """Whether a common mistake at the sequence that is looked at gives another result: a wrong page or KV head, a mask
    that is open by a key, a rescale that is left out."""
    context = values["page"] + 1 if values["context"] == "page + 1" else _least(values["context"])
    keys = _least(values["query"]) + context
    return keys > max(values["page"], TILES) and not any(mute(values[axis]) for axis, mute in MUTE.items())


LIVE = {"padded": 20, "sparse": 3}  # about how many sequences of such a batch have tokens


def seconds(values: Values) -> float:
    """About what the four calls of a case cost the emulation and the reference, on one core that others use too."""
    count, long = values["sequences"], values["mix"] == "long"
    live = min(count, LIVE.get(values["mix"], count))
    query, context, heads = _most(values["query"]), _most(values["context"]), values["ratio"] * values["kv_heads"]
    lanes = values["head_size"] + (values["value_size"] or values["head_size"])
    keys = query + context + (live - 1) * (1500 if long else 50 if count < 6 else 12)
    pages = values["spare_pages"] + keys / values["page"] + live
    pool = pages * values["page"] * values["kv_heads"] * lanes
    products = query * (query + context) * heads * lanes
    return 2e-9 * products + 1.2e-7 * keys * heads * lanes + 5e-8 * pool + 0.008 * live


def cheap(values: Values) -> bool:
    """Whether a case may be one of many."""
    return seconds(values) < 0.8


# Of a case that is short in an interpreter too, where a program is a query token and head: the largest numbers, and
# what costs programs, of which the values in AXES are asked, one at a time.
_QUICK = {
    "query": 33, "ratio": 33, "kv_heads": 33, "context": 1100, "tree": 24, "spare_pages": 300, "shared_pages": 7,
    "window": 1024, "chunk": 1024, "sequences": 600,
}  # fmt: skip
_COSTS: dict[str, Callable[[Any], bool]] = {
    "query": lambda query: _most(query) > 2, "ratio": lambda ratio: ratio > 3, "kv_heads": lambda heads: heads > 3,
    "context": lambda context: _most(context) > 300, "mix": lambda mix: mix not in ("decodes", "sparse"),
}  # fmt: skip


def quick(axes: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The values that may be of a short case."""

    def small(axis: str, value: Any) -> bool:
        most = _most(value[0] if isinstance(value, tuple) else value)
        return most <= _QUICK.get(axis, math.inf) and (axis not in _COSTS or value in (*AXES[axis], "tiles"))

    return {axis: tuple(value for value in values if small(axis, value)) for axis, values in axes.items()}


QUICK_RULES = (
    *(both(one, _COSTS[one], other, _COSTS[other]) for one, other in itertools.combinations(_COSTS, 2)),
    both("sequences", lambda count: count > 3, "mix", lambda mix: mix != "sparse"),
    *(rule for heads in ("ratio", "kv_heads") for rule in (
        both("query", lambda query: _most(query) > 131, heads, lambda count: count > 1),
        both(heads, lambda count: count > 8, "sequences", lambda count: count > 1),
        both(heads, lambda count: count > 8, "page", lambda page: page > 128),
    )),
    both("spare_pages", lambda pages: pages > 40, "page", lambda page: page > 64),
)  # fmt: skip
PAIR_RULES = (*RULES, *(Rule(one, other, _past(most)) for (one, other), most in _MOST_OF_PAIRS.items()))
