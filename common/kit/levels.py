"""What the conformance kit runs: its levels, cases of its own, and case expressions that say a shrunk case in one word.

An expression is the name of a case, then `@field=value` for each field that differs: `window-page@dtype=float16`,
`query-15-16-17@lens=1/40.5/5@heads=2/1`. Any field of `common.cases.case.Case`, and of what it asks, that is a number,
word, dtype or lengths.
"""

import difflib
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from common.cases import layouts
from common.cases.ask import PLAIN
from common.cases.by_axes import axes_case, drawn_case, num_axes, num_drawn, num_quick, num_smoke
from common.cases.case import FIELDS, Case, decodes, named
from common.cases.fills import FILLS, every_code, far_tail, planted, rising
from common.cases.named import CASES
from common.cases.random_cases import num_pairs, random_case
from common.cases.signed import OFTEN, SIGNED
from common.cases.swept import SWEPT
from common.kit.possible import ensure_in_range, ensure_possible
from common.spec import SpecError
from common.spec.paged_batch import DTYPES, FP8

_TWO_HEADS = {"heads": (2, 1)}
_SMALL = {"heads": (2, 2), "head_size": 8, "block_size": 8}
# Longer than any case that is not large, and scratch that a longer batch left behind.
LONG = named("keys-4500", lens=((1, 4500), (1, 40)), **_TWO_HEADS)
LONG_PLANTED = named("keys-4500-planted", lens=((1, 4500), (3, 300), (1, 40)), head_size=128, fill=planted)
_TAIL = {"fill": far_tail, "brief": True, "lse": None} | _TWO_HEADS
LONG_TAIL = named("keys-65541-tail", lens=((1, 65541), (1, 40)), head_size=16, block_size=64, **_TAIL)
# As long as the contexts that models are sold with, in a form that a CPU can count: at `full`.
LONGEST = named("keys-1048579", lens=((1, 1048579), (2, 40)), heads=(1, 1), head_size=8, block_size=64)
# In one batch of decodes alone, which has over 8,192 rows.
LENGTHS = named("lengths-1-to-200", lens=decodes(*range(1, 201)), heads=(42, 2), head_size=8, block_size=8, brief=True)
# Of so many pages each, of which the last is full or not.
PAGES = named("pages-1-to-130", lens=decodes(*(8 * n - n % 8 for n in range(1, 131))), brief=True, **_SMALL)
_CODES = {"lens": ((1, 45), (5, 90), (18, 130)), "fill": every_code}
_E4M3, _FNUZ, _E5M2 = FP8
CODES: tuple[Case, ...] = (  # of fp8: all of each type
    named("codes-e4m3", kv_dtype=_E4M3, scales="one-heads", **_CODES),
    named("codes-e4m3fnuz", kv_dtype=_FNUZ, scales="heads", dtype=torch.float32, **_CODES),
    named("codes-e5m2", kv_dtype=_E5M2, scales="tokens-heads", dtype=torch.float16, **_CODES),
    named("codes-fp8-query", fp8_query=_E4M3, scales="one", softmax_scale=0.003, **_CODES),
)
RUNS = named("pages-in-runs", lens=((1, 300), (20, 90), (3, 200)), block_size=8, arrange=layouts.page_runs)
AFTER_LONGER = named("scratch-after-longer", lens=decodes(45, 20), **_TWO_HEADS)
AFTER_MORE = named("scratch-after-more", lens=decodes(45, 20), **_TWO_HEADS)
BEFORE: dict[str, Case] = {  # what a case's kernel is called on first, in the same process
    AFTER_LONGER.name: named("longer", lens=decodes(700, 350), **_TWO_HEADS),
    AFTER_MORE.name: named("more", lens=decodes(300, 30, 200, 70, 90), **_TWO_HEADS),
}
ELSEWHERE = "prefill-and-decode-alternate"  # whose first call is repeated in another process
_OWN = (LONG, LONG_PLANTED, LONG_TAIL, LONGEST, LENGTHS, PAGES, RUNS, AFTER_LONGER, AFTER_MORE, *CODES)
KIT_CASES = tuple(case for case in (*CASES, *_OWN, *SIGNED, *SWEPT) if case.refused is None)
BY_NAME = {case.name: case for case in KIT_CASES}
# Each axis at its edges: what a wrong kernel most likely gets wrong, in ten minutes of an interpreter.
SMOKE = (
    "query-15-16-17", "query-0", "context-page-plus-1", "sequence-at-page", "sequence-at-tile", "sequence-1",
    "one-empty-sequence", "cache-without-pages", "batch-0", "no-tokens", "batch-1", "all-decode", "all-prefill",
    "prefill-and-decode-alternate",
    "pages-permuted", "pages-shared", "table-exactly-as-wide-partial-page", "table-columns-int64",
    "page-id-beyond-20-bits", "query-in-fused-qkv", "cache-interleaved", "cache-hnd",
    "x-packed-page-24-head-80", "x-packed-new-kv-window", "unaligned-and-odd-strides",
    "key-and-value-of-other-strides", "window-1", "window-page", "window-leaves-leading-segments-empty",
    "window-starts-inside-a-tile", "softcap-15", "softcap-50-logits-4400", "softcap-5000-logits-50000",
    "sinks-near-the-mass", "non-causal", "padded-tokens", "hints-too-small", "everything-at-once", "keys-4500",
    "keys-4500-planted", "keys-65541-tail",
    "scratch-after-longer", "scratch-after-more", "company-decodes", "company-prompt", "company-shared-prefix",
    "invariant-decodes", "invariant-prompt", "invariant-shared-prefix", "values-keys-past-fp16", "values-values-tiny",
    "values-logits-far-below",
    "spans-apart", "tree-larger-than-the-query",
    "values-seen-nan", "values-seen-inf", "keys-seen-nan", "query-nan", "fp8-values-seen-nan",
    "fp8-e5m2-values-seen-inf", "fp8-out-values-seen-nan",
    *(case.name for case in (*OFTEN, *SWEPT, *CODES)), LENGTHS.name, PAGES.name, RUNS.name,
)  # fmt: skip
LEVELS = ("first", "smoke", "full")
# Cases chosen by what they reject a second, each by its fields, so that a change of the axes leaves them as they are.
CHOSEN: dict[str, Any] = json.loads((Path(__file__).parent / "first.json").read_text(encoding="utf-8"))


