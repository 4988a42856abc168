"""Decide which features are well formed and which contradict each other, in this one place.

A contradiction is a SpecError whose argument is one feature and whose `found` names the other.
"""

from typing import NamedTuple

import torch

from common.spec.paged_batch import DTYPES, E4M3, FP8, Features, PagedBatch, SpecError, is_per_token
from common.spec.plain import shown
from common.spec.ranges import PRODUCT, RANGES
from common.spec.refusals import expect, expect_flag, expect_fp8, expect_integer, expect_number, expect_operand

# Pairs that may not be asked for together. "not causal" is causal=False without `cross`.
CONTRADICTIONS: tuple[tuple[str, str], ...] = (
    ("cross", "causal"),
    ("cross", "sliding_window"),
    ("cross", "alibi_slopes"),
    ("cross", "chunk"),
    ("cross", "spans"),
    ("cross", "causal_per_sequence"),
    ("cross", "tree_bias"),
    ("chunk", "sliding_window"),
    ("chunk", "not causal"),
    ("chunk", "causal_per_sequence"),
    ("spans", "not causal"),
    ("causal_per_sequence", "not causal"),
    ("tree_bias", "not causal"),
    ("tree_bias", "causal_per_sequence"),
    ("tree_bias", "spans"),
)
NEEDS = (("alibi_sqrt", "alibi_slopes"), ("chunk_lookback", "chunk"))  # (feature, what it depends on)


def is_on(features: Features, name: str) -> bool:
    """Whether a field asks for something; `not causal` as in CONTRADICTIONS."""
    if name == "not causal":
        return not features.causal and not features.cross
    value = getattr(features, name)
    return value is not None and value is not False and not (name == "chunk_lookback" and value == 0)


def _said(features: Features, name: str) -> str:
    if name == "not causal":
        return "causal=False"
    value = getattr(features, name)
    return name if isinstance(value, torch.Tensor) else f"{name}={shown(value)}"


def contradiction(features: Features) -> tuple[str, str] | None:
    """Two features that exclude each other, or one and what it lacks; None where there is no contradiction.

    Looks at which fields are set, never at their values.
    """
    for one, other in CONTRADICTIONS:
        if is_on(features, one) and is_on(features, other):
            return one, other
    return next(((one, other) for one, other in NEEDS if is_on(features, one) and not is_on(features, other)), None)


def _expect_no_contradiction(features: Features) -> None:
    pair = contradiction(features)
    if pair in NEEDS:
        raise SpecError(pair[0], f"{_said(features, pair[0])} without {pair[1]}", f"{pair[1]} beside it")
    if pair:
        raise SpecError(pair[0], " beside ".join(_said(features, name) for name in pair), "one of the two")


def _expect_masks(batch: PagedBatch, features: Features) -> None:
    """Check the operands of features that change the mask or the logits."""
    heads, seqs = (batch.query.shape[1],), batch.num_seqs
    if features.alibi_slopes is not None:
        expect_operand(features.alibi_slopes, "alibi_slopes", (heads,), (torch.float32,), batch)
    if features.spans is not None:
        expect_operand(features.spans, "spans", ((seqs, -1, 2),), (torch.int32,), batch)
    if features.causal_per_sequence is not None:
        kinds = (torch.int32, torch.bool)
        expect_operand(features.causal_per_sequence, "causal_per_sequence", ((seqs,),), kinds, batch)
    if (bias := features.tree_bias) is not None:
        expect_operand(bias, "tree_bias", ((-1, -1),), DTYPES, batch)
        expect(bias.shape[0] == bias.shape[1], "tree_bias", tuple(bias.shape), "[N, N]")
        expect(bias.stride(1) == 1 or bias.shape[1] == 1, "tree_bias", f"strides {bias.stride()}", "rows contiguous")
    if features.cross and batch.key is not None:
        raise SpecError("cross", "cross beside key and value", "one of the two: the step's tokens add no keys")


def _expect_scales(batch: PagedBatch, features: Features) -> None:
    """Check scales: they need quantised tensors, int8 needs one for each token and head, and a scale of `out` makes it
    fp8."""
    shape = batch.shape
    blocks, heads = batch.key_cache.shape[0], shape.num_kv_heads
    whole = (blocks, shape.block_size, heads)
    allowed = ((1,), (heads,), whole) if shape.dtype not in FP8 else ((1,), (heads,))
    if shape.cache_dtype == torch.int8:
        allowed = (whole,)
    for name in ("query", "key_cache"):
        expect_fp8(getattr(batch, name), name)
    for name in ("key_scale", "value_scale"):
        scale = getattr(features, name)
        if scale is not None:
            expect(shape.quantised, name, f"{name} beside a cache of {shape.cache_dtype}", "a quantised cache, or None")
            expect_operand(scale, name, allowed, (torch.float32,), batch)
        elif shape.cache_dtype == torch.int8:
            raise SpecError(name, "None beside a cache of torch.int8", f"float32 {list(whole)}")
    if features.query_scale is not None:
        expect(shape.dtype in FP8, "query_scale", f"query_scale beside a query of {shape.dtype}", "an fp8 query")
        expect_operand(features.query_scale, "query_scale", ((1,),), (torch.float32,), batch)
    if features.out_scale is not None:
        expect_operand(features.out_scale, "out_scale", ((1,),), (torch.float32,), batch)


