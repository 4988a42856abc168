"""What a row asks of attention beyond plain causal rows, before there are tensors; they are drawn beside a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

from common.cases.ask import ScaleForm, alibi_slopes, features_of, spans_tensor, tree_bias, with_scales
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import asked_of_shape
from common.spec.metadata import lens_of
from common.spec.paged_batch import DTYPES

FIRST = ("causal", "sliding_window", "softcap", "sinks")  # asked for since there are rows: always part of their ids
FP8_OUT = torch.float8_e4m3fn
Lens = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Ask:
    """`common.spec.Features` before there are tensors.

    sinks: one near ln(keys) on every head. alibi: slopes of the ALiBi paper. spans: an image of so many tokens at the
    start of every sequence's new tokens. encoders: every second sequence is not causal. tree: so many draft tokens, two
    branches at each. scales: form of those of a quantised cache (`AttentionShape.kv_dtype`). fp8_out: e4m3, scale 1/64.
    """

    causal: bool = True
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    alibi: Literal["linear", "sqrt"] | None = None
    chunk: int | None = None
    chunk_lookback: int = 0
    spans: int | None = None
    encoders: bool = False
    cross: bool = False
    tree: int | None = None
    scales: ScaleForm | None = None
    fp8_out: bool = False
    batch_invariant: bool = False

    def names(self) -> tuple[str, ...]:
        """What differs from plain causal attention, as text."""
        asked = [] if self.causal else ["non_causal"]
        asked += [f"{k}={v}" for k in ("sliding_window", "softcap") if (v := getattr(self, k)) is not None]
        asked += ["sinks"] * self.sinks
        for field in fields(self)[len(FIRST) :]:
            value = getattr(self, field.name)
            if value != field.default:
                asked.append(field.name if value is True else f"{field.name}={value}")
        return tuple(asked)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; what is not asked for is left out, but for the first four."""
        named = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in named.items() if name in FIRST or value != default}

    def members(self, shape: AttentionShape) -> frozenset[str]:
        """What a kernel's SUPPORTS must have for it."""
        return self._sketch().names() | asked_of_shape(shape)

    @property
    def sees(self) -> int:
        """`Features.sees`."""
        return self._sketch().sees

    def _sketch(self) -> Features:
        """The features with tensors of nothing."""
        return features_of(self, **{name: torch.empty(0) for name, on in self._drawn().items() if on})

    def _drawn(self) -> dict[str, bool]:
        """The features that are tensors, whatever the shape of the cache."""
        return {
            "sinks": self.sinks,
            "alibi_slopes": self.alibi is not None,
            "spans": self.spans is not None,
            "causal_per_sequence": self.encoders,
            "tree_bias": self.tree is not None,
            "out_scale": self.fp8_out,
        }

    def _draw(self, name: str, lens: Lens, heads: int, keys: int, generator: torch.Generator) -> torch.Tensor:
        if name == "sinks":  # near ln(keys) one takes about half of a row's mass, so that losing it shows
            return math.log(max(keys, 1)) + torch.randn(heads, generator=generator)
        if name == "alibi_slopes":
            return torch.tensor(alibi_slopes(heads))
        if name == "spans":
            firsts = [max(seq_len - query_len, 0) for query_len, seq_len in lens]
            return spans_tensor(tuple(((first, first + self.spans - 1),) for first in firsts))
        if name == "causal_per_sequence":
            return (torch.arange(len(lens)) % 2).to(torch.int32)
        if name == "tree_bias":
            return tree_bias([(token - 1) // 2 if token else -1 for token in range(self.tree)], generator)
        return torch.tensor([1.0 / 64])

    def features(self, batch: PagedBatch, seed: int, keys: int | None = None) -> Features:
        """Features of a batch, on its device. keys: seen by a row, for the sinks; None: of the longest sequence."""
        generator = torch.Generator().manual_seed(seed)
        lens = lens_of(batch.query_start_loc, batch.seq_lens)
        keys = batch.stats.max_seq_len if keys is None else keys
        heads = batch.shape.num_query_heads
        drawn = [name for name, on in self._drawn().items() if on]
        tensors = {name: self._draw(name, lens, heads, keys, generator).to(batch.device) for name in drawn}
        return with_scales(features_of(self, **tensors), batch, self.scales, 1.0, generator)

    def hidden(self) -> int:
        """Pairs of a draft tree that no token sees: of a token and one before it that is no ancestor."""
        depths = [token.bit_length() for token in range(1, (self.tree or 0) + 1)]
        return sum(range(1, len(depths) + 1)) - sum(depths)


def out_dtype(shape: AttentionShape, scaled: bool) -> torch.dtype:
    """What a launch writes: e4m3 where the output is `scaled`, else the query's dtype, and bf16 for an fp8 query."""
    if scaled:
        return FP8_OUT
    return shape.dtype if shape.dtype in DTYPES else torch.bfloat16


def empty_output(batch: PagedBatch, features: Features) -> torch.Tensor:
    """[num_tokens, num_query_heads, value lanes] in `out_dtype`."""
    shape = batch.shape
    dtype = out_dtype(shape, features.out_scale is not None)
    return torch.empty((*batch.query.shape[:2], shape.value_lanes), dtype=dtype, device=batch.device)
