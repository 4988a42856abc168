"""The rows of a result beside their expected values, and the terms of their budgets.

In: a result, its `Expected`, a `Rounding`. Out: `Rows`, float64; errors of logits (`LogitErrors`) and of a running sum
(`sum_error`). `common.oracle.tolerance` compares them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from common.oracle.reference import Expected, gather
from common.oracle.rounding import LEAST_TILE, NARROW, SUMMED_TILE, Rounding, unit_roundoff
from common.spec import Features, PagedBatch, is_per_token
from common.spec.paged_batch import FP8

FEW_KEYS = 10  # sum P|V| <= sqrt(keys) sqrt(sum P^2 V^2): below 10 keys u A <= 3 u B
QUARTER = 0.25
WIDE_STEP = 2.0**-6  # the unit roundoff of fp8 P is larger


@dataclass(frozen=True)
class LogitErrors:
    """The largest error of a row's logits, [tokens, heads]: from its products, and from everything after them."""

    products: Tensor
    others: Tensor

    @classmethod
    def of(cls, expected: Expected, features: Features, r: Rounding) -> LogitErrors:
        beside = torch.tensor(features.softcap or 0.0, device=expected.out.device)
        if features.sinks is not None:
            beside = beside + features.sinks.double().abs().masked_fill(features.sinks == -math.inf, 0.0)
        size = expected.logit_size
        float32 = 2.0**-24 * (8 * beside + r.bias * expected.bias_size + r.scales * size)
        return cls(r.eps * size * (math.sqrt(r.lanes) + 8), float32 + r.exp2 + r.tanh * size)

    @property
    def all(self) -> Tensor:
        return self.products + self.others

    def __getitem__(self, tokens: slice) -> LogitErrors:
        return LogitErrors(self.products[tokens], self.others[tokens])


@dataclass(frozen=True)
class Rows:
    """Some tokens of a result beside their expected values, and the terms of their budgets; all float64."""

    out: Tensor  # [tokens, heads, size]
    o: Tensor
    a: Tensor
    b: Tensor
    w1: Tensor
    w2: Tensor
    delta: Tensor  # [tokens, heads]
    sunk: Tensor  # the sink's share of the sum of P
    sigma: Tensor  # [tokens, heads]
    keys: Tensor  # [tokens, 1]: how many are visible
    random: Tensor  # bool [tokens, heads]: terms differ enough for the roundings of their sums to be independent
    blind: Tensor  # bool [tokens]: sees no key
    few: Tensor  # bool [tokens, heads]: fewer than FEW_KEYS keys weigh
    zero: Tensor  # bool [tokens, heads, size]: bitwise +0.0
    most: float  # the largest number of an fp8 `out`, else inf
    dtype: torch.dtype  # of `out`
    lse: Tensor  # [tokens, heads]
    size: Tensor  # [tokens, heads]: S
    denominator: Tensor  # [tokens, heads]
    squares: Tensor  # [tokens, heads]: sum of P^2
    along: Tensor  # [tokens, heads]
    deviation: Tensor  # [tokens, heads]: of P from their mean, as a part of it; 0 where few keys weigh, or a cap holds
    common: Tensor  # the part of its P's rounding errors that is common to all of them
    lost: Tensor  # the largest error of a float32 sum of its products, as a part of A

    @classmethod
    def of(
        cls, out: Tensor, expected: Expected, tokens: slice, delta: Tensor, features: Features, rounding: Rounding,
        structured: bool,
    ) -> Rows:  # fmt: skip
        """The rows of these tokens. delta [tokens, heads]: the error of a logit. structured: terms may be equal."""
        group = out.shape[1] // expected.visible.shape[1]
        share = 1.0 / expected.denominator[tokens, :, None]
        most = torch.finfo(out.dtype).max if out.dtype in FP8 else math.inf
        a, b = expected.weighted[tokens], expected.weighted_rms[tokens]
        few = (expected.num_visible[tokens] < FEW_KEYS)[:, None].expand(delta.shape)
        if is_per_token(features.value_scale):
            few = few | (a.square().sum(-1) < FEW_KEYS * b.square().sum(-1))
        found = out[tokens].float() if out.dtype in FP8 else out[tokens]  # torch has no signbit for fp8
        o = expected.out[tokens].clamp(-most, most)
        if expected.unsaid is not None:
            o = o.masked_fill(expected.unsaid[tokens] & ~found.isfinite(), math.nan)
        sunk = _sunk(expected.lse[tokens], features)
        deviation = _deviation(expected, tokens, sunk, features, rounding).masked_fill(few, 0.0)
        keys = expected.num_visible[tokens, None].double()
        steps = 10.0 * tiles(keys, rounding) if rounding.short_sum else 1.2 * keys
        random = deviation * (1.0 - sunk) >= rounding.u_sum * steps
        return cls(
            out=found.double(),
            o=o,
            a=a,
            b=b,
            w1=expected.visible[tokens].repeat_interleave(group, 1) * share,
            w2=expected.visible_rms[tokens].repeat_interleave(group, 1) * share,
            delta=delta,
            sunk=sunk,
            sigma=_sigma(expected.logit_size[tokens], delta, rounding),
            keys=keys,
            random=random & (not structured),
            blind=expected.num_visible[tokens] == 0,
            few=few,
            zero=(found == 0) & ~torch.signbit(found),
            most=most,
            dtype=out.dtype,
            lse=expected.lse[tokens],
            size=expected.logit_size[tokens],
            denominator=expected.denominator[tokens],
            squares=expected.squares[tokens],
            along=expected.along[tokens].nan_to_num(nan=0.0, posinf=0.0),
            deviation=deviation,
            common=_common(deviation, rounding),
            lost=rounding.sums * rounding.u_acc + rounding.cut * keys,
        )


