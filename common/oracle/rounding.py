"""The rounding error of a declared precision: the symbols of the budgets in `common.oracle.tolerance`, for one batch
and its features.

u, eta: of P in the dtype that enters P.V (`probabilities_of`). In fp8, P is first multiplied by 256 (e4m3fn) or 128
(e4m3fnuz), which reduces the weight of its smallest subnormal by that factor. u_o, eta_o: of `out`.
P is relative to a row's maximum, or to that maximum rounded up to an integer in base 2, so that rescaling subtracts
exponents. In the second case the largest P exceeds 1/2, and each subnormal weighs up to twice as much (`SHIFTED`); u is
the same. A bf16 query over an 8-bit cache may be multiplied in fp16, which holds such a cache exactly, with P times
2^15. u stays that of bf16, eight times fp16's, but P below 2^-39 of its reference is lost, so eta is 2^-40, doubled.
Without that eta, a lane of V that is 0 in every heavy key would have to be right to 2^-8 of itself at 1e-13.
A scale of V for each token is multiplied into P, since V is stored without it. A P that is flushed then costs 2^-126 of
the stored V, at most 2^9 (`STORED`), for each key: `_lost_stored` adds this to eta_o. It counts below 1e-30 alone.
eps: of the products. fp32 operands declared as tf32 have 10 bits.

Sums of fp8 products. Hopper's tensor cores keep about 14 bits of such a sum, truncated, of 32 products at a time
(DeepSeek-V3, arXiv 2412.19437, 3.3.2). A kernel that keeps one such sum over the whole context loses more as the
context grows: 13% over 131,072 keys. A kernel should add the sum of each tile of PROMOTED = 128 keys (or lanes of q.k)
to a float32 sum. Then a sum is truncated four times, and the loss is 4 * 2^-13 of the tile's sum of |P V|, hence of A,
or of a logit, hence of S, for any context and head size: `sums` * u_acc, and `spread`. The worst case of one logit,
eps S (sqrt(lanes) + 8), counts the lanes of one such sum.

What a contract may allow instead of float32 (`common.spec.precision`):
- exp2 by a polynomial: the relative error of P is at most 8.77e-5 with the coefficients of FlashAttention 4
  (flash_attn/cute/utils.py, POLY_EX2 of degree 3; measured over [0, 1] in tests/common/oracle/test_precisions.py), so
  2^-13 here. An equal absolute error of the logit would change P as much, so it is added to delta.
- a fast tanh: a relative error of 1.113e-5 for MUFU.TANH (N. Juffa over all inputs,
  forums.developer.nvidia.com/t/173291), so 2^-16 of the capped logit, also added to delta.
- a running sum in bf16: one rounding of 2^-8 per tile of 64 keys, and one of the merge or the sink. All are errors of
  the denominator, which enters `out` and the LSE (`common.oracle.rows.sum_error` derives their size, also for a sum
  that begins with a sink).
`spread` is the combined effect of logit errors by tf32 or fp8 products that are independent across many keys; it lacks
the worst case's factor sqrt(lanes) + 8. tf32: truncation to 10 bits loses 2^-11 of each operand on average. That is a
factor of 1 - 2^-10 on the logit, and 0.41 * 2^-10 of the norm of its products around it: 1.5 * 2^-10 S.

Tensor cores truncate their float32 sum by up to 2^-23 of it in each step of 16 keys (8 in tf32): over n keys n / 16 *
2^-23 of A, `cut` a key. An H200 lost 0.78 of that over 131,072 keys of one sum. L of `common.oracle.tolerance` is this
and sums * u_acc.

`drift` is the common part of the rounding errors of many P, relative to P. Rounding to nearest has no mean error within
a step, but steps double at a power of two; there it is too small by 3/32 of a step squared for each P. That is 0.15 u^2
for P whose standard deviation equals their mean, and more for P that lie closer together. P spread over many powers of
two err by -0.19 u^2 in e4m3fn (tests/common/oracle/test_bias.py). So drift is 0.3 u^2, and 0.15 u^2 over the deviation.
tf32 truncates up to 2^-10 of P and 2^-10 of V, always in one direction: 2^-10 is the common part, and u_s, the largest
distance of an error from it, is the other half of u.

The float32 error of features, each rounding at most 2^-24 of its value:
- scales of Q or K: their product with the softmax scale, two roundings, and one of a column's: 3 S
- a bias b, of ALiBi or a tree: three of log2(e) * slope * distance or two for a square root's last place, one of the
  sum, eight of what follows the sum, as for a logit: 12 |b|
- scales of V, or of `out`: the reciprocal, two products and one of P's columns: four more roundings beside those of a
  sum
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from common.spec import Features, PagedBatch, is_per_token
from common.spec.paged_batch import FP8
from common.spec.precision import Precision

TF32_ROUNDOFF = 2.0**-9  # 10 explicit bits of mantissa, and the hardware may truncate: 2^-10 in P and 2^-10 in V
STEP_CUT = 2.0**-23  # of a float32 sum of tensor cores
FP8_SUM_ROUNDOFF = 2.0**-13  # 14 bits, truncated
FP8_SPREAD = 4.0 * FP8_SUM_ROUNDOFF  # of the four sums of 32 lanes
PROMOTED = 128  # most keys, or lanes, of fp8 products in one short sum
FLUSHED = torch.finfo(torch.float32).tiny  # 2^-126: GPUs flush P, and P V, below it to 0 (random-1838 on an H200)
STORED = 2.0**9  # the largest V of 8 bits: 448 in e4m3fn, 128 in int8
SHIFTED = 2.0  # the reference of P over e^maximum
HALF_ETA = 2.0**-40  # half of fp16's smallest subnormal, of P times 2^15
EXP2_POLYNOMIAL, FAST_TANH = 2.0**-13, 2.0**-16
SUMMED_TILE = 64  # keys per rounding of a running sum
NARROW = 2.0**-11  # the unit roundoff of a P whose own rounding is what counts: of 16 bits, or fewer
TF32_SPREAD = 1.5 * 2.0**-10
P_FACTOR = {torch.float8_e4m3fn: 256.0, torch.float8_e4m3fnuz: 128.0}  # on P before it is rounded to fp8


def unit_roundoff(dtype: torch.dtype) -> float:
    """Largest relative error of rounding to nearest: 2^-8 for bf16, 2^-11 for fp16, 2^-24 for fp32, 2^-4 for e4m3."""
    return torch.finfo(dtype).eps / 2


def half_subnormal(dtype: torch.dtype) -> float:
    """Largest absolute error of rounding to nearest near zero: 2^-25 for fp16, 2^-134 for bf16, 2^-10 for e4m3."""
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps / 2


def probabilities_of(contract: Precision, batch: PagedBatch, features: Features) -> torch.dtype:
    """The dtype of P in P.V: the contract's, or the query's; bf16 where fp16 could not hold P times a token's scale."""
    if contract.probabilities is not None:
        return contract.probabilities
    narrow = is_per_token(features.value_scale) and batch.query.dtype == torch.float16
    return torch.bfloat16 if narrow else batch.query.dtype


