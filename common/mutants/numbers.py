"""Mutants that read the right keys but compute, round, remember or write something wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from common.mutants.emulation import Edits, State, tf32
from common.mutants.mutant import CAPPED, EMPTY, LONG, MIXED, SHORT_BEHIND_LONG, SINKS, Mutant, registrar
from common.spec import AttentionShape

MATH: list[Mutant] = []
mutant = registrar(MATH)

# --- math -------------------------------------------------------------------------------------------------------------


@mutant("long", LONG)
class ScaleOnePercentOff(Edits):
    def scale(self, at, scale):
        return scale * 1.01 if at.long else scale


@mutant("all", replace(MIXED, shape=AttentionShape(8, 2, 80, 16)))
class ScaleOfPaddedHead(Edits):
    def scale(self, at, scale):
        return 128**-0.5


@mutant("all", CAPPED)
class SoftcapSkipped(Edits):
    def score(self, at, logits, softcap):
        return logits


@mutant("all", CAPPED)
class SoftcapBeforeScale(Edits):
    def score(self, at, logits, softcap):
        scale = at.batch.softmax_scale
        return super().score(at, logits / scale, softcap) * scale


@mutant("one sequence", replace(CAPPED, softcap=0.04))
class SoftcapOverflows(Edits):
    def score(self, at, logits, softcap):
        power = torch.exp(2 * logits / softcap)  # inf past 44 times the softcap
        return softcap * (power - 1) / (power + 1) if at.seq == 0 else super().score(at, logits, softcap)


@mutant("one head", SINKS)
class SinkSkipped(Edits):
    def sink(self, at, sinks):
        sinks = super().sink(at, sinks).clone()
        sinks[5] = -math.inf
        return sinks


@mutant("long", SINKS)
class SinkPerSegment(Edits):
    def sink(self, at, sinks):
        return sinks if at.long else super().sink(at, sinks)


@mutant("all", SINKS)
class SinkScaled(Edits):
    def sink(self, at, sinks):
        return super().sink(at, sinks * at.batch.softmax_scale)


@mutant("all", replace(SINKS, softcap=5.0))
class SinkSoftcapped(Edits):
    def sink(self, at, sinks):
        return super().sink(at, at.features.softcap * torch.tanh(sinks / at.features.softcap))


@mutant("long", LONG)
class LastSegmentNotRescaled(Edits):
    def weights(self, at, weights):
        return torch.cat([weights[:-1], torch.ones_like(weights[-1:])]) if at.long else weights


@mutant("all", replace(LONG, lse=True))
class LseInBaseTwo(Edits):
    def lse(self, at, lse):
        return lse * math.log2(math.e)


@mutant("one sequence", EMPTY)
class EmptyRowIsNan(Edits):
    def finish(self, at, acc, l):
        return acc / l[..., None]


@mutant("one sequence", EMPTY)
class EmptyRowLseIsPlusInf(Edits):
    def lse(self, at, lse):
        return lse.masked_fill(lse == -math.inf, math.inf)


@mutant("one sequence", EMPTY)
class EmptyRowIsMinusZero(Edits):
    def finish(self, at, acc, l):
        return torch.where(l[..., None] == 0, -0.0, acc / l[..., None])


# --- precision and state ----------------------------------------------------------------------------------------------


@mutant("long", replace(LONG, tile=16, segments=1))
class AccumulatorInBf16(Edits):
    def accumulator(self, at, acc):
        return acc.bfloat16().float() if at.long else acc


@mutant("long", LONG)
class ProbabilitiesInE4m3(Edits):
    def probabilities(self, at, p):
        return p.to(torch.float8_e4m3fn).float() if at.long else p


@mutant("all", replace(LONG, shape=AttentionShape(4, 2, 64, 16, torch.float32)))
class Tf32Undeclared(Edits):
    def operand(self, at, x):
        return tf32(x)


@mutant("all", replace(MIXED, shape=AttentionShape(8, 2, 128, 16), loud=30.0))
class QueryScaledInBf16(Edits):
    def query(self, at, query):
        scale = at.batch.softmax_scale
        return (query.float() * scale).bfloat16().float() / scale


@mutant("one sequence", SHORT_BEHIND_LONG)
class ScratchNotCleared(Edits):
    def __init__(self) -> None:
        self.scratch: list[State] = []

    def partials(self, at, states):
        empty = [bool((state.l == 0).all()) for state in states]
        if self.scratch:  # a segment without keys does not write its slot
            states = [old if e else new for old, new, e in zip(self.scratch, states, empty, strict=True)]
        self.scratch = states
        return states


# --- writes -----------------------------------------------------------------------------------------------------------


@mutant("one sequence", MIXED)
class RowUnwritten(Edits):
    def store(self, at, out, rows):
        first = at.tokens.start + (at.seq == 1)
        out[first : at.tokens.stop] = rows[first - at.tokens.start :].to(out.dtype)


@mutant("one head", MIXED)
class LastColumnUnwritten(Edits):
    def store(self, at, out, rows):
        kept = out[at.tokens, 5, -1].clone()
        super().store(at, out, rows)
        out[at.tokens, 5, -1] = kept


@mutant("one sequence", MIXED)
class RowPastTheEndWritten(Edits):
    def store(self, at, out, rows):
        super().store(at, out, rows)
        if at.tokens.stop == int(at.batch.query_start_loc[-1]):
            out[at.tokens.stop] = 0.0


@mutant("all", MIXED)
class WroteBehindTheBuffer(Edits):
    def store(self, at, out, rows):
        super().store(at, out, rows)
        out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(0.0)


@mutant("all", MIXED)
class QueryScaledInPlace(Edits):
    def query(self, at, query):
        kept = query.clone()
        at.batch.query[at.tokens] *= at.batch.softmax_scale
        return kept


@mutant("all", MIXED)
class CacheCleanedInPlace(Edits):
    def cache(self, at, kind, cache):
        return cache.nan_to_num_(0.0)
