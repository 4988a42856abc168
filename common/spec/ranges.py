"""Which numbers kernels carry: within these no finite input ends in NaN.

Kernels compute logits in float32, times log2 e, and subtract: an infinite logit, or a factor that GPUs flush to 0 as a
subnormal, ends in NaN. What a logit is made of has a range each, so that the sum stays below 2^127 and below 2^128 in
base 2:

- q . k, and q . k times all scales: up to 2^125. Nobody looks at Q and K; a query or a cache beyond it gives NaN;
- an ALiBi slope times a distance, which is below 2^31: slopes up to 2^94;
- a tree's bias: up to 2^125;
- a soft cap: up to 2^125, and from 2^-30 on, as logits are divided by it;
- a sink, which is a logit by itself: up to 2^127;
- a factor: from 2^-126, the least normal number, to 2^64; the softmax scale times the scales of Q and of K, which
  kernels multiply first, from 2^-126 to 2^96.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor


class Range(NamedTuple):
    """least to most, both 2 to a whole power, or their negatives."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"from {_power(self.least)} to {_power(self.most)}"

    def lacks(self, values: Tensor) -> Tensor:
        """bool: which are outside, NaN among them. In float32, for float16 has no such numbers."""
        values = values.float()
        return ~((values >= self.least) & (values <= self.most))


def _power(number: float) -> str:
    return f"{'-' if number < 0 else ''}2^{math.frexp(abs(number))[1] - 1}"


def _around_zero(most: float) -> Range:
    return Range(-most, most)


FACTOR = Range(2.0**-126, 2.0**64)
PRODUCT = Range(2.0**-126, 2.0**96)
SOFTCAP = Range(2.0**-30, 2.0**125)
SINK = _around_zero(2.0**127)
SLOPE = _around_zero(2.0**94)
BIAS = _around_zero(2.0**125)
