"""Cases chosen by axes: `axes-<number>` is one value on each of `common.cases.axes.AXES`.

The numbers up to `num_quick()` hold every value that runs quickly in an interpreter, and all small numbers. Those up to
`num_smoke()` hold every value of every axis and its boundaries; every pair of MASKS; every ability of a kernel
(ABILITIES) in every regime in which kernels change their loops or grids (REGIMES); each mask alone (ALONE); PLACES; and
what models have together (`common.cases.together`).
Those up to `num_axes()` hold every triple of MASKS, and every pair of two axes that is cheap enough (PAIR_RULES).
`drawn-<seed>-<number>` adds values that the seed draws. A case that only holds values is brief, and its keys grow
(`fills.rising`), so that a missing rescale shows. A case is a function of its name. `common.kit.fitting` turns off what
a kernel lacks; the rest still holds every pair of what it has.
"""

import itertools
import random
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache, partial
from itertools import cycle, product
from typing import Any

import torch

from common.cases import boundaries, layouts, published, random_cases
from common.cases.axes import (
    AXES,
    BESIDE,
    DRAWN,
    EVERY,
    MASK_RULES,
    MASKED,
    MASKS,
    MUTE,
    PAIR_RULES,
    POSSIBLE,
    QUICK_RULES,
    RULES,
    SHOWS,
    WHOLE_DRAFT,
    cheap,
    quick,
    tells,
)
from common.cases.case import Case
from common.cases.covering import Rows, Rule, Values, both, covering
from common.cases.fills import FILLS, rising
from common.cases.random_cases import features_of
from common.cases.together import PACKED, SERVED
from common.spec import Layout
from common.spec.paged_batch import DTYPES, FP8

# Where kernels go other ways: a loop that is longer, a grid that is wider, tiles of another form. Of each axis one of
# some values, all cheap together.
_SMALL = {"kv_heads": (1,), "ratio": (1, 2), "head_size": (16, 32), "page": (16, 24, 64)}
REGIMES: dict[str, dict[str, tuple[Any, ...]]] = {
    "long keys": {"context": (4200, 9001), "query": (1, 2, 5), "kv_heads": (2, 3), "ratio": (1, 2, 3)},
    "longer keys": {"context": (16_500, 33_001), "query": (1, 2), "kv_heads": (2, 3), "ratio": (1, 2),
                    "head_size": (16, 32, 40), "page": (16, 64, 264), "sequences": (1, 2)},
    "long windows": {"context": (4200, 9001), "query": (1, 3), "window": (1000, 1023, 2049, 4097)},
    "rows": {"query": (65, 129, 300), "context": (0, 64, 129), "ratio": (1, 2, 3)},
    "many rows": _SMALL | {"query": (1400,), "context": (0, 100), "sequences": (1, 2, 3)},
    "sequences": {"sequences": (17, 65), "place": ("last",), "context": (64, 129, 700), "kv_heads": (1, 2)},
    "many sequences": _SMALL | {"sequences": (257, 321, 601), "place": ("last",), "context": (64, 129, 700),
                                "mix": ("padded", "padded", "padded", "mixed", "empty")},
    "one sequence": {"sequences": (1,), "query": (1, 3, 17), "context": (0, 64, 129, 300), "ratio": (17,),
                     "kv_heads": (1,)},
    "many heads": {"kv_heads": (33,), "ratio": (2,), "head_size": (16, 32), "sequences": (1, 2)},
    "wide groups": {"kv_heads": (1, 2), "ratio": (9, 10, 11, 17, 24, 48, 72), "sequences": (1, 2, 3)},
    "no groups": {"kv_heads": (1, 3, 8), "ratio": (1,)},
    "small heads": {"head_size": (8, 16, 24)},
    "large heads": {"head_size": (136, 192, 256), "kv_heads": (1, 2), "ratio": (1, 2, 3)},
    "larger heads": {"head_size": (264, 320, 512), "kv_heads": (1, 2), "ratio": (1, 2)},
    "large pages": {"page": (128, 256, 528, 1024), "kv_heads": (1, 2), "head_size": (16, 32, 40), "spare_pages": (1,)},
    "odd pages": {"page": (8, 24, 40, 48, 72)},
    "whole tiles": {"query": (1,), "context": (63, 127, 511, 703)},
    "wide tables": {"extra_columns": (65, 600), "table_dtype": (torch.int64,)},
    "strides": {"key_style": AXES["key_style"][1:], "value_style": AXES["value_style"][1:],
                "query_style": AXES["query_style"][1:]},
    "scales": {"softmax_scale": (0.05, 0.5, 1.0, 0.37), "page": (8,)},
    "chunks": _SMALL | {"query": (128, 130), "context": (1024, 1100), "sequences": (1, 2), "kv_heads": (2,)},
    "groups over long keys": {"kv_heads": (1, 2), "ratio": (4, 8, 16), "head_size": (64, 128), "query": (1, 4),
                              "page": (16, 32, 64, 128), "context": (1024, 1100, 1500), "sequences": (1, 2)},
}  # fmt: skip
# Where a feature meets several tiles of rows, or many of keys, and is on alone.
ALONE: dict[str, dict[str, tuple[Any, ...]]] = {
    "prompts": {"query": (300,), "context": (64, 129), "kv_heads": (1, 2), "ratio": (1, 2), "head_size": (16, 32)},
    "long keys": {"query": (2, 5), "context": (4200,), "kv_heads": (1, 2), "ratio": (1, 2), "head_size": (16, 32)},
}
_ABILITIES = {axis: MASKS[axis] for axis in MASKS if axis not in ("query", "context")}
ABILITIES: dict[str, tuple[Any, ...]] = _ABILITIES | {
    "value_size": (None, 48, 64), "out_dtype": (None, FP8[0]), "new_kv": (False, True), "lse": AXES["lse"],
    "dtype": DTYPES, "sinks": (None, "near", "some"),  # one that weighs as much as all keys, however many they are
}  # fmt: skip


