"""The rounding error of a declared precision, for one batch and its features: the symbols of the checker's budgets.

docs/tolerance.md derives each number. `common.oracle.rows` and `common.oracle.tolerance` use them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

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
SUMMED_TILE, LEAST_TILE = 64, 16  # keys per rounding of a running sum of 16 bits, and of one in float32
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


@cache
def _ranges(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """float64: the finite numbers of an fp8 type, ascending, and the ends of what is rounded to each, to nearest and
    even: directly, or by way of fp16, as compilers do where a GPU has no such cast of float32."""
    codes = torch.arange(256, dtype=torch.uint8)
    numbers = codes.view(dtype).double()
    even = {float(x): not code & 1 for code, x in zip(codes.tolist(), numbers, strict=True) if x.isfinite()}
    found = torch.tensor(sorted(even), dtype=torch.float64)
    ties = (found[1:] + found[:-1]) / 2.0
    half = torch.exp2(torch.frexp(ties.abs())[1].double() - 12.0).clamp(min=2.0**-25)
    wide = torch.tensor([even[x] for x in found.tolist()])
    low, high = ties - half * wide[1:], ties + half * wide[:-1]
    end = torch.tensor([math.inf], dtype=torch.float64)
    return found, torch.cat([-end, low]), torch.cat([high, end])


def unrounded(found: Tensor, o: Tensor, dtype: torch.dtype) -> Tensor:
    """The least error before it was rounded to fp8 of a number that was to be o, float64; 0 where o itself may be
    rounded to what was found, float64 too and finite."""
    numbers, low, high = (x.to(found.device) for x in _ranges(dtype))
    place = torch.searchsorted(numbers, found.contiguous()).clamp(max=len(numbers) - 1)
    return (low[place] - o).clamp(min=0.0) + (o - high[place]).clamp(min=0.0)


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
    """The symbols of docs/tolerance.md: u, u_s, eta, cut, eps, drift, spread; u_out, eta_out of `out`; u_acc of a sum.

    statistical: whether S may judge. lanes: how many one sum of products of Q and K holds. bias, scales: roundings of
    2^-24 that a logit costs beside products, in units of its bias and of its size. exp2, tanh: of P, and of a capped
    logit, as parts of them. u_sum: of the running sum, once a tile. sums: roundings of `u_acc` of a sum.
    spill: what the rounding of `out` makes of the errors before it; 1 where that is under 2^-8.
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
    u_sum: float = 2.0**-24

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
        ends_scaled = features.value_scale is not None or features.out_scale is not None
        return cls(
            u=u,
            eta=_eta(probabilities, batch, features),
            u_out=unit_roundoff(out),
            eta_out=half_subnormal(out) + _lost_stored(batch, features),
            u_acc=max(unit_roundoff(contract.accumulator), fp8_sums),
            eps=max(2.0**-10 if tf32 else 2.0**-24, fp8_sums),
            statistical=u >= NARROW or exp2 + tanh > 0.0 or contract.sums != torch.float32,
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
            u_sum=unit_roundoff(contract.sums),
        )

    def before(self, out: torch.dtype) -> Rounding:
        """Without the rounding of an fp8 `out`, whose exact errors are known (`unrounded`)."""
        own = {"u_out": 0.0, "eta_out": self.eta_out - half_subnormal(out), "spill": 1.0}
        return replace(self, **own) if out in FP8 else self

    @property
    def short_sum(self) -> bool:
        """Whether the running sum has 16 bits."""
        return self.u_sum >= NARROW