def check_numbers(features: Features) -> None:
    """Flags, numbers and contradictions: what can be said of features without a batch. Raises SpecError."""
    f = features
    expect(isinstance(f, Features), "features", type(f).__name__, "a Features")
    expect_flag(f.causal, "causal")
    if f.sliding_window is not None:
        expect_integer(f.sliding_window, "sliding_window", 1)
    if f.softcap is not None:
        expect_number(f.softcap, "softcap", RANGES["softcap"], "None or ")
    if f.plain:
        return
    for name in ("alibi_sqrt", "cross", "batch_invariant"):
        expect_flag(getattr(f, name), name)
    _expect_no_contradiction(f)
    if f.chunk is not None:
        expect_integer(f.chunk, "chunk", 1)
    expect_integer(f.chunk_lookback, "chunk_lookback", 0)


def check_features(batch: PagedBatch, features: Features) -> None:
    """Types, shapes, dtypes, devices and contradictions; reads no device memory. Raises SpecError."""
    f = features
    check_numbers(f)
    if f.sinks is not None:
        expect_operand(f.sinks, "sinks", ((batch.query.shape[1],),), DTYPES, batch)
    if not f.plain:
        _expect_masks(batch, f)
    if not f.plain or batch.key_cache.dtype not in DTYPES:
        _expect_scales(batch, f)


def output_dtypes(query: torch.dtype, out_scale: torch.Tensor | None) -> tuple[torch.dtype, ...]:
    """The dtypes that `out` may have: fp8 exactly where it has a scale; else the query's, or for an fp8 query the
    caller's choice."""
    if out_scale is not None:
        return E4M3
    return DTYPES if query in FP8 else (query,)


class Condition(NamedTuple):
    """bad [...]: which entries of `values`, of the same shape, are not `allowed`."""

    name: str
    bad: torch.Tensor
    values: torch.Tensor
    allowed: str


def value_conditions(batch: PagedBatch, features: Features) -> list[Condition]:
    """The conditions on the values of the features' tensors, computed on their device without waiting."""
    found = []

    def judge(name: str, bad: torch.Tensor, allowed: str) -> None:
        if (values := getattr(features, name)).numel():
            found.append(Condition(name, bad, values, allowed))

    if (sinks := features.sinks) is not None:
        allowed = RANGES["sinks"]
        judge("sinks", allowed.lacks(sinks) & ~sinks.isneginf(), f"{allowed}, or -inf, which is no sink")
    if (slopes := features.alibi_slopes) is not None:
        judge("alibi_slopes", RANGES["alibi_slopes"].lacks(slopes), str(RANGES["alibi_slopes"]))
    if (bias := features.tree_bias) is not None:
        own = torch.eye(bias.shape[0], dtype=torch.bool, device=bias.device)
        allowed = RANGES["tree_bias"]
        judge("tree_bias", allowed.lacks(bias) & (own | ~bias.isneginf()), f"{allowed}, or -inf off the diagonal")
    if (spans := features.spans) is not None:
        judge("spans", _overlapping(spans), "spans of one sequence that do not overlap, from 0 on")
    for name in ("key_scale", "value_scale", "query_scale", "out_scale"):
        scale = getattr(features, name)
        if scale is not None and not is_per_token(scale):  # per-token scales are arbitrary in slots that nobody owns
            judge(name, RANGES[name].lacks(scale), str(RANGES[name]))
    of_logits = [s for s in (features.query_scale, features.key_scale) if s is not None and not is_per_token(s)]
    if of_logits:
        product = batch.softmax_scale * torch.stack([*torch.broadcast_tensors(*of_logits)]).double().prod(0)
        name = "key_scale" if of_logits[-1] is features.key_scale else "query_scale"
        beyond = (product < PRODUCT.least) | (product > PRODUCT.most)
        judge(name, beyond, f"with softmax_scale {batch.softmax_scale} and query_scale a product {PRODUCT}")
    return found


def _overlapping(spans: torch.Tensor) -> torch.Tensor:
    """bool [num_seqs, max_spans, 2]: spans that begin before 0, or that share a position with another."""
    first, last = spans.unbind(-1)
    real = first < last
    shared = (first[:, :, None] <= last[:, None]) & (first[:, None] <= last[:, :, None])
    shared &= real[:, :, None] & real[:, None] & ~torch.eye(spans.shape[1], dtype=torch.bool, device=spans.device)
    return (real & ((first < 0) | shared.any(-1)))[..., None].expand(spans.shape)