_TINY = {"kv_heads": (1,), "ratio": (1,), "head_size": (8,)}
_SMALLEST = _TINY | {"kv_heads": (2,), "ratio": (2,)}  # in which a wrong KV head shows
_ROWS = {
    15: (5, 3),
    16: (4, 4),
    17: (1, 17),
    31: (1, 31),
    32: (8, 4),
    33: (11, 3),
    63: (9, 7),
    64: (8, 8),
    65: (13, 5),
    127: (1, 127),
    128: (16, 8),
    129: (43, 3),
}  # query tokens times query heads of a KV head: tokens, heads


def _graph(count: int) -> dict[str, tuple[Any, ...]]:
    """A captured batch of `count` sequences, few of which have tokens."""
    return _SMALLEST | {"sequences": (count,), "mix": ("padded",), "place": ("last",), "context": (64, 129),
                    "page": (16, 24)}  # fmt: skip


def _of_model(model: published.Model, query: tuple[int, ...] = (1, 3)) -> dict[str, tuple[Any, ...]]:
    """A layer of a model on few KV heads. Its context is longer than its window or chunk."""
    ratio, sees = model.heads[0] // model.heads[1], model.window or model.chunk or 0
    past = tuple(max(sees, 64) + more for more in (0, 1, 63))
    dear = _TINY if sees > 9000 else {"kv_heads": (1, 2) if ratio < 17 else (1,), "ratio": (ratio,),
                                      "head_size": (model.head_size,), "value_size": (model.value_size,)}  # fmt: skip
    seen = {"window": (model.window,), "chunk": ((model.chunk, 0) if model.chunk else None,)}
    rest = {"softcap": (model.softcap,), "sinks": ("near" if model.sinks else None,), "page": (16, 32, 64)}
    return dear | seen | rest | {"context": past, "query": query}


def _whole_tiles(tile: int) -> dict[str, tuple[Any, ...]]:
    """A window of one tile, give or take a key, over several tiles of context."""
    return {"window": (tile - 1, tile, tile + 1), "context": (2 * tile, 3 * tile, 3 * tile - 1), "query": (1, 2)}


