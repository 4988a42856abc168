"""Detect a small systematic error: compare mean signed errors with the largest that a right kernel can have.

Every row and head gives one number: the error of `out` along the expected output, e.o / o.o, or that of the LSE. Means
are taken over the call, each head, KV head, sequence, token, and row. The bound of a mean, as a part of the expected
value, is `allowed + z noise + min(steps, own + z steps_rms)`; docs/tolerance.md derives the terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from common.oracle.rounding import Rounding
from common.oracle.rows import LogitErrors, Rows, chain_error, sum_error, tiles

FALSE_ALARMS = 1e-9  # a call
SHIFTS = 4  # of a step of `out`
FLOAT32 = 2.0**-20
MOVED = 1.1  # ignore lanes this near to the largest number of `out`: they may saturate


@dataclass(frozen=True)
class Signed:
    """The relative signed errors of some rows, [tokens, heads], and their bounds.

    steps [SHIFTS, tokens, heads]. valid: bool, whether a row has such an error at all.
    """

    off: Tensor
    allowed: Tensor
    noise: Tensor
    steps: Tensor
    valid: Tensor

    @classmethod
    def joined(cls, parts: list[Signed]) -> Signed:
        """The signed errors of several stretches of tokens, joined."""
        both = {f.name: [getattr(part, f.name) for part in parts] for f in fields(cls)}
        return cls(**{name: torch.cat(tensors, 1 if name == "steps" else 0) for name, tensors in both.items()})


@dataclass(frozen=True)
class _Terms:
    """What one row may be off by, [tokens, heads]: common to all (allowed), and the squares of what is not (noise)."""

    allowed: Tensor
    noise: Tensor

    def __add__(self, other: _Terms) -> _Terms:
        return _Terms(self.allowed + other.allowed, self.noise + other.noise)


def _running_sum(rows: Rows, r: Rounding) -> _Terms:
    noise = (r.u_sum**2 / 3.0 * (tiles(rows.keys, r) / 3.0 + 1.0)).expand_as(rows.sunk)
    return _Terms(sum_error(rows, r, True).masked_fill(rows.random, 0.0), noise.masked_fill(~rows.random, 0.0))


def _logits(rows: Rows, errors: LogitErrors, r: Rounding) -> Tensor:
    """The error of a row whose logits all err in one direction."""
    return 2.0 * errors.others + (r.spread * rows.size if r.spread else 2.0 * errors.products)


def _steps(o: Tensor, dtype: torch.dtype, r: Rounding, along: Tensor) -> Tensor:
    """[SHIFTS, tokens, heads]: the error along o of o rounded, where o lies and at parts of a step from there."""
    if r.u_out < FLOAT32:
        return along.new_zeros(SHIFTS, *along.shape)
    info = torch.finfo(dtype)
    step = torch.ldexp(torch.full_like(o, info.eps), torch.frexp(o)[1] - 1).clamp(min=info.smallest_normal * info.eps)
    moved = (o + step * (part / SHIFTS) for part in range(SHIFTS))
    return 4.0 / 3.0 * torch.stack([((x.to(dtype).double() - x) * o).sum(-1) / along for x in moved])


def _of_out(rows: Rows, errors: LogitErrors, dtype: torch.dtype, r: Rounding) -> tuple[Signed, _Terms]:
    """The signed errors of `out`, without the error of its running sum, which is judged separately."""
    kept = rows.o.isfinite() & rows.out.isfinite() & (rows.o.abs() * MOVED < rows.most)
    o, error = (x.masked_fill(~kept, 0.0) for x in (rows.o, rows.out - rows.o))
    square = o.square().sum(-1)
    valid = (square > 0.0) & square.isfinite() & errors.all.isfinite()
    square = square.masked_fill(~valid, 1.0)

    def along(x: Tensor) -> Tensor:
        return (o.abs() * x.masked_fill(~kept, 0.0)).sum(-1) / square

    of_p = (rows.common + r.u / rows.denominator).clamp(max=r.u)
    allowed = of_p + rows.lost * along(rows.a) + _logits(rows, errors, r) + FLOAT32
    allowed = allowed + chain_error(rows, r, True).masked_fill(rows.random, 0.0)
    half = r.u_out * o.abs() + r.eta_out
    independent = torch.where(kept.all(-1), rows.along, along(rows.b))
    noise = ((r.u_s + rows.sigma) * independent).square() + (r.eta * along(rows.w2)).square()
    noise = (noise + (o * half).square().sum(-1) / square.square()) / 3.0
    off = (error * o).sum(-1) / square
    return Signed(off, allowed, noise, _steps(o, dtype, r, square), valid), _running_sum(rows, r)


def signed(rows: Rows, errors: LogitErrors, dtype: torch.dtype, r: Rounding, lse: Tensor | None) -> dict[str, Signed]:
    """The errors of some tokens, by what they are of. lse: the error of the LSE, [tokens, heads], or None."""
    out, summed = _of_out(rows, errors, dtype, r)
    found = {"out": Signed(out.off, out.allowed + summed.allowed, out.noise + summed.noise, out.steps, out.valid)}
    if lse is None:
        return found
    common = errors.others + (r.spread * rows.size if r.spread else errors.products)
    own = _Terms(
        common + FLOAT32 + 2.0**-22 * rows.lse.abs().clamp(min=1.0), errors.products.square() * rows.squares / 3.0
    )
    seen = lse.isfinite() & errors.all.isfinite() & ~rows.blind[:, None]
    with_sum, nothing = own + summed, torch.zeros_like(out.steps)
    found["lse"] = Signed(lse, with_sum.allowed, with_sum.noise, nothing, seen)
    if r.short_sum:
        product = out.off + torch.expm1(lse) * (1.0 + out.off)
        valid = out.valid & seen
        found["sum of P V"] = Signed(product, out.allowed + own.allowed, out.noise + own.noise, out.steps, valid)
    return found


@dataclass(frozen=True)
class Mean:
    """The mean that came nearest to what it may be, or furthest past it; part: of that. where, of: in words."""

    part: float
    of: str
    where: str
    off: float
    allowed: float

    @property
    def reason(self) -> str:
        return f"mean: {self.of} of {self.where} is {self.off:+.3%} off on average, allowed {self.allowed:.3%}"


def _groups(starts: Tensor, tokens: int, heads: int, kv_heads: int) -> Iterator[tuple[str, Tensor, int]]:
    """(words, int64 [tokens, heads] numbers, how many) of each way to take means."""
    device = starts.device
    token, head = torch.arange(tokens, device=device)[:, None], torch.arange(heads, device=device)[None]
    seq = torch.bucketize(token, starts[1:].long().contiguous(), right=True)
    yield "all rows", 0 * token + 0 * head, 1
    yield "head {}", head + 0 * token, heads
    yield "KV head {}", head // (heads // kv_heads) + 0 * token, kv_heads
    yield "sequence {}", seq + 0 * head, starts.numel() - 1
    yield "token {}", token + 0 * head, tokens
    yield "token {}, head {}", token * heads + head, tokens * heads


def worst_mean(found: dict[str, Signed], starts: Tensor, kv_heads: int) -> Mean | None:
    """None where no row has a signed error. starts: `query_start_loc`."""
    tokens, heads = found["out"].off.shape
    groups = list(_groups(starts, tokens, heads, kv_heads))
    judged = len(found) * sum(count for _, _, count in groups)
    z = math.sqrt(2.0 * math.log(4.0 * max(1, judged) / FALSE_ALARMS))
    means = [_worst(of, errors, groups, z, heads) for of, errors in found.items() if bool(errors.valid.any())]
    return max(means, key=lambda mean: mean.part, default=None)


def _worst(of: str, errors: Signed, groups: list[tuple[str, Tensor, int]], z: float, heads: int) -> Mean:
    """The worst of all ways to take means, which stand behind one another; some row is valid."""
    valid, steps = errors.valid, errors.steps.abs().amax(0)
    weight = 1.0 / (errors.noise + steps.square() + errors.allowed.square()).clamp(min=1e-30)
    means = torch.stack((errors.off, errors.allowed, steps, *errors.steps))
    squares = torch.stack((errors.noise, steps.square()))
    rows = torch.cat((weight[None], weight * means, weight.square() * squares))[:, valid]
    sums = torch.cat([_summed(rows, numbers[valid], count) for _, numbers, count in groups], 1)
    total, means, squares = sums.split((1, len(means), len(squares)))
    total = total.masked_fill(total == 0.0, math.inf)
    off, common, most, *shifted = means / total
    noise, apart = squares.sqrt() / total
    own = torch.stack(shifted).abs().amax(0)
    allowed = common + z * noise + torch.minimum(most, own + z * apart)
    part, place = (off.abs() / allowed).nan_to_num(nan=0.0).max(0)
    return Mean(float(part), of, _where(groups, int(place), heads), float(off[place]), float(allowed[place]))


def _where(groups: list[tuple[str, Tensor, int]], at: int, heads: int) -> str:
    """The mean at this place, in words."""
    for words, _, count in groups:
        if at < count:
            return words.format(*divmod(at, heads)) if words.count("{") == 2 else words.format(at)
        at -= count
    raise IndexError(at)


def _summed(rows: Tensor, numbers: Tensor, count: int) -> Tensor:
    """[lines, count]: the sums of [lines, rows] over the rows of each number. Flat, for `index_add_` walks slices."""
    line = torch.arange(len(rows), device=rows.device)[:, None]
    flat = rows.new_zeros(len(rows) * count).index_add_(0, (numbers + count * line).flatten(), rows.flatten())
    return flat.view(len(rows), count)
