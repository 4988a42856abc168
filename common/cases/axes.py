"""Cases chosen by axes: `axes-<number>` is one value on each of AXES, boundary and odd ones.

The first `num_smoke()` hold every value of every axis, every pair of the mask's few values (MASKS), and every value of
what a kernel can do (ABILITIES) in every place where kernels go other ways (REGIMES); those up to `num_axes()` every
triple of the mask's, and every pair of two axes that is cheap enough (PAIR_RULES). A case is a function of
its number. What a kernel does not have is turned off in the case that it is given (`common.kit.fitting`), and what is
left still holds every pair of what it has.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from itertools import cycle
from typing import Any

import torch

from common.cases import layouts, random_cases
from common.cases.calls import CHANGES
from common.cases.case import LSE_STYLES, Case
from common.cases.covering import Rows, Rule, Values, both, covering
from common.cases.fills import FILLS
from common.cases.random_cases import FEATURE_AXES, features_of
from common.spec.paged_batch import DTYPES, FP8

DRAWN = {  # words of lengths that are drawn for each case, log-uniform: (least, most)
    "few": (1, 40), "some": (41, 300), "many": (301, 2000), "most": (2001, 9000),
}  # fmt: skip
# The first value of an axis is the plain one. Lengths and windows in pages are relative to the page size.
AXES: dict[str, tuple[Any, ...]] = {
    "query": (1, 0, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 129, 257, 513, 1500, "few", "some"),
    "context": (
        "some", 0, 1, 15, 16, 17, 33, 63, 64, 65, 127, 128, 129, 255, 257, 511, 513, 1023, 1025, 2049, 4095, 4097, 8193,
        16385, 40001, "few", "many", "most", "page - 1", "page", "page + 1", "to a whole page",
    ),
    "sequences": (1, 2, 3, 5, 16, 17, 65, 129, 257, 600),
    "mix": ("decodes", "prompts", "mixed", "empty", "long"),
    "place": ("first", "last", "middle"),
    "ratio": (2, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 24, 32, 48, 64, 96),
    "kv_heads": (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 32, 33, 96),
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
        "page - 1", "page + 1", "all keys", "all keys - 1", "some",
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
    "shared_pages": (0, 1, 2, 7),
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
    "spans": (*FEATURE_AXES["spans"], "before"),
    "tree": (None, 1, 2, 4, 9, 31, 64),
    "value_size": (None, 8, 16, 48, 64, 72, 128, 200, 256, 264),
    "scale_factor": (1.0, 0.02, 7.0),
}  # fmt: skip
# Of what concerns masks, few values whose triples are all asked: in one case many features are on.
MASKS: dict[str, tuple[Any, ...]] = {
    "query": (1, 3, 17, 65),
    "context": (0, 5, 64, 129, 700, "page", 4200),
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
    "store": (None, (FP8[0], "heads"), (FP8[2], "tokens"), ("query e4m3fn", "heads")),
}  # fmt: skip
# What else varies in those cases, at random.
_BESIDE: dict[str, tuple[Any, ...]] = {
    "sequences": (1, 2, 3, 5), "mix": ("decodes", "mixed", "prompts"), "place": AXES["place"], "ratio": (2, 1, 3, 5, 9),
    "kv_heads": (1, 2, 3), "head_size": (32, 40, 64, 72, 128), "page": (16, 24, 32, 64, 80), "dtype": DTYPES,
    "softmax_scale": AXES["softmax_scale"], "change": AXES["change"], "key_style": AXES["key_style"],
    "value_style": AXES["value_style"], "lse": AXES["lse"],
}  # fmt: skip
_PLAIN = {axis: values[:1] for axis, values in AXES.items()}
# (axis, axis): the product of two numbers that keeps a case cheap on a CPU
_MOST = {
    ("query", "context"): 700_000, ("query", "ratio"): 2_000, ("query", "kv_heads"): 1_500,
    ("query", "head_size"): 80_000, ("query", "sequences"): 20_000, ("query", "value_size"): 80_000,
    ("context", "ratio"): 45_000, ("context", "kv_heads"): 41_000, ("context", "head_size"): 530_000,
    ("context", "value_size"): 530_000, ("context", "sequences"): 3_000_000, ("ratio", "kv_heads"): 96,
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


def _past(most: int) -> Callable[[Any, Any], bool]:
    return lambda one, other: _most(one) * _most(other) > most


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
    *random_cases.RULES,
)
RULES = (*(Rule(one, other, _past(most)) for (one, other), most in _MOST.items()), *POSSIBLE)
# A span in the context needs one.
MASK_RULES = (*RULES, both("spans", {"before"}.__contains__, "context", lambda context: context in (0, 5)))
_MASKED = _PLAIN | _BESIDE | MASKS

# Where kernels go other ways: a loop that is longer, a grid that is wider, tiles of another form. Of each axis one of
# some values, all cheap together.
_SMALL = {"kv_heads": (1,), "ratio": (1, 2), "head_size": (16, 32), "page": (16, 24, 64)}
REGIMES: dict[str, dict[str, tuple[Any, ...]]] = {
    "long keys": {"context": (4200, 9001), "query": (1, 2, 5), "kv_heads": (2, 3), "ratio": (1, 2, 3)},
    "longer keys": {"context": (16_500, 33_001), "query": (1, 2), "kv_heads": (2, 3), "ratio": (1, 2),
                    "head_size": (16, 32, 40), "page": (16, 64, 264), "sequences": (1, 2)},
    "long windows": {"context": (4200, 9001), "query": (1, 3), "window": (1000, 1023, 2049, 4097)},
    "rows": {"query": (65, 129, 300), "context": (0, 64, 129), "ratio": (1, 2, 3)},
    "many rows": _SMALL | {"query": (1500,), "context": (0, 100), "sequences": (1, 2, 3)},
    "sequences": {"sequences": (17, 65), "place": ("last",), "context": (64, 129, 700), "kv_heads": (1, 2)},
    "many sequences": _SMALL | {"sequences": (257, 600), "place": ("last",), "context": (64, 129, 700),
                                "mix": ("decodes", "mixed", "empty")},
    "one sequence": {"sequences": (1,), "query": (1, 3, 17), "context": (0, 64, 129, 700)},
    "many heads": {"kv_heads": (33,), "ratio": (2,), "head_size": (16, 32), "sequences": (1, 2)},
    "wide groups": {"kv_heads": (1, 2), "ratio": (9, 10, 11, 17, 24, 48, 72), "sequences": (1, 2, 3)},
    "no groups": {"kv_heads": (1, 3, 8), "ratio": (1,)},
    "small heads": {"head_size": (8, 16, 24)},
    "large heads": {"head_size": (136, 192, 256, 320, 512), "kv_heads": (1, 2), "ratio": (1, 2, 3)},
    "large pages": {"page": (128, 256, 528, 1024), "kv_heads": (1, 2), "head_size": (16, 32, 40), "spare_pages": (1,)},
    "odd pages": {"page": (8, 24, 40, 48, 72)},
    "whole tiles": {"query": (1,), "context": (63, 127, 511, 703)},
    "wide tables": {"extra_columns": (65, 600), "table_dtype": (torch.int64,)},
    "strides": {"key_style": AXES["key_style"][1:], "value_style": AXES["value_style"][1:],
                "query_style": AXES["query_style"][1:]},
    "scales": {"softmax_scale": (0.05, 0.5, 1.0, 0.37)},
}  # fmt: skip
_ABILITIES = {axis: MASKS[axis] for axis in MASKS if axis not in ("query", "context")}
ABILITIES: dict[str, tuple[Any, ...]] = _ABILITIES | {
    "value_size": (None, 48, 64), "out_dtype": (None, FP8[0]), "new_kv": (False, True), "lse": AXES["lse"],
    "dtype": DTYPES,
}  # fmt: skip


def _hides(size: Any, context: Any) -> bool:
    """Whether a window or a chunk ends inside the context."""
    size = size[0] if isinstance(size, tuple) else size
    return not isinstance(size, int) or size < 50 or (isinstance(context, int) and context > size)


# Where few cases hold a value, it is to show.
_SHOWS: tuple[Rule, ...] = (
    Rule("window", "context", lambda size, context: not _hides(size, context)),
    Rule("chunk", "context", lambda size, context: not _hides(size, context)),
    both("softcap", lambda cap: cap is not None and cap > 20.0, "loud", lambda loud: loud < 4.0),
    both("softcap", lambda cap: cap is not None and cap > 20.0, "softmax_scale", lambda scale: scale in (0.003, 0.05)),
    both("place", lambda place: place != "first", "sequences", lambda count: count < 3),
    both("shared_pages", bool, "sequences", lambda count: count < 2),
    both("shared_pages", bool, "context", lambda context: context not in (129, 255, 257, 511, 513)),
    both("arrange", {layouts.stale_tail, layouts.table_rows}.__contains__, "sequences", lambda count: count < 2),
)


@lru_cache(maxsize=1)
def _smoke() -> Rows:
    """Of every value, and of every pair of the mask's few and of what changes between calls."""
    values = covering(AXES, (*RULES, *_SHOWS), seed=7, strength=1, plain=True)
    return values + covering(_MASKED, MASK_RULES, seed=11, of={*MASKS, "change"}) + _regimes()


