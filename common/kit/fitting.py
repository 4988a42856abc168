"""Fit a case of the axes to one kernel: switch off undeclared features, and replace sizes outside its limits.

So each kernel meets every value, pair and triple of what it has (`common.cases.axes`), and no case is lost because of
an unrelated feature. Named cases stay as they are: the kit counts them as unsupported.
"""

import zlib
from collections.abc import Collection, Mapping
from typing import Any

import torch

from common.cases.case import Case
from common.spec import Layout
from common.spec.kernel import asked_of_shape

# member of SUPPORTS -> how to switch it off
_OFF: dict[str, dict[str, Any]] = {
    "sliding_window": {"sliding_window": None}, "softcap": {"softcap": None}, "sinks": {"sinks": None},
    "alibi": {"alibi": None}, "alibi_sqrt": {"alibi": None}, "chunked_local": {"chunk": None, "chunk_lookback": 0},
    "prefix_lm": {"spans": None}, "causal_per_sequence": {"non_causal": None}, "tree_bias": {"tree": None},
    "non_causal": {"causal": True}, "fp8_kv": {"kv_dtype": None, "scales": None},
    "int8_kv": {"kv_dtype": None, "scales": None}, "fp8_query": {"fp8_query": None, "scales": None},
    "fp8_out": {"out_dtype": None}, "value_size": {"value_size": None}, "batch_invariant": {"batch_invariant": False},
    "x_packed": {"layout": Layout.PAGED},
}  # fmt: skip
_SIZES = {"head_size": "head_size", "block_size": "block_size", "dtype": "dtype"}  # of LIMITS -> field
MOST_HEADS = 96
MOST_SPARE, FEW_SPARE = 2**27, 40  # bytes of unowned pages, and how many pages remain where there are more


def _turn(case: Case, values: Collection[Any]) -> Any:
    """One of some values, chosen by the case's name."""
    return list(values)[zlib.crc32(case.name.encode()) % len(values)]


def _narrow(case: Case) -> Case:
    """The case with heads of at most 256 lanes, for K and V."""
    halves = {"head_size": case.head_size, "value_size": case.value_size}
    return case.but(**{name: size // 16 * 8 for name, size in halves.items() if size and size > 256})


def _self_attention(case: Case) -> Case:
    """The case without `cross`, whose sequences may have fewer keys than queries."""
    return case.but(cross=False, lens=tuple((q, max(q, n) if n else 0) for q, n in case.lens))


def _one_way(case: Case) -> Case:
    """The case for a kernel that is never causal: not causal, without features that need it."""
    return case.but(causal=False, chunk=None, chunk_lookback=0, spans=None, non_causal=None, tree=None)


def supported(case: Case, supports: Collection[str]) -> Case:
    """The case with the features outside of SUPPORTS switched off."""
    if "cross" in case.asked and "cross" not in supports:
        case = _self_attention(case)
    if "causal" in case.asked and "causal" not in supports and "non_causal" in supports:
        case = _one_way(case)
    for member in sorted(case.asked - set(supports)):
        case = case.but(**_OFF.get(member, {}))
    if "head_size_512" in asked_of_shape(case.shape) and "head_size_512" not in supports:
        case = _narrow(case)
    return case


def limited(case: Case, limits: Mapping[str, Any]) -> Case:
    """The case with sizes that LIMITS allow in place of others, in turn."""
    for name, field in _SIZES.items():
        allowed = [getattr(torch, one) if name == "dtype" else one for one in limits.get(name, ())]
        if allowed and case.value(field) not in allowed:
            case = case.but(**{field: _turn(case, allowed)})
    ratios, (query, kv) = limits.get("queries_per_kv"), case.heads
    if ratios and query // kv not in ratios:
        ratio = _turn(case, ratios)
        kv = max(1, min(kv, MOST_HEADS // ratio))
        case = case.but(heads=(ratio * kv, kv))
    longest = limits.get("max_query_len")
    if longest and any(q > longest for q, _ in case.lens):
        case = case.but(lens=tuple((min(q, longest), n) for q, n in case.lens))
    if "operands" in limits and str(case.ask.operands).removeprefix("torch.") not in limits["operands"]:
        case = case.but(operands=None)
    lanes = case.heads[1] * (case.head_size + (case.value_size or case.head_size))
    dear = case.spare_pages * case.block_size * lanes * case.dtype.itemsize > MOST_SPARE
    return case.but(spare_pages=FEW_SPARE) if dear else case


def fitted(case: Case, supports: Collection[str], limits: Mapping[str, Any]) -> Case:
    """The case for a kernel with these features and LIMITS."""
    return limited(supported(case, supports), limits)