def level(name: str, seed: int = 0) -> Iterator[str]:
    """The expressions of a level. first: those of the axes that hold every value that has a short case, and a few that
    reject most wrong kernels a second. smoke: these, named cases, and those of the axes that hold every value and the
    pairs of masks. full: every case that is not one to refuse, in all three dtypes, and the random cases and those of
    the axes that hold every pair of values of two axes. The last two: those of the values that `seed` draws."""
    if name == "first":
        yield from quick()
        yield from CHOSEN["cases"]
        return
    yield from (case for case in CHOSEN["cases"] if case not in BY_NAME)
    if name == "smoke":
        yield from SMOKE
        yield from (f"axes-{number}" for number in range(num_smoke()))
    else:
        yield from (f"{case.name}@dtype={_text(dtype)}" for case in KIT_CASES for dtype in _dtypes(case))
        yield from (f"random-{seed}" for seed in range(num_pairs()))
        yield from (f"axes-{number}" for number in range(num_axes()))
    yield from (f"drawn-{seed}-{number}" for number in range(num_drawn(seed, name)))


def quick() -> list[str]:
    """Those that hold every value that has a short case."""
    return [f"axes-{number}" for number in range(num_quick())]


def _dtypes(case: Case) -> tuple[torch.dtype, ...]:
    """In which a case is asked at `full`: in their own, where it is long."""
    return (case.dtype,) if case in (LONG_TAIL, LONGEST, *SIGNED, *SWEPT) else DTYPES


def is_made(case: Case) -> bool:
    """Whether a case is one of many that were made by axes, and not a named one."""
    return case.name not in BY_NAME


_DTYPES = ("dtype", "table_dtype", "kv_dtype", "fp8_query", "out_dtype", "operands")
_INTEGERS = ("tree", "non_causal")
_FLOATS = ("softcap", "loud", "scale_factor", "key_scale_factor", "out_scale", "softmax_scale")
_STYLES = ("style", "query_style", "key_style", "value_style", "out_style")
_WORDS = (*_STYLES, "sinks", "alibi", "scales", "change", "lse", "sweep")


@dataclass(frozen=True)
class _Seeded(Case):
    """A case whose tensors also depend on the kit's seed."""

    kit_seed: int = 0

    @property
    def seed(self) -> int:
        return zlib.crc32(f"{self.name} {self.kit_seed}".encode())


def seeded(case: Case, kit_seed: int) -> Case:
    values = {field.name: getattr(case, field.name) for field in fields(Case)}
    return _Seeded(**values, kit_seed=kit_seed)