def hull(batch: PagedBatch, features: Features, expected: Expected) -> tuple[Tensor, Tensor]:
    """[num_tokens, heads, size]: from `out` to the furthest V of its sequence, and the largest |V|; 0 is a V beside a
    sink. However far off logits are, softmax gives a mean of V."""
    far, most = (torch.full_like(expected.out, math.inf) for _ in range(2))
    group, scale = batch.shape.queries_per_kv, 1.0 if features.out_scale is None else features.out_scale.double()
    starts = batch.query_start_loc.tolist()
    for seq, length in enumerate(batch.seq_lens.tolist()):
        tokens = slice(starts[seq], starts[seq + 1])
        if length and tokens.start < tokens.stop:
            value = gather(batch.by_token()[1], batch.block_table[seq], length, features.value_scale) / scale
            low, high = value.amin(0), value.amax(0)
            if features.sinks is not None:
                low, high = low.clamp(max=0.0), high.clamp(min=0.0)
            low, high, o = low.repeat_interleave(group, 0), high.repeat_interleave(group, 0), expected.out[tokens]
            far[tokens] = torch.maximum(high - o, o - low).nan_to_num(nan=math.inf)
            most[tokens] = torch.maximum(high, -low).nan_to_num(nan=math.inf)
    return far, most


def _common(deviation: Tensor, r: Rounding) -> Tensor:
    """The common part of the rounding errors of a row's P: all of it where all P lie within a few steps of each
    other."""
    near = r.drift + 0.15 * r.u**2 / deviation.clamp(min=r.u)
    return torch.where(deviation >= 4.0 * r.u, near, r.u).clamp(max=r.u)


def _deviation(expected: Expected, tokens: slice, sunk: Tensor, features: Features, r: Rounding) -> Tensor:
    """The standard deviation of a row's visible P, as a part of their mean."""
    keys = (1.0 - sunk).clamp(min=1e-30)
    found = (expected.num_visible[tokens, None] * expected.squares[tokens] / keys.square() - 1.0).clamp(min=0.0).sqrt()
    if features.softcap is not None:  # its ends are two values of P for many logits; in fp8 long before it is reached
        end = features.softcap * (0.5 if r.u > WIDE_STEP else 1.0)
        found = found.masked_fill(expected.logit_size[tokens] > end, 0.0)
    return found


