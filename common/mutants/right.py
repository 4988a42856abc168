"""Right kernels of other arithmetic than the emulation's, which the checker must not reject.

In: a batch. Out: what a right kernel writes that sums in another order, cuts the keys elsewhere, rounds where its
contract lets it, or takes its exponentials otherwise. RIGHT has all of them; `Dense` and what derives of it share no
line with the emulation.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from common.mutants.emulation import At, Edits, Schedule, emulate, tf32
from common.mutants.mutant import edited
from common.oracle.rows import carried
from common.spec import Features, PagedBatch, is_per_token
from common.spec.paged_batch import E4M3, FP8
from common.spec.precision import Precision

Launch = Callable[[PagedBatch, Features, Tensor, Tensor | None], None]
# 2^f over [0, 1], degree 3 with the smallest relative error; FlashAttention 4 has it in flash_attn/cute/utils.py
POLYNOMIAL = (0.077119089663028717, 0.227564394474029541, 0.695146143436431885, 1.0)
_DEFAULT = Precision()
FAST_TANH = 1.113e-5  # of MUFU.TANH, by all inputs: forums.developer.nvidia.com/t/173291


def exp2_by_polynomial(x: Tensor) -> Tensor:
    whole, result = x.floor(), torch.zeros_like(x)
    part = x - whole
    for coefficient in POLYNOMIAL:
        result = result * part + coefficient
    return torch.where(x > -126.0, torch.ldexp(result, whole.clamp(min=-126.0)), 0.0)


def cut(x: Tensor) -> Tensor:
    """tf32 as hardware may do it: the low 13 bits are not looked at."""
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


class Rounded(Edits):
    """The emulation under a contract, at its worst where that leaves a choice."""

    def __init__(self, contract: Precision) -> None:
        self.contract = contract

    def operand(self, at: At, x: Tensor) -> Tensor:
        return cut(x) if self.contract.dot == "tf32" and at.batch.query.dtype == torch.float32 else x

    def exp2(self, at: At, x: Tensor) -> Tensor:
        return exp2_by_polynomial(x) if self.contract.exp2 == "polynomial" else torch.exp2(x)

    def score(self, at: At, logits: Tensor, softcap: float | None) -> Tensor:
        right = super().score(at, logits, softcap)
        wave = 1.0 + FAST_TANH * torch.sin(1e4 * logits)
        return right * wave if softcap is not None and self.contract.tanh == "fast" else right

    def total(self, at: At, l: Tensor) -> Tensor:
        return l.to(self.contract.sums).float()


@dataclass(frozen=True)
class Dense:
    """Attention from all logits of a sequence at once. wide: the dtype of the arithmetic. round_p: P is rounded to the
    query's dtype. before: P is divided by its sum before P.V.
    """

    wide: torch.dtype = torch.float32
    round_p: bool = False
    before: bool = True

    def __call__(self, batch: PagedBatch, features: Features, out: Tensor, lse: Tensor | None) -> None:
        starts = batch.query_start_loc.tolist()
        for seq, length in enumerate(batch.seq_lens.tolist()):
            rows = slice(starts[seq], starts[seq + 1])
            if rows.start < rows.stop:
                self._sequence(batch, features, seq, rows, length, out, lse)

    def _sequence(
        self, batch: PagedBatch, f: Features, seq: int, rows: slice, length: int, out: Tensor, lse: Tensor | None
    ) -> None:
        k, v = (self._read(batch, f, seq, length, kind) for kind in ("key", "value"))
        q = batch.query[rows].to(self.wide)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if f.query_scale is not None:
            q = q * f.query_scale.to(self.wide)
        scores = torch.einsum("qhd,khd->hqk", q, k) * batch.softmax_scale
        scores = self._masked(f, scores, seq, rows.stop - rows.start, length)
        hidden = (scores == -math.inf).all(1).t()[..., None]  # 0 times what nobody sees may be NaN
        v = v.masked_fill(hidden, 0.0)
        sinks = torch.full((q.shape[1],), -math.inf) if f.sinks is None else f.sinks.float()
        with_sink = torch.cat([scores, sinks.to(self.wide)[:, None, None].expand(-1, scores.shape[1], 1)], 2)
        found = self.attend(with_sink, v, batch.query.dtype, f.value_scale)
        if f.out_scale is not None:
            most = torch.finfo(out.dtype).max
            found = (found / f.out_scale).clamp(-most, most)
        out[rows] = (found + 0.0).to(out.dtype)  # 0 * -v of a row that sees no key is -0.0
        if lse is not None:
            lse[rows] = torch.logsumexp(with_sink, 2).t().float()

    def attend(self, scores: Tensor, v: Tensor, dtype: torch.dtype, value_scale: Tensor | None) -> Tensor:
        """[rows, heads, size] of logits whose last column is the sink's."""
        top = scores.amax(2, keepdim=True)
        p = torch.exp(scores - torch.where(top == -math.inf, 0.0, top))
        total = p.sum(2, keepdim=True)
        safe = torch.where(total == 0.0, 1.0, total)
        p = p / safe if self.before else p
        if self.round_p and dtype.itemsize > 1 and not is_per_token(value_scale):
            p = p.to(dtype).to(self.wide)
        found = torch.einsum("hqk,khd->qhd", p[..., :-1], v)
        return found if self.before else found / safe.permute(1, 0, 2)

    def _read(self, batch: PagedBatch, f: Features, seq: int, length: int, kind: str) -> Tensor:
        """[keys, heads, size], scaled."""
        cache, scale = getattr(batch, f"{kind}_cache"), getattr(f, f"{kind}_scale")
        page = cache.shape[1]
        pages = batch.block_table[seq, : -(-length // page)].long()
        found = cache[pages].flatten(0, 1)[:length].to(self.wide)
        if is_per_token(scale):
            return found * scale[pages].flatten(0, 1)[:length, :, None].to(self.wide)
        return found if scale is None else found * scale.to(self.wide).view(1, -1, 1)

    def _masked(self, f: Features, scores: Tensor, seq: int, rows: int, length: int) -> Tensor:
        if f.softcap is not None:
            scores = f.softcap * torch.tanh(scores / f.softcap)
        q, k = torch.arange(length - rows, length)[:, None], torch.arange(length)[None]
        if f.alibi_slopes is not None:
            away = -(q - k).clamp(min=0).to(self.wide).sqrt() if f.alibi_sqrt else (k - q).to(self.wide)
            scores = scores + f.alibi_slopes.to(self.wide)[:, None, None] * away
        if f.tree_bias is not None:
            size, bias = f.tree_bias.shape[0], torch.zeros(rows, length, dtype=self.wide)
            first = length - rows  # the key of the first query; before the sequence's where it is negative
            most = min(size, rows)
            if first + most > 0:
                skipped = max(0, -first)
                bias[:most, first + skipped : first + most] = f.tree_bias[:most, skipped:most].to(self.wide)
            scores = scores + bias
        causal = f.causal and (f.causal_per_sequence is None or bool(f.causal_per_sequence[seq]))
        seen = (k <= q) if causal else torch.ones(rows, length, dtype=torch.bool)
        if f.sliding_window is not None:
            seen = seen & ((q - k).abs() < f.sliding_window)
        if f.chunk is not None:
            seen = seen & (k >= (q.div(f.chunk, rounding_mode="floor") - f.chunk_lookback) * f.chunk)
        for first, last in [] if f.spans is None else f.spans[seq].tolist():
            if first < last:
                seen = seen | (((q >= first) & (q <= last)) & ((k >= first) & (k <= last)))
        return scores.masked_fill(~seen, -math.inf)


@dataclass(frozen=True)
class ByTorch(Dense):
    """P.V by torch's scaled_dot_product_attention: a query of zeros, and the logits as its mask."""

    def attend(self, scores: Tensor, v: Tensor, dtype: torch.dtype, value_scale: Tensor | None) -> Tensor:
        heads, rows, keys = scores.shape
        nothing = torch.zeros(heads, max(rows, keys), 8)
        values = torch.cat([v.transpose(0, 1), torch.zeros(heads, 1, v.shape[2])], 1)
        blind = (scores == -math.inf).all(2, keepdim=True)
        found = torch.nn.functional.scaled_dot_product_attention(
            nothing[:, :rows], nothing[:, :keys], values, attn_mask=scores.masked_fill(blind, 0.0)
        )
        return found.masked_fill(blind, 0.0).transpose(0, 1)


@dataclass(frozen=True)
class Right:
    """A right kernel of a name, and what it declares. any_scale: V may have a scale for each token, which P would be
    multiplied by: past the range of an fp8. A running sum of 16 bits takes as many keys as it carries."""

    name: str
    launch: Launch
    contract: Precision = _DEFAULT
    any_scale: bool = True

    def takes(self, batch: PagedBatch, features: Features) -> bool:
        """Whether it does not refuse these sequences and features."""
        sums = self.contract.sums
        fits = sums == torch.float32 or max(batch.seq_lens.tolist(), default=0) <= carried(sums)
        return fits and (self.any_scale or not is_per_token(features.value_scale))


def _emulated(
    name: str, schedule: Schedule, edits: Edits | None = None, contract: Precision = _DEFAULT, **seams: Callable
) -> Right:
    """The emulation with some seams written in another way that is right too."""
    edits = edits or edited(**seams)()

    def launch(batch: PagedBatch, features: Features, out: Tensor, lse: Tensor | None) -> None:
        emulate(batch, features, out, schedule, lse=lse, edits=edits)

    return Right(name, launch, contract)


def _tf32(at: At, x: Tensor) -> Tensor:
    return tf32(x) if at.batch.query.dtype == torch.float32 else x


def _tanh_by_exp(at: At, logits: Tensor, softcap: float | None) -> Tensor:
    return logits if softcap is None else softcap * (1.0 - 2.0 / (torch.exp(2.0 * logits / softcap) + 1.0))


def _sink_last(at: At, sinks: Tensor) -> Tensor:
    return sinks if at.segment == at.schedule.segments - 1 else torch.full_like(sinks, -math.inf)


def _shipped(name: str, schedule: Schedule, contract: Precision) -> Right:
    made = _emulated(name, replace(schedule, probabilities=contract.probabilities), Rounded(contract), contract)
    return replace(made, any_scale=contract.probabilities not in FP8)


RIGHT: tuple[Right, ...] = (
    _emulated("one tile of all keys", Schedule(1 << 20)),
    _emulated("tiles of 16 keys", Schedule(16)),
    _emulated("tiles of 32 keys, three segments", Schedule(32, 3)),
    _emulated("tiles of 128 keys, sixteen segments", Schedule(128, 16)),
    _emulated("tiles of 48 keys, five segments", Schedule(48, 5)),
    _shipped("P in float32", Schedule(64), Precision(torch.float32)),
    _shipped("P in bfloat16", Schedule(64, 2), Precision(torch.bfloat16)),
    _shipped("P in e4m3fn", Schedule(64), Precision(E4M3[0])),
    _shipped("P in e4m3fnuz", Schedule(32, 2), Precision(E4M3[1])),
    _shipped("tf32, cut", Schedule(64), Precision(dot="tf32")),
    _emulated("tf32, rounded", Schedule(32, 2), contract=Precision(dot="tf32"), operand=_tf32),
    _shipped("exp2 by a polynomial", Schedule(128), Precision(exp2="polynomial")),
    _shipped("a fast tanh", Schedule(64), Precision(tanh="fast")),
    _shipped("running sums in bfloat16", Schedule(64), Precision(sums=torch.bfloat16)),
    _emulated("exp in place of exp2", Schedule(64), exp2=lambda at, x: torch.exp(x * math.log(2.0))),
    _emulated("lanes backwards", Schedule(64), query=lambda at, query: query.float().flip(-1),
              stored=lambda at, kind, x: x.float().flip(-1) if kind == "key" else x),
    # rounded up, so that to fade is to subtract exponents
    _emulated("whole maxima", Schedule(32), maximum=lambda at, m: m.ceil()),
    # P relative to more than its maximum, as in a kernel that knows a bound of it
    _emulated("a bound in place of the maximum", Schedule(1 << 20), maximum=lambda at, m: m + 0.37),
    _emulated("times the reciprocal of the sum", Schedule(64),
              finish=lambda at, acc, l: torch.where(l[..., None] == 0, 0.0, acc * (1.0 / l)[..., None])),
    _emulated("the scale in the query", Schedule(64), scale=lambda at, scale: 1.0,
              query=lambda at, query: query.float() * at.batch.softmax_scale),
    _emulated("tanh by exp", Schedule(64), score=_tanh_by_exp),
    _emulated("segments merged backwards", Schedule(32, 4), partials=lambda at, states: states[::-1]),
    _emulated("the sink in the last segment", Schedule(32, 3), sink=_sink_last),
    Right("dense in float32", Dense()),
    Right("dense in float64", Dense(torch.float64)),
    Right("dense, P rounded before its division", Dense(round_p=True, before=False)),
    Right("dense, P rounded behind its division", Dense(round_p=True)),
    Right("dense by torch", ByTorch()),
)  # fmt: skip
