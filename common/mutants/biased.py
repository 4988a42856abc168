"""Mutants whose results are slightly wrong, always in one direction, and mutants that lose a NaN or Inf which a row
sees."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from common.cases.named import BY_NAME
from common.cases.signed import LONG, ROWS
from common.mutants.emulation import At, Edits
from common.mutants.mutant import Mutant, Named, registrar

BIASED: list[Mutant] = []
mutant = registrar(BIASED)

_ROWS = Named(ROWS[0], tile=64)
_BY_NAME = {case.name: case for case in (*ROWS, *LONG)}
_FP8 = Named(_BY_NAME["signed-16400-fp8-query"], tile=64)


def truncated(x: Tensor, bits: int) -> Tensor:
    """x in float32 with its fraction truncated to `bits` bits."""
    return (x.contiguous().view(torch.int32) & -(1 << (23 - bits))).view(torch.float32)


@mutant("all", _ROWS)
class OnePercentTooSmall(Edits):
    def finish(self, at, acc, l):
        return 0.99 * super().finish(at, acc, l)


@mutant("all", _ROWS)
class OnePercentTooLarge(Edits):
    def finish(self, at, acc, l):
        return 1.01 * super().finish(at, acc, l)


class _Part(Edits):
    """Scale the output by 0.99 in some heads or rows."""

    def some(self, at: At, gain: Tensor) -> None:
        raise NotImplementedError

    def finish(self, at: At, acc: Tensor, l: Tensor) -> Tensor:
        gain = torch.ones_like(l)
        self.some(at, gain)
        return gain[..., None] * super().finish(at, acc, l)


@mutant("one head", _ROWS)
class OneHeadTooSmall(_Part):
    def some(self, at, gain):
        gain[5] = 0.99


@mutant("one head", _ROWS)
class OneKvHeadTooLarge(_Part):
    def some(self, at, gain):
        gain[4:] = 1.01


@mutant("one sequence", _ROWS)
class OneSequenceTooSmall(_Part):
    def some(self, at, gain):
        gain[:] = 0.99 if at.seq == 1 else 1.0


@mutant("one sequence", _FP8)
class OneRowTooSmall(_Part):
    """Scale one row of one head by 0.99, where P is fp8."""

    def some(self, at, gain):
        gain[1, -1] = 0.99 if at.seq == 0 else 1.0


@mutant("all", _ROWS)
class LseTooLarge(Edits):
    def lse(self, at, lse):
        return lse + 0.01


@mutant("long", _FP8)
class SmallerTheMoreKeys(Edits):
    """Shrink the output with the number of keys: 1.6% at 16,400 keys."""

    def finish(self, at, acc, l):
        return (1.0 - 1e-6 * at.seq_len) * super().finish(at, acc, l)


@mutant("long", replace(_FP8, tile=32))
class ShortAccumulator(Edits):
    """Keep the sum over all keys in Hopper's fp8 accumulator, truncated after each 32 keys. This project had that
    bug."""

    def accumulator(self, at, acc):
        return truncated(acc, 13)


@mutant("all", _FP8)
class ProbabilitiesCut(Edits):
    """Truncate P to fp8 instead of rounding it."""

    def rounded(self, at, p, dtype):
        near = p.to(dtype)
        below = (near.view(torch.uint8) - (near.float() > p).byte()).view(dtype)
        return torch.where(p > 0.0, below.float(), 0.0).to(dtype)


@mutant("long", Named(_BY_NAME["signed-16400-bf16"], tile=64))
class ProbabilitiesCutInBf16(Edits):
    def rounded(self, at, p, dtype):
        return truncated(p, 7).to(dtype)


@mutant("long", Named(_BY_NAME["signed-16400-int8"], tile=64))
class AccumulatorOfPositivesInBf16(Edits):
    def accumulator(self, at, acc):
        return acc.bfloat16().float()


@mutant("all", Named(BY_NAME["values-seen-nan"]))
class NanInValuesZeroed(Edits):
    def stored(self, at, kind, x):
        return x.float().nan_to_num(0.0) if kind == "value" else x


@mutant("all", Named(BY_NAME["values-seen-inf"]))
class InfInValuesCut(Edits):
    def stored(self, at, kind, x):
        return x.float().clamp(-65504.0, 65504.0) if kind == "value" else x


@mutant("all", Named(BY_NAME["keys-seen-nan"]))
class NanInKeysHidesThem(Edits):
    def score(self, at, logits, softcap):
        return super().score(at, logits, softcap).masked_fill(logits.isnan(), float("-inf"))


@mutant("all", Named(BY_NAME["fp8-values-seen-nan"]))
class NanOfFp8IsItsLargestNumber(Edits):
    """Convert e4m3 to fp16 by a shift, which turns its NaN into the number one step above 448."""

    def stored(self, at, kind, x):
        return x.float().nan_to_num(480.0)