def _without(axis: str) -> Rule:
    """A regime beside an ability of this axis that none of its own values of some axis may stand beside."""

    def apart(regime: str, ability: Any) -> bool:
        ways = [[{axis: ability, own: value} for value in values] for own, values in REGIMES[regime].items()]
        return any(all(any(rule.broken(some) for rule in POSSIBLE) for some in way) for way in ways)

    return Rule("regime", axis, apart)


def _regimes() -> Rows:
    """Every value of ABILITIES in every one of REGIMES; and each of these with nothing on, for beside a window or a
    chunk a row of many keys sees few of them: a diagonal that was open from 64 rows on lived without."""
    rules = (*POSSIBLE, *map(_without, ABILITIES))
    chosen = covering({"regime": tuple(REGIMES)} | ABILITIES, rules, seed=13, of={"regime"})
    off = {axis: values[0] for axis, values in ABILITIES.items()}
    plain = [off | {"regime": regime, "dtype": dtype} for regime, dtype in zip(REGIMES, cycle(DTYPES), strict=False)]
    return [_within(values, random.Random(f"regime {number}")) for number, values in enumerate(chosen + plain)]


def _within(abilities: Values, rng: random.Random) -> Values:
    """A row of these abilities in their regime; what else varies is drawn until it goes together."""
    beside = _BESIDE | {"query": (1, 3, 17), "context": (64, 129, 700)}
    regime = REGIMES[abilities["regime"]]
    while True:
        drawn = {axis: rng.choice(values) for axis, values in (beside | regime).items()}
        row = {axis: values[0] for axis, values in AXES.items()} | drawn | abilities
        row |= {axis: drawn[axis] for axis in regime}
        if not any(rule.broken(row) for rule in POSSIBLE):
            return {axis: row[axis] for axis in AXES}


