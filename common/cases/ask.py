"""The tensors that features bring: slopes, spans, flags, trees and scales, drawn for a case and laid between guards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from common.cases.batch import owned_slots
from common.oracle.integrity import Guards
from common.spec import Features, PagedBatch
from common.spec.features import OPERANDS
from common.spec.metadata import lens_of
from common.spec.quantise import SPREAD

ScaleForm = Literal["one", "heads", "tokens"]  # of K and V: one number, one per KV head, one per token and KV head
Spans = tuple[tuple[tuple[int, int], ...], ...]  # per sequence, (first, last) of each
NO_SPAN = (0, 0)


def alibi_slopes(num_heads: int) -> list[float]:
    """Those of the ALiBi paper (Press et al., 2022): 2^(-8 i / n) for the largest power of two n of heads, and every
    second one of twice as many for the heads beyond."""
    n = 1 << (num_heads.bit_length() - 1)
    near = [2.0 ** (-8.0 * i / n) for i in range(1, n + 1)]
    return near + [2.0 ** (-4.0 * i / n) for i in range(1, 2 * (num_heads - n) + 1, 2)]


def tree_bias(parents: Sequence[int], generator: torch.Generator) -> Tensor:
    """float32 [N, N] of a draft tree: token i sees itself and its ancestors, -1 being the context; what it sees has a
    random bias of about 1."""
    size = len(parents)
    bias = torch.full((size, size), -math.inf)
    for token in range(size):
        seen = token
        while seen >= 0:
            bias[token, seen] = torch.randn((), generator=generator)
            seen = parents[seen]
    return bias


def spans_tensor(spans: Spans) -> Tensor:
    """int32 [num_seqs, max_spans, 2], at least one span wide, padded with what is none."""
    width = max(1, *(len(pairs) for pairs in spans)) if spans else 1
    padded = [[*pairs, *[NO_SPAN] * (width - len(pairs))] for pairs in spans]
    return torch.tensor(padded, dtype=torch.int32).view(len(spans), width, 2)


def features_of(asked: Any, **drawn: Tensor | None) -> Features:
    """What `asked` asks for and what was drawn for it: a `common.cases.case.Case` or a
    `compare.workloads.workload.Ask`, which say all that is no tensor in fields of the same names."""
    return Features(
        asked.causal and not asked.cross, asked.sliding_window, asked.softcap, alibi_sqrt=asked.alibi == "sqrt",
        chunk=asked.chunk, chunk_lookback=asked.chunk_lookback, cross=asked.cross,
        batch_invariant=asked.batch_invariant, **drawn,
    )  # fmt: skip


def _scale(form: ScaleForm, batch: PagedBatch, size: float, generator: torch.Generator) -> Tensor:
    """Scales from `size` / 2 to 2 `size`; NaN where nobody owns the token."""
    blocks, page = batch.by_token()[0].shape[:2]
    heads = batch.shape.num_kv_heads
    sizes = {"one": (1,), "heads": (heads,), "tokens": (blocks, page, heads)}[form]
    scale = size * torch.exp2(2 * torch.rand(sizes, generator=generator) - 1)
    if form == "tokens":
        lens = lens_of(batch.query_start_loc, batch.seq_lens)
        scale[~owned_slots(lens, [batch.block_table], blocks, page)] = math.nan
    return scale.to(batch.device)


def with_scales(
    features: Features, batch: PagedBatch, form: ScaleForm | None, factor: float, generator: torch.Generator
) -> Features:
    """Scales that make elements of K numbers of about 1 and those of V of about `factor`, and one of an fp8 query."""
    if form is not None:
        size = 1.0 / SPREAD[batch.shape.cache_dtype]
        key, value = (_scale(form, batch, size * gain, generator) for gain in (1.0, factor))
        features = replace(features, key_scale=key, value_scale=value)
    if batch.query.dtype.itemsize == 1:
        features = replace(features, query_scale=torch.tensor([0.75], device=batch.device))
    return features


def between_guards(features: Features, guards: Guards, apart: bool) -> Features:
    """The same features, their tensors between guards; apart: those of two dimensions and more with gaps of garbage."""
    made = {}
    for name in OPERANDS:
        tensor = getattr(features, name)
        if isinstance(tensor, Tensor):
            made[name] = _apart(tensor, name, guards) if apart and tensor.dim() > 1 else guards.copy(name, tensor)
    return replace(features, **made)


def _apart(tensor: Tensor, name: str, guards: Guards) -> Tensor:
    """The same values, three elements of garbage behind each row."""
    *outer, size = tensor.shape
    wide = guards.full(name, (*outer, size + 3), tensor.dtype, 2**30 if tensor.dtype == torch.int32 else math.nan)
    return wide[..., :size].copy_(tensor)