def _sigma(size: Tensor, delta: Tensor, r: Rounding) -> Tensor:
    """The combined effect of independent errors of logits of this size, beside the u of a 16-bit P."""
    if r.u < NARROW:
        return delta + r.sums * r.u_acc
    return r.exp2 + (r.tanh + r.spread) * size


def tiles(keys: Tensor, r: Rounding) -> Tensor:
    """The roundings of a running sum over so many keys, including those of a merge and a sink."""
    return 1.0 + (keys / (SUMMED_TILE if r.short_sum else LEAST_TILE)).ceil()


def _sunk(lse: Tensor, features: Features) -> Tensor:
    """[tokens, heads]: the sink's share of the sum of P; 0 without a sink."""
    if features.sinks is None:
        return torch.zeros_like(lse, dtype=torch.float64)
    return (features.sinks.double() - lse.double()).exp().nan_to_num(nan=0.0).clamp(max=1.0)


def carried(sums: torch.dtype) -> int:
    """How many keys a running sum of this dtype carries, whatever their values. Its worst case u * tiles is then
    QUARTER; one of these roundings is that of a merge or a sink."""
    return SUMMED_TILE * (int(QUARTER / unit_roundoff(sums)) - 1)


def _grown(u: float, steps: Tensor, one_way: Tensor, statistical: bool) -> Tensor:
    """[tokens, heads]: what a sum is off by, as a part of it, after so many roundings of u.

    Independent ones: 1.5 u sqrt(steps), 4.5 standard deviations (u / sqrt(3) each, of a sum that is 1 / sqrt(3) of its
    end in the mean square). Equal terms are all rounded one way: each by at most u of the sum that it meets, u steps
    where the sum begins as large as it ends. Half a last place of one that grows evenly, as in random inputs, is 3/8 u
    of its end in the mean at most (where that is 4/3 of a power of two).
    """
    random = 1.5 * u * steps.sqrt()
    even = torch.maximum(random, 0.375 * u * steps) if statistical else u * steps
    return torch.where(one_way, even, random)


def sum_error(rows: Rows, r: Rounding, statistical: bool) -> Tensor:
    """[tokens, heads]: what a running sum of P is off by, as a part of it, after its `tiles` roundings.

    In 16 bits the sums of 64 keys are nearly equal, so that roundings go one way (4,265 keys: 1.1 of the independent
    budget), and from 1 / 2u tiles on what follows is lost (33,003 keys: 1.15). Nor does the sum grow evenly where it
    begins with a sink of a part p of its end L: a tile under half of its last place is lost, one after the other, up to
    u p L each; and no more is lost than the keys are, (1 - p) L. A sum that lost a part x is off by x / (1 - x), and a
    tile that is rounded up instead gains no more than that.
    Past QUARTER a result is wrong, whatever its kernel declares: without it zeros would pass from 256 tiles on. So such
    a sum carries `carried` keys.
    """
    steps, one_way = tiles(rows.keys, r), ~rows.random | r.short_sum
    off = _grown(r.u_sum, steps, one_way, statistical)
    if statistical:
        lost = torch.minimum(r.u_sum * steps * rows.sunk, 1.0 - rows.sunk).masked_fill(~one_way, 0.0)
        off = torch.maximum(off, lost / (1.0 - lost))
    return off.clamp(max=QUARTER)


def chain_error(rows: Rows, r: Rounding, statistical: bool) -> Tensor:
    """[tokens, heads]: what a float32 sum of P V is off by, as a part of it, where FMAs add one key after the other; 0
    where tensor cores multiply, whose sum loses `cut`."""
    if r.u >= NARROW:
        return torch.zeros_like(rows.sunk)
    return _grown(2.0**-24, rows.keys, ~rows.random, statistical)