def _aligned(tile: int, tiles: int) -> dict[str, tuple[Any, ...]]:
    """A prompt of one tile behind `tiles` whole tiles: its diagonal is that of a tile."""
    small = {"kv_heads": (1, 2), "ratio": (1, 2, 3), "head_size": (16, 32), "page": (16, 32, 64), "sequences": (1, 2)}
    return small | {"query": (tile,), "context": (tiles * tile,), "mix": ("prompts",)}


_SPECIAL = [model for model in published.MODELS if model.window or model.chunk or model.softcap or model.value_size]
# What stands by itself: places that no axis alone holds, or that are cheap in one form alone.
PLACES: tuple[dict[str, tuple[Any, ...]], ...] = (
    *({"query": (tokens,), "ratio": (heads,), "kv_heads": (1, 2), "head_size": (16, 32)}
      for tokens, heads in _ROWS.values()),
    *(_of_model(model, (query,)) for model in _SPECIAL for query in (1, 3)
      if model.name in ("gpt-oss", "Mistral 7B", "Gemma 3 27B", "Llama 4")),
    *map(_whole_tiles, (32, 128)),
    _graph(1025) | {"kv_heads": (4,)},  # over 4,096 sequences times KV heads
    {"shared_pages": (65,), "mix": ("long",), "page": (8,), "context": (1100,), "sequences": (3,), "query": (1, 3)},
)  # fmt: skip
# KV heads, and query heads of each, that public models have together; beside them each size of heads in both dtypes of
# 16 bits, for which kernels are compiled, and sizes of pages.
_HEADS = sorted({(m.heads[1], m.heads[0] // m.heads[1]) for m in published.MODELS if m.heads[1] in (4, 8)})
_SIZES = itertools.product(AXES["head_size"], DTYPES[:2])
SHAPES = tuple(
    {"head_size": (size,), "dtype": (dtype,), "kv_heads": (kv if size <= 128 else 2,),
     "ratio": (ratio if size <= 128 else 2,), "page": (page,), "query": (1, 2), "context": (max(129, page + 1),),
     "sequences": (1,)}
    for (size, dtype), (kv, ratio), page in zip(
        _SIZES, cycle(heads for heads in _HEADS if heads[1] > 2), cycle(AXES["page"][:21]), strict=False)
)  # fmt: skip
# Each form of a cache of 8 bits beside both.
STORED = tuple(
    _SMALLEST | {"store": (store,), "dtype": (dtype,), "head_size": (32,), "query": (1, 3), "context": (129,)}
    for store in AXES["store"][1:] if store not in random_cases.FP8_QUERIES for dtype in DTYPES[:2]
)  # fmt: skip
ALIGNED = tuple(_aligned(tile, tiles) for tile in (16, 32, 64, 128, 256) for tiles in (0, 1))
# In two calls: over two thousand query tokens; over a thousand beside several heads, in one prompt of over 1,024 tiles
# of 16 rows, and in one among many short ones, with over 16,384 rows and 2^18 elements of `out`, and an fp8 scale whose
# reciprocal bf16 rounds by 0.4%; page ids past 20 bits and elements of a cache past 24; 8,193 pages of a sequence;
# sequences of equal lengths.
DEAR: tuple[dict[str, tuple[Any, ...]], ...] = (
    _TINY | {"query": (2050,), "context": (0,), "page": (64,), "sequences": (1,)},
    _SMALLEST | {"query": (1030,), "context": (0,), "page": (64,), "sequences": (1,), "kv_heads": (8,)},
    _SMALLEST | {"query": (513,), "context": (129,), "sequences": (59,), "mix": ("prompts",), "place": ("middle",),
                 "ratio": (8,), "head_size": (16,), "out_dtype": (FP8[0],), "out_scale": (0.49808,)},
    _SMALLEST | {"page": (8,), "arrange": (layouts.far_pages,), "sequences": (1, 2), "key_style": (None,),
                 "value_style": (None,), "dtype": (torch.bfloat16,)},
    _SMALLEST | {"context": (65_540,), "query": (1,), "page": (8,), "sequences": (1, 2)},
    *(_SMALLEST | {"query": (query,), "context": (129,), "sequences": (5,), "mix": ("alike",)} for query in (1, 3)),
)  # fmt: skip
STRANGE = (  # in addition at `full`: dearer ones
    *(_of_model(model) for model in {(m.heads[0] // m.heads[1], m[2:]): m for m in published.MODELS}.values()),
    *map(_whole_tiles, (16, 48, 64, 80, 96, 112, 160, 192, 256, 512)),
    *map(_graph, (2048, 4097)),
    _TINY | {"context": (131_080,), "query": (1,), "page": (1024,), "sequences": (1,), "kv_heads": (1,)},
    _TINY | {"query": (4099,), "context": (0,), "page": (64,), "sequences": (1,)},
)  # fmt: skip
# Every number while it is small, and each size of a captured graph.
WIDE: dict[str, tuple[Any, ...]] = {
    "query": tuple(sorted({*range(1, 132), *range(136, 257, 8), *boundaries.NEAR})),
    "context": tuple(range(132)), "ratio": tuple(range(1, boundaries.RATIO + 1)),
    "kv_heads": tuple(range(1, boundaries.RATIO + 1)), "head_size": tuple(range(8, 513, 8)),
    "page": tuple(range(8, 1025, 8)), "window": (None, *range(1, 132)),
    "sequences": tuple(sorted({*range(1, 131), *range(136, 521, 8), *boundaries.NEAR})),
    "value_size": (None, *range(8, 513, 8)), "tree": (None, *range(1, 68)),
    "extra_columns": tuple(range(130)), "pad_tokens": tuple(range(130)), "spare_pages": tuple(range(130)),
}  # fmt: skip


# Rows that hold every value of some axes, each where a mistake at it shows.
_showing = partial(covering, rules=(*RULES, *SHOWS), strength=1, cheap=cheap, tells=tells)


FRUGAL = (*RULES, *SHOWS, *QUICK_RULES)


def _brief(
    axes: Mapping[str, tuple[Any, ...]],
    rules: Iterable[Rule],
    behind: Iterable[Values] = (),
    of: Collection[str] | None = None,
    **options: Any,
) -> Rows:
    """Rows of brief cases that hold every value, or those of some axes: first the rows in which mistakes show."""
    behind, options = [*behind], options | {"rules": rules, "plain": True}
    mute = [{axis: one} for axis in MUTE for one in filter(MUTE[axis], axes[axis])]
    rows = _showing(axes, of=of, behind=behind + mute, **options)
    rows += _showing(axes, of=MUTE, tells=None, behind=behind + rows, **options)
    return [row | {"brief": True} for row in rows]


@lru_cache(maxsize=1)
def _quick() -> Rows:
    """Rows that hold every value that has a short case."""
    rules = [rule for rule in FRUGAL if rule is not WHOLE_DRAFT]  # which is long
    return _brief(quick(EVERY), rules, seed=19, drop=True)


@lru_cache(maxsize=1)
def _values() -> Rows:
    """Rows that hold every value; the quick ones first."""
    every = {axis: tuple(dict.fromkeys((*of, *WIDE.get(axis, ())))) for axis, of in EVERY.items()}
    shown = [row | {"tree": None} for row in _quick()]
    rows = _quick() + _brief(every, FRUGAL, seed=7, behind=shown, drop=True)
    return rows + _brief(every, (*RULES, *SHOWS), seed=7, behind=rows)


@lru_cache(maxsize=1)
def _smoke() -> Rows:
    """Rows that hold every value, every pair of MASKS and of what changes between calls, and every place."""
    masks = covering(MASKED, MASK_RULES, seed=11, of={*MASKS, "change"})
    short = (("aligned", ALIGNED), ("prompt", DEAR), ("shape", SHAPES), ("store", STORED), ("served", SERVED))
    brief = [row | {"brief": True} for word, places in short for row in _placed(places, word)]
    brief += [row | {"brief": True, "layout": Layout.X_PACKED} for row in _placed(PACKED, "packed")]
    return _values() + masks + _regimes() + _alone() + _placed(PLACES, "place") + brief


def _without(axis: str) -> Rule:
    """The rule that a regime excludes an ability whose values contradict all of the regime's values of some axis."""

    def apart(regime: str, ability: Any) -> bool:
        ways = [[{axis: ability, own: value} for value in values] for own, values in REGIMES[regime].items()]
        return any(all(any(rule.broken(some) for rule in POSSIBLE) for some in way) for way in ways)

    return Rule("regime", axis, apart)


def _regimes() -> Rows:
    """Every value of ABILITIES in every regime, and every regime with all abilities off.

    Beside a window or a chunk a row sees few of many keys: without the plain rows a wrong diagonal survived."""
    alone = Rule("non_causal", "window", lambda flags, size: flags is not None and size == 1)  # a row sees its own key
    rules = (*POSSIBLE, alone, *map(_without, ABILITIES))
    chosen = covering({"regime": tuple(REGIMES)} | ABILITIES, rules, seed=13, of={"regime"})
    off = {axis: values[0] for axis, values in ABILITIES.items()}
    plain = [off | {"regime": regime, "dtype": dtype} for regime, dtype in zip(REGIMES, cycle(DTYPES), strict=False)]
    rows = [
        _within(values, REGIMES[values["regime"]], random.Random(f"regime {number}"))
        | {"brief": number % 4 > 0 or number >= len(chosen)}
        for number, values in enumerate(chosen + plain)
    ]
    for regime, place in REGIMES.items():
        several = tuple(query for query in place.get("query", (3, 17)) if query > 1)
        if not several:  # a decode sees the same under a causal mask
            continue
        flagged = [row for row, values in zip(rows, chosen, strict=False) if values["regime"] == regime and _flags(row)]
        last = place.get("place") == ("last",)  # of many: flags of every second are those of a number cut to some bits
        flagged = [] if last else flagged
        flags = off | {"non_causal": "the last" if last else "every second", "dtype": DTYPES[len(rows) % len(DTYPES)]}
        for word in ("a", "b")[len(flagged) :]:
            found = _within(flags, place | {"query": several}, random.Random(f"flags {word} {regime}"))
            flagged.append(found | {"brief": True})
            rows.append(flagged[-1])
        for row, operands in zip(flagged, cycle((torch.float16, None)), strict=False):
            row["operands"] = operands  # in another dtype than float32 flags are bool
    return rows


def _flags(row: Values) -> bool:
    """Whether flags of sequences show: of several query tokens, beside nothing that opens or closes what they do, or
    makes other keys much heavier."""
    mute = row["spans"] == "whole" or row["window"] == 1 or row["tree"] is not None or row["alibi"] is not None
    return row["non_causal"] is not None and row["query"] > 1 and row["causal"] and not mute


def _alone() -> Rows:
    """Every value of MASKS with nothing else on, in a prompt of several tiles and over many keys.

    Beside a draft tree, slopes or 8 bits, a fault of a window is a small part of a late row."""
    rows = []
    for (word, place), axis in product(ALONE.items(), MASKS):
        for value in MASKS[axis][1:] if axis not in ("query", "context", "store") else ():
            off = {axis: values[0] for axis, values in ABILITIES.items()}
            dtype = DTYPES[len(rows) % len(DTYPES)]
            row = _within(off | {axis: value, "dtype": dtype}, place, random.Random(f"alone {word} {axis} {value}"))
            rows.append(row | {"brief": True})
    return rows


DRAWS = 30  # of a row in which a mistake is to show
# A decode sees the same keys under a causal mask.
_LOUD = (*SHOWS, both("causal", lambda causal: not causal, "query", lambda query: query in (0, 1)))


def _within(abilities: Values, regime: Mapping[str, tuple[Any, ...]], rng: random.Random) -> Values:
    """A row with these abilities in a regime. The other values are drawn until the rules allow them, and of DRAWS such
    rows the one is taken that breaks fewest of _LOUD: a flag for a decode alone, or a window past all keys, is mute."""
    beside, found = BESIDE | {"query": (1, 3, 17), "context": (64, 129, 700)}, {}
    for draw in itertools.count():
        drawn = {axis: rng.choice(values) for axis, values in (beside | regime).items()}
        row = {axis: values[0] for axis, values in AXES.items()} | drawn | abilities
        row |= {axis: drawn[axis] for axis in regime}
        if not any(rule.broken(row) for rule in POSSIBLE):
            found.setdefault(sum(rule.broken(row) for rule in _LOUD), row)
        if 0 in found or (found and draw >= DRAWS):
            return {axis: found[min(found)][axis] for axis in AXES}


def _placed(places: Iterable[Mapping[str, tuple[Any, ...]]], word: str) -> Rows:
    """A row in each place, with only the place's own abilities on."""
    off = {axis: values[0] for axis, values in ABILITIES.items()}
    dtypes = zip(places, cycle(DTYPES[::-1]), strict=False)
    return [_within(off | {"dtype": dtype}, place, random.Random(f"{word} {number}"))
            for number, (place, dtype) in enumerate(dtypes)]  # fmt: skip


@lru_cache(maxsize=1)
def _rest() -> Rows:
    """Rows that hold every triple of MASKS, every pair that is cheap enough, and every value twice more."""
    triples = covering(MASKED, MASK_RULES, seed=12, of=MASKS, strength=3)
    pairs = covering(AXES, PAIR_RULES, seed=5, plain=True)
    again = [row for seed in (17, 18) for row in _showing(EVERY, seed=seed)]
    return triples + pairs + again + _placed(STRANGE, "strange")


DRAWN_VALUES = {"smoke": 20, "full": 100}  # of each axis that the seed draws


@lru_cache(maxsize=8)
def _of_seed(seed: int, level: str) -> Rows:
    """Rows of values that a seed draws: each value once, and each pair of the first few of every axis."""
    rng = random.Random(f"drawn {seed} {level}")
    values = {axis: tuple(boundaries.drawn(axis, rng) for _ in range(DRAWN_VALUES[level])) for axis in boundaries.DRAWN}
    axes = AXES | {axis: tuple(dict.fromkeys((*EVERY[axis][:2], *some))) for axis, some in values.items()}
    if level == "smoke":
        rows = _brief(axes, FRUGAL, seed=seed, of=values, drop=True)
        return rows + _brief(axes, (*RULES, *SHOWS), behind=rows, seed=seed, of=values, drop=True)
    rows = _showing(axes, seed=seed, of=values, drop=True)
    few = MASKED | {axis: axes[axis][:5] for axis in values}
    return _of_seed(seed, "smoke") + rows + covering(few, PAIR_RULES, seed=seed, of=values, drop=True)


def num_drawn(seed: int, level: str) -> int:
    """How many cases a seed draws for a level, `smoke` or `full`."""
    return len(_of_seed(seed, level))


def num_quick() -> int:
    """How many numbers, from 0, hold every value that is short in an interpreter too."""
    return len(_quick())


def num_smoke() -> int:
    """How many numbers, from 0, hold every value, and the pairs of masks."""
    return len(_smoke())


def num_axes() -> int:
    """How many numbers, from 0, hold the triples of masks and every pair too."""
    return num_smoke() + len(_rest())


def values_of(number: int) -> Values:
    """The value of every axis. Raises ValueError for a number that no case has."""
    if 0 <= number < num_quick():
        return _quick()[number]
    if 0 <= number < num_smoke():
        return _smoke()[number]
    if not 0 <= number < num_axes():
        raise ValueError(f"number: found {number}, allowed 0 to {num_axes() - 1}")
    return _rest()[number - num_smoke()]


def _drawn(value: Any, page: int, rng: random.Random) -> Any:
    if value in DRAWN:
        return random_cases.log_uniform(rng, *DRAWN[value])
    return {"page - 1": page - 1, "page": page, "page + 1": page + 1, "two pages": 2 * page}.get(value, value)


def _companions(count: int, mix: str, rng: random.Random) -> list[tuple[int, int]]:
    """(query_len, seq_len) of the other sequences: the more, the shorter."""
    most = 150 if count < 6 or mix == "padded" else 40 if count < 60 else 12

    def one(mix: str) -> tuple[int, int]:
        kind = rng.choice(("decodes", "prompts", "chunk", "empty")) if mix in ("mixed", "last empty") else mix
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

    if mix == "padded":  # those at both ends have tokens, and a few between
        live = {*range(4), *range(count - 5, count), *(rng.randrange(max(1, count)) for _ in range(8))}
        return [one("mixed") if place in live else rng.choice(((0, 0), (0, 0), (0, 5))) for place in range(count)]
    if mix == "sparse":  # those at both ends and one between
        live = {0, count - 1, rng.randrange(max(1, count))}
        return [one("decodes") if place in live else (0, rng.choice((0, 5))) for place in range(count)]
    found = [one(mix) for _ in range(count)]
    if mix == "last empty" and found:
        found[-1] = rng.choice(((0, 0), (0, 7), (1, 0)))
    return found


def _lens(values: Values, rng: random.Random) -> list[tuple[int, int]]:
    page = values["page"]
    query, context = (_drawn(values[axis], page, rng) for axis in ("query", "context"))
    words = {"to a whole page": -(-max(query, 1) // page) * page, "fewer keys": random_cases.fewer_keys(query)}
    keys = words[context] if context in words else query + context
    others = values["sequences"] - 1
    lens = [(query, keys)] * others if values["mix"] == "alike" else _companions(others, values["mix"], rng)
    if values["mix"] == "decodes":
        lens = [(query_len, seq_len + values["shared_pages"] * page) for query_len, seq_len in lens]
    lens.insert({"first": 0, "last": len(lens), "middle": len(lens) // 2}[values["place"]], (query, keys))
    return lens


_SAME = (
    "head_size", "dtype", "softmax_scale", "loud", "causal", "softcap", "sinks", "style", "query_style", "key_style",
    "value_style", "out_style", "arrange", "shared_pages", "pad_tokens", "extra_columns", "spare_pages", "table_dtype",
    "new_kv", "change", "lse", "scale_factor", "key_scale_factor", "flag",
)  # fmt: skip


def _case(name: str, values: Values) -> Case:
    rng = random.Random(name.replace("-", " "))
    features, lens = features_of(values, _lens(values, rng), rng)
    operands = values.get("operands", random.Random(f"{name} operands").choice((None, *DTYPES[:2])))
    window, longest = _drawn(values["window"], values["page"], rng), max(seq_len for _, seq_len in lens)
    window = {"all keys": longest, "all keys - 1": longest - 1, "all keys + 1": longest + 1}.get(window, window)
    fill, brief = FILLS.get(values["fill"]), values.get("brief", False)
    # one of values alone has keys that grow; but an fp8 query's small logits would all have one P
    fill = rising if brief and fill is None and features["fp8_query"] is None else fill
    return Case.of(
        name, (), tuple(lens), heads=(values["ratio"] * values["kv_heads"], values["kv_heads"]),
        block_size=values["page"], sliding_window=window and max(1, window), fill=fill, brief=brief,
        operands=operands, layout=values.get("layout", Layout.PAGED), **{axis: values[axis] for axis in _SAME},
        **features,
    )  # fmt: skip


def axes_case(number: int) -> Case:
    """The case of a number. Raises ValueError for one that no case has."""
    return _case(f"axes-{number}", values_of(number))


def drawn_case(seed: int, number: int) -> Case:
    """The case of a number among those that a seed draws. Raises ValueError for one that no case has."""
    rows = _of_seed(seed, "smoke" if 0 <= number < num_drawn(seed, "smoke") else "full")
    if not 0 <= number < len(rows):
        raise ValueError(f"number: found {number}, allowed 0 to {len(rows) - 1}")
    return _case(f"drawn-{seed}-{number}", rows[number])
