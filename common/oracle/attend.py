"""Dense attention of a few rows and KV heads in float64: the arithmetic of `common.oracle.reference`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """What some rows and KV heads of a sequence attend to, float64.

    query [rows, heads, group, size]; key [keys, heads, size]; value [keys, heads, value size]; seen bool [rows, keys];
    bias [heads, group, rows, keys], each but the last two possibly 1, or None; sinks [heads, group] or None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    seen: Tensor
    bias: Tensor | None
    sinks: Tensor | None


def _logits(at: Rows, scale: float, softcap: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [heads, group, rows, keys] with -inf where a key is hidden, `logit_size` and `bias_size`."""
    rows, heads, group, size = at.query.shape
    key = at.key.permute(1, 2, 0)  # [heads, size, keys]
    logits = (at.query.permute(1, 2, 0, 3).reshape(heads, group * rows, size) @ key).view(heads, group, rows, -1)
    logits *= scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    hidden = ~at.seen
    longest = key.norm(dim=1)[:, None].masked_fill(hidden, 0.0).amax(-1)  # [heads, rows]
    unrelated = at.query.norm(dim=-1).permute(1, 2, 0) * longest[:, None] * scale / math.sqrt(size)
    logit_size = torch.maximum(logits.abs().masked_fill(hidden, 0.0).amax(-1), unrelated)
    bias_size = torch.zeros_like(logit_size)
    if at.bias is not None:
        logits = logits + at.bias
        bias_size += at.bias.abs().masked_fill(hidden, 0.0).amax(-1)
    return logits.masked_fill(hidden, -math.inf), logit_size, bias_size


def attend(at: Rows, scale: float, softcap: float | None) -> dict[str, Tensor]:
    """The fields of `Expected` for some rows and KV heads, with the group axis where they have query heads.

    A NaN or Inf in V becomes NaN in the rows that see it and, unlike 0 * NaN in a matmul, in no other.
    """
    rows, heads, group, _ = at.query.shape
    finite = at.value.isfinite()
    bad, value = ~finite.transpose(0, 1), at.value.masked_fill(~finite, 0.0).transpose(0, 1)  # [heads, keys, size]
    logits, logit_size, bias_size = _logits(at, scale, softcap)
    sink = at.query.new_full((heads, group), -math.inf) if at.sinks is None else at.sinks
    sink = sink[:, :, None].expand(heads, group, rows)
    peak = torch.maximum(logits.amax(-1), sink)
    weights = torch.exp(logits - peak[..., None])
    denominator = weights.sum(-1) + torch.exp(sink - peak)
    weights = (weights / denominator[..., None]).view(heads, group * rows, -1)

    def by_token(array: Tensor) -> Tensor:  # [heads, group * rows, size] -> [rows, heads, group, size]
        return array.view(heads, group, rows, -1).permute(2, 0, 1, 3)

    seen_by_all = at.seen.double().expand(heads, -1, -1)
    out = by_token(weights @ value)
    if bool(bad.any()):
        out = out.masked_fill((seen_by_all @ bad.double() > 0).transpose(0, 1)[:, :, None], math.nan)
    return {
        "out": out,
        "lse": (peak + torch.log(denominator)).permute(2, 0, 1),
        "weighted": by_token(weights @ value.abs()),
        "weighted_rms": by_token((weights.square() @ value.square()).sqrt()),
        "visible": (seen_by_all @ value.abs()).transpose(0, 1),
        "visible_rms": (seen_by_all @ value.square()).sqrt().transpose(0, 1),
        "denominator": denominator.permute(2, 0, 1),
        "logit_size": logit_size.permute(2, 0, 1),
        "bias_size": bias_size.permute(2, 0, 1),
    }
