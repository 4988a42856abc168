"""The aspects of the specification that the capability matrix has rows for, and which named cases have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.cases.case import Case
from common.spec import Layout


def _power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _empty(case: Case) -> bool:
    return any(query_len == 0 or seq_len == 0 for query_len, seq_len in case.lens)


@dataclass(frozen=True)
class Aspect:
    """A row of the matrix. has: whether a case has it, whose cell is in this dtype. feature: as SUPPORTS names it."""

    name: str
    has: Callable[[Case, str], bool]
    feature: str | None = None


def _asked(name: str, member: str) -> Aspect:
    """Of the cases that ask for a member of SUPPORTS."""
    return Aspect(name, lambda case, _: case.refused is None and member in case.asked, member)


FEATURES = {
    "ALiBi": "alibi",
    "ALiBi by square roots": "alibi_sqrt",
    "chunks with lookback": "chunked_local",
    "spans (prefix-LM)": "prefix_lm",
    "causality per sequence": "causal_per_sequence",
    "cross attention": "cross",
    "tree bias": "tree_bias",
    "V of another head size": "value_size",
    "heads to 512": "head_size_512",
    "fp8 cache": "fp8_kv",
    "int8 cache": "int8_kv",
    "fp8 query": "fp8_query",
    "fp8 output": "fp8_out",
    "batch-invariant": "batch_invariant",
}
ASPECTS: tuple[Aspect, ...] = (
    Aspect("causal", lambda case, _: case.causal, "causal"),
    Aspect("not causal", lambda case, _: not case.causal, "non_causal"),
    Aspect("sliding window", lambda case, _: case.sliding_window is not None, "sliding_window"),
    Aspect("soft cap", lambda case, _: case.softcap is not None, "softcap"),
    Aspect("sinks", lambda case, _: case.sinks is not None, "sinks"),
    Aspect("LSE", lambda case, _: case.refused is None, "lse"),
    *(_asked(name, member) for name, member in FEATURES.items()),
    Aspect("bf16", lambda _, dtype: dtype == "bfloat16"),
    Aspect("fp16", lambda _, dtype: dtype == "float16"),
    Aspect("fp32", lambda _, dtype: dtype == "float32"),
    Aspect("a head size that is no power of two", lambda case, _: not _power_of_two(case.head_size)),
    Aspect("a GQA ratio that is no power of two", lambda c, _: not _power_of_two(c.heads[0] // c.heads[1])),
    Aspect("a GQA ratio above 16", lambda case, _: case.heads[0] // case.heads[1] > 16),
    Aspect("a page that is no power of two", lambda c, _: not _power_of_two(c.block_size)),
    Aspect("an interleaved cache", lambda case, _: case.style == "interleaved"),
    Aspect("an x-packed cache", lambda case, _: case.layout is Layout.X_PACKED, "x_packed"),
    Aspect("the step's new K and V handed over", lambda case, _: case.new_kv),
    Aspect("sequences without keys or queries", lambda case, _: _empty(case)),
    Aspect("rows of padding", lambda case, _: case.pad_tokens > 0),
    Aspect("wrong hints of the lengths", lambda case, _: "hints-" in case.name),
    Aspect("malformed batches refused by name", lambda case, _: case.refused is not None),
)