def _text(value: Any, field: str = "") -> str:
    """A value of a field as one word."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, tuple) and value and isinstance(value[0], tuple) and field == "spans":
        return "_".join(".".join(f"{first}/{last}" for first, last in pairs) for pairs in value)
    if isinstance(value, tuple) and field in _INTEGERS:
        return ".".join(map(str, value))
    if isinstance(value, tuple):
        pairs = value if value and isinstance(value[0], tuple) else (value,)
        return ".".join("/".join(map(str, pair)) for pair in pairs)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    return tuple((int(first), int(last)) for first, last in (pair.split("/") for pair in filter(None, text.split("."))))


def _value(field: str, text: str) -> Any:
    """The inverse of _text for one field. Raises ValueError."""
    words = {"none": None, "true": True, "false": False}
    if text in words:
        return words[text]
    if field in _DTYPES:
        if not isinstance(found := getattr(torch, text, None), torch.dtype):
            raise ValueError(text)
        return found
    if field == "lens":
        return _pairs(text)
    if field == "spans":
        return tuple(map(_pairs, text.split("_")))
    if field in _INTEGERS:
        return tuple(int(number) for number in filter(None, text.split(".")))
    if field == "heads":
        query, key = map(int, text.split("/"))
        return (query, key)
    if field in _WORDS:
        return text
    return float(text) if field in _FLOATS else int(text)


_DRAWN = re.compile(r"([0-9]{1,18})-([0-9]{1,6})")
_FIXED = {"name", "numbers", "layout", "large", "refused"}
_FIELDS = [name for name in FIELDS if name not in _FIXED]
_PLAIN = named("plain")
_FILLS = FILLS | {"planted": planted, "far_tail": far_tail, "rising": rising, "every_code": every_code}


def frozen(case: Case) -> dict[str, str]:
    """The fields of a case that are not plain, as words; `thawed` is the inverse. Raises KeyError for a fill or an
    arrangement without a name."""
    told = {}
    for field in (name for name in _FIELDS if case.value(name) != _PLAIN.value(name)):
        value = case.value(field)
        if field == "fill":
            told[field] = {fill: name for name, fill in _FILLS.items()}[value]
        else:
            told[field] = value.__name__ if field == "arrange" else _text(value, field)
    return told


def thawed(name: str, told: dict[str, str]) -> Case:
    """The case of a name and the words of `frozen`."""
    values = {field: _value(field, text) for field, text in told.items() if field not in ("fill", "arrange")}
    values |= {"fill": _FILLS[told["fill"]]} if "fill" in told else {}
    values |= {"arrange": getattr(layouts, told["arrange"])} if "arrange" in told else {}
    return replace(_PLAIN, name=name).but(**values)


def _base(name: str) -> Case:
    """The case of a name, of `random-<seed>`, `axes-<number>` or `drawn-<seed>-<number>`. Raises SpecError for
    a name of none."""
    if name in BY_NAME:
        return BY_NAME[name]
    if told := CHOSEN["cases"].get(name):
        return thawed(name, told)
    kind, _, number = name.partition("-")
    whole = number.isascii() and number.isdecimal() and len(number) < 19
    few = whole and len(number) < 5  # of axes
    if kind == "random" and whole:
        return random_case(int(number))
    # the fewest first, for to count them all takes a while
    if kind == "axes" and few and any(int(number) < count() for count in (num_quick, num_smoke, num_axes)):
        return axes_case(int(number))
    if kind == "drawn" and (found := _DRAWN.fullmatch(number)):
        seed, number = map(int, found.groups())
        if number < num_drawn(seed, "smoke") or number < num_drawn(seed, "full"):
            return drawn_case(seed, number)
    near = ", ".join(difflib.get_close_matches(name[:80], BY_NAME, 3, 0.3)) or "keys-4500"
    most = f" below {num_axes()}" if kind == "axes" and few else ""
    allowed = f"a named case, as {near}, random-SEED, axes-NUMBER{most}, or drawn-SEED-NUMBER"
    raise SpecError("case", f"{name!r:.60}", allowed)


def write(case: Case) -> str:
    """The expression of a case that was changed from the one of its name."""
    base = _base(case.name)
    changed = [name for name in _FIELDS if case.value(name) != base.value(name)]
    return "@".join([case.name, *(f"{name}={_text(case.value(name), name)}" for name in changed)])


@lru_cache(maxsize=4096)
def read(expression: str) -> Case:
    """The case of an expression. Raises SpecError naming what is wrong with it."""
    name, *changes = expression.split("@")
    base, values = _base(name), {}
    for change in changes:
        field, _, text = change.partition("=")
        if field not in _FIELDS or (field in ("arrange", "fill") and text != "none"):
            allowed = f"field=value with one of {', '.join(_FIELDS)}; fill and arrange only none"
            raise SpecError("case", f"{change!r:.60}", allowed)
        try:
            values[field] = _value(field, text)
        except ValueError as error:
            raise SpecError("case", f"{change!r:.60}", f"a value that {field} can have") from error
    case = base.but(**values)
    if values:
        ensure_possible(case)
    return case


def size(case: Case) -> tuple[int, int, int]:
    """What makes a case small: keys that queries meet times heads, then the fields that are changed from plain."""
    keys = sum(query_len * seq_len + seq_len + 1 for query_len, seq_len in case.lens)
    plain = named("plain")
    unplain = sum(case.value(name) != plain.value(name) for name in _FIELDS if name not in ("lens", "heads"))
    return keys * case.heads[0], case.head_size * case.block_size + case.spare_pages, unplain


# Whole features off: a field, and what means nothing without it.
_OFF: tuple[dict[str, Any], ...] = (
    {"sliding_window": None}, {"softcap": None}, {"sinks": None}, {"arrange": None}, {"fill": None}, {"loud": 1.0},
    {"style": "nhd"}, {"shared_pages": 0}, {"pad_tokens": 0}, {"new_kv": False}, {"pad_out": False}, {"causal": True},
    {"spare_pages": 3}, {"table_dtype": torch.int32}, {"block_size": 16}, {"head_size": 32}, {"alibi": None},
    {"chunk": None, "chunk_lookback": 0}, {"chunk_lookback": 0}, {"spans": None}, {"non_causal": None}, {"tree": None},
    {"cross": False}, {"value_size": None}, {"kv_dtype": None, "scales": None}, {"fp8_query": None, "scales": None},
    {"out_dtype": None, "out_scale": PLAIN.out_scale}, {"batch_invariant": False}, {"apart": False},
    {"softmax_scale": None}, {"query_style": None}, {"key_style": None}, {"value_style": None}, {"out_style": None},
    {"change": None}, {"lse": "rows"}, {"flag": 1}, {"scale_factor": 1.0}, {"key_scale_factor": 1.0},
    {"company": False}, {"sweep": None}, {"operands": None},
)  # fmt: skip


def _with_lens(case: Case, kept: list[int], lens: tuple[tuple[int, int], ...]) -> Case:
    """The case of some of its sequences, with what it says of each."""
    spans, flags = case.ask.spans, case.ask.non_causal
    spans = None if spans is None else tuple(spans[i] for i in kept)
    flags = None if flags is None else tuple(i for i, old in enumerate(kept) if old in flags)
    return case.but(lens=lens, spans=spans, non_causal=flags)


def simpler(case: Case) -> Iterator[Case]:
    """Cases with one thing less, the boldest first; each smaller than `case` by `size`."""
    lens, group, everyone = case.lens, case.heads[0] // case.heads[1], list(range(len(case.lens)))
    half = len(lens) // 2
    parts = [everyone[:half], everyone[half:]] if half else []
    parts += [everyone[:i] + everyone[i + 1 :] for i in everyone if 1 < len(lens) <= 8]
    candidates = [_with_lens(case, kept, tuple(lens[i] for i in kept)) for kept in parts]
    for i, (query_len, seq_len) in enumerate(lens[:8]):
        for q, s in ((1, seq_len), (query_len, query_len), (1, seq_len // 2), (1, seq_len - 16), (1, seq_len - 1)):
            if 0 < q <= s and (q, s) != (query_len, seq_len):
                candidates.append(_with_lens(case, everyone, (*lens[:i], (q, s), *lens[i + 1 :])))
    candidates += [case.but(heads=heads) for heads in ((1, 1), (group, 1))]
    off = [values for values in _OFF if not (case.ask.cross and "causal" in values)]
    candidates += [case.but(**values) for values in off if _is_on(case, values)]
    yield from (each for each in candidates if size(each) < size(case) and _in_range(each))


def _is_on(case: Case, off: dict[str, Any]) -> bool:
    """Whether the case has what these values turn off: the first, for the others mean nothing without it."""
    name, value = next(iter(off.items()))
    return case.value(name) != value


def _in_range(case: Case) -> bool:
    try:
        ensure_in_range(case)
    except SpecError:
        return False
    return True


# The smallest case that still fails: what is left when nothing more can be left out.


CALLS = 400  # a case of five sequences with every feature on takes about 100


def smallest(case: Case, fails: Callable[[Case], bool], calls: int = CALLS) -> Case:
    """`case`, or a simpler one for which `fails` holds too and for none of whose simpler ones it does.

    Greedy; calls `fails` at most `calls` times.
    """
    improved = True
    while improved:
        improved = False
        for candidate in simpler(case):
            if calls == 0:
                return case
            calls -= 1
            if fails(candidate):
                case, improved = candidate, True
                break
    return case
