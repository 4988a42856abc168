"""Whether a case that somebody wrote is one: numbers in their ranges, a batch that can be built and is well formed.

Named cases are; an expression may say anything, and a batch is only built of what passed the ranges before it.
"""

import math
from typing import get_args

from common.cases.ask import ENCODERS, ScaleForm
from common.cases.batch import CacheStyle
from common.cases.calls import CHANGES
from common.cases.case import LSE_STYLES, Case, build
from common.cases.layouts import STRIDES
from common.cases.swept import WORDS
from common.spec import SpecError
from common.spec.metadata import cdiv
from common.spec.paged_batch import DTYPES
from common.spec.validation import validate

MOST_BYTES = 2**30  # of K and V, or of the queries
MOST_LOGITS = 2**32  # a minute of the reference
_COUNTS = dict.fromkeys(("shared_pages", "pad_tokens", "extra_columns", "spare_pages", "tile_size"), (0, 2**21))
_COUNTS |= {"block_size": (1, 2**20), "head_size": (1, 2**10), "value_size": (1, 2**10), "chunk_lookback": (0, 2**30)}
_COUNTS |= dict.fromkeys(("sliding_window", "chunk"), (1, 2**31 - 1))
_FACTORS = ("loud", "softcap", "softmax_scale", "scale_factor", "key_scale_factor", "out_scale")
_WORDS = {
    "style": get_args(CacheStyle),
    "sinks": ("near", "off", "some", "heavy", "drawn"),
    "alibi": ("linear", "sqrt", "zero", "drawn", "sqrt-drawn"),
    "scales": get_args(ScaleForm),
    "change": tuple(CHANGES),
    "lse": LSE_STYLES,
    "sweep": WORDS,
} | dict.fromkeys(("query_style", "key_style", "value_style", "out_style"), STRIDES)


def _refuse(field: str, found: object, allowed: str) -> None:
    raise SpecError("case", f"{field}={found!r:.60}", allowed)


def _ranges(case: Case) -> None:
    """Each field by itself."""
    for field, (least, most) in _COUNTS.items():
        found = case.value(field)
        whole = isinstance(found, int) and not isinstance(found, bool)
        if found is not None and not (whole and least <= found <= most):
            _refuse(field, found, f"an integer from {least} to {most}")
    for field in _FACTORS:
        found = case.value(field)
        if found is not None and not (isinstance(found, int | float) and 0.0 < found < math.inf):
            _refuse(field, found, "a finite number above 0")
    for field, words in _WORDS.items():
        found = case.value(field)
        if found not in words and not (found is None and field != "style"):
            _refuse(field, found, ", ".join(words) + ("" if field == "style" else ", none"))
    flag = case.ask.flag
    if not isinstance(flag, int) or isinstance(flag, bool) or not flag or not -(2**31) <= flag < 2**31:
        _refuse("flag", flag, "an integer of 32 bits that is not 0")
    for field in ("company", "new_kv", "pad_out", "apart", "causal", "cross", "batch_invariant"):
        if not isinstance(case.value(field), bool):
            _refuse(field, case.value(field), "true or false")
    if case.ask.operands not in (None, *DTYPES):
        _refuse("operands", case.ask.operands, ", ".join(map(str, DTYPES)) + ", none")
    if not isinstance(case.heads, tuple) or min(case.heads) < 1 or max(case.heads) > 2**12:
        _refuse("heads", case.heads, "query heads/KV heads, each from 1 to 4096")


def _lengths(case: Case) -> None:
    if not isinstance(case.lens, tuple):
        _refuse("lens", case.lens, "query length/sequence length of each sequence")
    for query_len, seq_len in case.lens:
        if not (0 <= query_len <= 2**24 and 0 <= seq_len <= 2**24):
            _refuse("lens", f"{query_len}/{seq_len}", "lengths from 0 to 16777216")


def _per_sequence(case: Case) -> None:
    """What a case says of each sequence, or of each token of a tree."""
    number, (tree, spans, flags) = len(case.lens), (case.ask.tree, case.ask.spans, case.ask.non_causal)
    if isinstance(tree, int) and not 1 <= tree <= 1024:
        _refuse("tree", tree, "1 to 1024 tokens")
    if isinstance(tree, tuple) and (not tree or len(tree) > 1024 or any(not -1 <= p < i for i, p in enumerate(tree))):
        _refuse("tree", tree, "of each token the parent, a token before it, or -1")
    if isinstance(spans, int) and not 1 <= spans <= 2**24:
        _refuse("spans", spans, "1 to 16777216 tokens")
    if isinstance(spans, tuple) and len(spans) != number:
        _refuse("spans", f"{len(spans)} sequences'", f"those of {number} sequences")
    if isinstance(spans, tuple) and any(not -(2**31) <= n < 2**31 for pairs in spans for pair in pairs for n in pair):
        _refuse("spans", spans, "positions of 32 bits")
    if flags not in (None, ENCODERS) and (not isinstance(flags, tuple) or not set(flags) <= set(range(number))):
        _refuse("non_causal", flags, f"numbers of sequences from 0 to {number - 1}")


def _size(case: Case) -> None:
    shape, tokens = case.shape, sum(query_len for query_len, _ in case.lens) + case.pad_tokens
    pages = sum(cdiv(seq_len, shape.block_size) for _, seq_len in case.lens) + case.spare_pages
    lanes = shape.num_kv_heads * (shape.head_size + shape.value_lanes)
    wide = max((cdiv(seq_len, shape.block_size) for _, seq_len in case.lens), default=0) + case.extra_columns
    sizes = {
        "K and V": pages * shape.block_size * lanes * shape.cache_dtype.itemsize,
        "queries": tokens * shape.num_query_heads * (shape.head_size + shape.value_lanes) * 4,
        "block table": len(case.lens) * wide * 8,
    }
    for name, found in sizes.items():
        if found > MOST_BYTES:
            _refuse(name, f"{found} bytes", f"at most {MOST_BYTES}")
    if (logits := sum(q * s for q, s in case.lens) * shape.num_query_heads) > MOST_LOGITS:
        _refuse("logits", logits, f"at most {MOST_LOGITS}")


def ensure_in_range(case: Case) -> None:
    """The part of `ensure_possible` that builds nothing."""
    _ranges(case)
    _lengths(case)
    _per_sequence(case)


def ensure_possible(case: Case) -> None:
    """Raise SpecError naming what a case of an expression has and cannot have."""
    ensure_in_range(case)
    if case.large:
        return
    try:
        _size(case)
        validate(*build(case))
    except SpecError as error:
        if error.argument == "case":
            raise
        raise SpecError("case", error.argument, f"{error.allowed} (found {error.found})"[:120]) from error
    except (ValueError, RuntimeError, TypeError, IndexError, OverflowError) as error:
        raise SpecError("case", case.name, f"fields that go together: {error}"[:160]) from error
