"""Which numbers kernels carry: within these no finite input ends in NaN.

Kernels compute logits in float32, times log2 e, and subtract. An infinite logit would give inf - inf, and a factor that
GPUs flush to 0, one below the least normal number, 0 * inf. A logit is a sum of q . k times all scales, a slope times a
distance, and a bias: each is at most 2^125, so that the sum stays below 2^127, and below 2^128 in base 2. Nobody reads
q . k: a query and keys whose product is beyond 2^125, before or after the scales, end in NaN.
"""

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


RANGES = {
    "softmax_scale": Range(2.0**-126, 2.0**64),
    "softcap": Range(2.0**-30, 2.0**125),  # logits are divided by it
    "alibi_slopes": Range(-(2.0**94), 2.0**94),  # times a distance below 2^31
    "tree_bias": Range(-(2.0**125), 2.0**125),  # or -inf off the diagonal: a hidden key
    "sinks": Range(-(2.0**127), 2.0**127),  # a logit by itself; or -inf: no sink
    "query_scale": Range(2.0**-126, 2.0**64),
    "key_scale": Range(2.0**-126, 2.0**64),
    "value_scale": Range(2.0**-126, 2.0**64),
    "out_scale": Range(2.0**-126, 2.0**64),
}
# softmax_scale * query_scale * key_scale, one number to a kernel; scales per token are not in it
PRODUCT = Range(2.0**-126, 2.0**96)
