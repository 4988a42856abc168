"""Mutants whose results are slightly wrong, always in one direction, and mutants that lose a NaN or Inf which a row
sees."""

import torch
from torch import Tensor

from common.cases.named import BY_NAME
from common.cases.signed import LONG, ROWS
from common.mutants.emulation import At
from common.mutants.mutant import NO_EDIT, Probe, wrong

_ROWS = Probe(ROWS[0], tile=64)
_BY_NAME = {case.name: case for case in (*ROWS, *LONG)}
_FP8 = Probe(_BY_NAME["signed-16400-fp8-query"], tile=64)


def truncated(x: Tensor, bits: int) -> Tensor:
    """x in float32 with its fraction truncated to `bits` bits."""
    return (x.contiguous().view(torch.int32) & -(1 << (23 - bits))).view(torch.float32)


def _scaled(gain: float, *where: object, seq: int | None = None):
    """`finish` with the rows [heads, rows] at `where` times a gain, of one sequence or of all."""

    def finish(at: At, acc: Tensor, l: Tensor) -> Tensor:
        gains = torch.ones_like(l)
        gains[where or ...] = gain if seq in (None, at.seq) else 1.0
        return gains[..., None] * NO_EDIT.finish(at, acc, l)

    return finish


def _cut(at: At, p: Tensor, dtype: torch.dtype) -> Tensor:
    """P in fp8, truncated instead of rounded."""
    near = p.to(dtype)
    below = (near.view(torch.uint8) - (near.float() > p).byte()).view(dtype)
    return torch.where(p > 0.0, below.float(), 0.0).to(dtype)


def _hidden_where_nan(at: At, logits: Tensor, softcap: float | None) -> Tensor:
    return NO_EDIT.score(at, logits, softcap).masked_fill(logits.isnan(), float("-inf"))


BIASED = (
    wrong("one_percent_too_small", "all", _ROWS, finish=_scaled(0.99)),
    wrong("one_percent_too_large", "all", _ROWS, finish=_scaled(1.01)),
    wrong("one_head_too_small", "one head", _ROWS, finish=_scaled(0.99, 5)),
    wrong("one_kv_head_too_large", "one head", _ROWS, finish=_scaled(1.01, slice(4, None))),
    wrong("one_sequence_too_small", "one sequence", _ROWS, finish=_scaled(0.99, seq=1)),
    wrong("one_row_too_small", "one sequence", _FP8, finish=_scaled(0.99, 1, -1, seq=0)),  # of one head; P is fp8
    wrong("lse_too_large", "all", _ROWS, lse=lambda at, lse: lse + 0.01),
    # 1.6% at 16,400 keys
    wrong("smaller_the_more_keys", "long", _FP8,
          finish=lambda at, acc, l: (1.0 - 1e-6 * at.seq_len) * NO_EDIT.finish(at, acc, l)),
    # Hopper's fp8 accumulator holds the sum over all keys, truncated after each 32 keys. This project had that bug.
    wrong("short_accumulator", "long", _FP8.but(tile=32), accumulator=lambda at, acc: truncated(acc, 13)),
    wrong("probabilities_cut", "all", _FP8, rounded=_cut),
    wrong("probabilities_cut_in_bf16", "long", Probe(_BY_NAME["signed-16400-bf16"], tile=64),
          rounded=lambda at, p, dtype: truncated(p, 7).to(dtype)),
    wrong("accumulator_of_positives_in_bf16", "long", Probe(_BY_NAME["signed-16400-int8"], tile=64),
          accumulator=lambda at, acc: acc.bfloat16().float()),
    wrong("nan_in_values_zeroed", "all", Probe(BY_NAME["values-seen-nan"]),
          stored=lambda at, kind, x: x.float().nan_to_num(0.0) if kind == "value" else x),
    wrong("inf_in_values_cut", "all", Probe(BY_NAME["values-seen-inf"]),
          stored=lambda at, kind, x: x.float().clamp(-65504.0, 65504.0) if kind == "value" else x),
    wrong("nan_in_keys_hides_them", "all", Probe(BY_NAME["keys-seen-nan"]), score=_hidden_where_nan),
    # e4m3 becomes fp16 by a shift, which turns its NaN into the number one step above 448
    wrong("nan_of_fp8_is_its_largest_number", "all", Probe(BY_NAME["fp8-values-seen-nan"]),
          stored=lambda at, kind, x: x.float().nan_to_num(480.0)),
)  # fmt: skip