PAIR_RULES = (*RULES, *(Rule(one, other, _past(most)) for (one, other), most in _MOST_OF_PAIRS.items()))


@lru_cache(maxsize=1)
def _rest() -> Rows:
    """Of every triple of the mask's few, and of every pair that is cheap enough."""
    return covering(_MASKED, MASK_RULES, seed=12, of=MASKS, strength=3) + covering(AXES, PAIR_RULES, seed=5, plain=True)


def num_smoke() -> int:
    """How many numbers, from 0, hold every value, and the pairs of masks."""
    return len(_smoke())


def num_axes() -> int:
    """How many numbers, from 0, hold the triples of masks and every pair too."""
    return num_smoke() + len(_rest())


def values_of(number: int) -> Values:
    """The value of every axis. Raises ValueError for a number that no case has."""
    if 0 <= number < num_smoke():
        return _smoke()[number]
    if not 0 <= number < num_axes():
        raise ValueError(f"number: found {number}, allowed 0 to {num_axes() - 1}")
    return _rest()[number - num_smoke()]


def _drawn(value: Any, page: int, rng: random.Random) -> Any:
    if value in DRAWN:
        return random_cases.log_uniform(rng, *DRAWN[value])
    return {"page - 1": page - 1, "page": page, "page + 1": page + 1}.get(value, value)


def _companions(count: int, mix: str, rng: random.Random) -> list[tuple[int, int]]:
    """(query_len, seq_len) of the other sequences: the more, the shorter."""
    most = 150 if count < 6 else 40 if count < 60 else 12

    def one() -> tuple[int, int]:
        kind = rng.choice(("decodes", "prompts", "chunk", "empty")) if mix == "mixed" else mix
        length = random_cases.log_uniform(rng, 1, most)
        if kind == "long":
            return rng.choice((1, 2, 5)), random_cases.log_uniform(rng, 600, 2500)
        if kind == "empty":
            return rng.choice(((0, 0), (0, length), (1, 0), (3, 0), (1, length)))
        if kind == "prompts":
            length = min(length, 40)
            return length, length
        query = 1 if kind == "decodes" else rng.randint(1, min(length, 18))
        return query, length

    return [one() for _ in range(count)]


def _lens(values: Values, rng: random.Random) -> list[tuple[int, int]]:
    page = values["page"]
    query, context = (_drawn(values[axis], page, rng) for axis in ("query", "context"))
    keys = -(-max(query, 1) // page) * page if context == "to a whole page" else query + context
    lens = _companions(values["sequences"] - 1, values["mix"], rng)
    lens.insert({"first": 0, "last": len(lens), "middle": len(lens) // 2}[values["place"]], (query, keys))
    return lens


_SAME = (
    "head_size", "dtype", "softmax_scale", "loud", "causal", "softcap", "sinks", "style", "query_style", "key_style",
    "value_style", "out_style", "arrange", "shared_pages", "pad_tokens", "extra_columns", "spare_pages", "table_dtype",
    "new_kv", "change", "lse", "scale_factor",
)  # fmt: skip


def axes_case(number: int) -> Case:
    """The case of a number. Raises ValueError for one that no case has."""
    values = values_of(number)
    rng = random.Random(f"axes {number}")
    features, lens = features_of(values, _lens(values, rng), rng)
    window, longest = _drawn(values["window"], values["page"], rng), max(seq_len for _, seq_len in lens)
    window = {"all keys": longest, "all keys - 1": longest - 1}.get(window, window)
    return Case.of(
        f"axes-{number}", (), tuple(lens), heads=(values["ratio"] * values["kv_heads"], values["kv_heads"]),
        block_size=values["page"], sliding_window=window and max(1, window), fill=FILLS.get(values["fill"]),
        **{name: values[name] for name in _SAME}, **features,
    )  # fmt: skip