def _eta(probabilities: torch.dtype, batch: PagedBatch, features: Features) -> float:
    eta = max(half_subnormal(probabilities) / P_FACTOR.get(probabilities, 1.0), FLUSHED)
    half = probabilities == torch.bfloat16 and batch.query.dtype == torch.bfloat16
    quantised = batch.shape.cache_dtype.itemsize == 1 and not is_per_token(features.value_scale)
    return SHIFTED * (max(eta, HALF_ETA) if half and quantised else eta)


def _lost_stored(batch: PagedBatch, features: Features) -> float:
    """What P that are flushed cost of a V whose scale, one a token, is in P."""
    return (
        SHIFTED * FLUSHED * STORED * max(batch.seq_lens.tolist(), default=0)
        if is_per_token(features.value_scale)
        else 0.0
    )


@dataclass(frozen=True)
class Rounding:
    """u, u_s, eta, u_out, eta_out, u_acc, cut, eps, drift: as above. statistical: whether S may judge. lanes: that one
    sum of products of Q and K holds.

    bias, scales: roundings of 2^-24 that a logit costs beside products, in units of its bias and of its size.
    exp2, tanh: of P, and of a capped logit, as parts of them. spread: the part of a logit that independent errors of
    tf32 and of fp8 products come to. u_sum: of the running sum, once a tile; 0 in float32.
    sums: roundings of `u_acc` of a sum. spill: what the rounding of `out` makes of the errors before it; 1 where that
    is under 2^-8.
    """

    u: float
    eta: float
    u_out: float
    eta_out: float
    u_acc: float
    eps: float
    statistical: bool
    lanes: int
    drift: float
    u_s: float
    cut: float
    bias: float = 12.0
    scales: float = 0.0
    sums: float = 4.0
    spill: float = 1.0
    exp2: float = 0.0
    tanh: float = 0.0
    spread: float = 0.0
    u_sum: float = 0.0

    @classmethod
    def of(cls, contract: Precision, batch: PagedBatch, features: Features, out: torch.dtype) -> Rounding:
        """The roundings of a contract for a batch, its features and the dtype of `out`."""
        query, probabilities = batch.query.dtype, probabilities_of(contract, batch, features)
        tf32 = contract.dot == "tf32" and query == torch.float32
        u_p, cut, head_size = unit_roundoff(probabilities), TF32_ROUNDOFF if tf32 else 0.0, batch.shape.head_size
        u, fp8 = max(u_p, cut), query in FP8
        fp8_sums = FP8_SUM_ROUNDOFF if fp8 else 0.0
        scaled = features.key_scale is not None or features.query_scale is not None
        exp2 = EXP2_POLYNOMIAL if contract.exp2 == "polynomial" else 0.0
        tanh = FAST_TANH if contract.tanh == "fast" and features.softcap is not None else 0.0
        u_sum = unit_roundoff(contract.sums) if contract.sums != torch.float32 else 0.0
        ends_scaled = features.value_scale is not None or features.out_scale is not None
        return cls(
            u=u,
            eta=_eta(probabilities, batch, features),
            u_out=unit_roundoff(out),
            eta_out=half_subnormal(out) + _lost_stored(batch, features),
            u_acc=max(unit_roundoff(contract.accumulator), fp8_sums),
            eps=max(2.0**-10 if tf32 else 2.0**-24, fp8_sums),
            statistical=u >= NARROW or exp2 + tanh + u_sum > 0.0,
            lanes=min(head_size, PROMOTED) if fp8 else head_size,
            drift=max(0.3 * u_p**2, cut / 2),
            u_s=max(u_p, cut / 2),
            cut=STEP_CUT / (8 if tf32 else 16) if u >= NARROW else 0.0,
            scales=3.0 if scaled else 0.0,
            sums=8.0 if ends_scaled else 4.0,
            spill=1.0 + unit_roundoff(out) if out in FP8 else 1.0,
            exp2=exp2,
            tanh=tanh,
            spread=TF32_SPREAD if tf32 else FP8_SPREAD if fp8 else 0.0,
            u_sum=u_sum,
        )
