"""Mutants that read the right keys but compute, round, remember or write something wrong."""

import math

import torch

from common.mutants.emulation import Edits, State, tf32
from common.mutants.mutant import CAPPED, EMPTY, LONG, MIXED, NO_EDIT, SHORT_BEHIND_LONG, SINKS, wrong


def _cap_before_scale(at, logits, softcap):
    scale = at.batch.softmax_scale
    return NO_EDIT.score(at, logits / scale, softcap) * scale


def _overflowing_cap(at, logits, softcap):
    """Inf / Inf past 44 times the soft cap (vLLM #56578)."""
    power = torch.exp(2 * logits / softcap)
    return softcap * (power - 1) / (power + 1) if at.seq == 0 else NO_EDIT.score(at, logits, softcap)


def _without_the_sink_of_head_5(at, sinks):
    return NO_EDIT.sink(at, sinks).masked_fill(torch.arange(len(sinks)) == 5, -math.inf)


def _last_segment_as_it_is(at, weights):
    return torch.cat([weights[:-1], torch.ones_like(weights[-1:])]) if at.long else weights


def _query_scaled_in_bf16(at, query):
    scale = at.batch.softmax_scale
    return (query.float() * scale).bfloat16().float() / scale


class _ScratchNotCleared(Edits):
    """A segment without keys does not write its slot, and the merge finds what the sequence before left there."""

    def __init__(self) -> None:
        self.scratch: list[State] = []

    def partials(self, at, states):
        empty = [bool((state.l == 0).all()) for state in states]
        if self.scratch:
            states = [old if e else new for old, new, e in zip(self.scratch, states, empty, strict=True)]
        self.scratch = states
        return states


def _first_row_unwritten(at, out, rows):
    first = at.tokens.start + (at.seq == 1)
    out[first : at.tokens.stop] = rows[first - at.tokens.start :].to(out.dtype)


def _last_column_unwritten(at, out, rows):
    kept = out[at.tokens, 5, -1].clone()
    NO_EDIT.store(at, out, rows)
    out[at.tokens, 5, -1] = kept


def _row_past_the_end_written(at, out, rows):
    NO_EDIT.store(at, out, rows)
    if at.tokens.stop == int(at.batch.query_start_loc[-1]):
        out[at.tokens.stop] = 0.0


def _wrote_behind_the_buffer(at, out, rows):
    NO_EDIT.store(at, out, rows)
    out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(0.0)


def _query_scaled_in_place(at, query):
    kept = query.clone()
    at.batch.query[at.tokens] *= at.batch.softmax_scale
    return kept


_COMPUTED = (
    wrong("scale_one_percent_off", "long", LONG, scale=lambda at, scale: scale * 1.01 if at.long else scale),
    wrong("scale_of_padded_head", "all", MIXED.but(head_size=80),
          scale=lambda at, scale: 128**-0.5),
    wrong("softcap_skipped", "all", CAPPED, score=lambda at, logits, softcap: logits),
    wrong("softcap_before_scale", "all", CAPPED, score=_cap_before_scale),
    wrong("softcap_overflows", "one sequence", CAPPED.but(softcap=0.04), score=_overflowing_cap),
    wrong("sink_skipped", "one head", SINKS, sink=_without_the_sink_of_head_5),
    wrong("sink_per_segment", "long", SINKS, sink=lambda at, sinks: sinks if at.long else NO_EDIT.sink(at, sinks)),
    wrong("sink_scaled", "all", SINKS, sink=lambda at, sinks: NO_EDIT.sink(at, sinks * at.batch.softmax_scale)),
    wrong("sink_softcapped", "all", SINKS.but(softcap=5.0),
          sink=lambda at, sinks: NO_EDIT.sink(at, at.features.softcap * torch.tanh(sinks / at.features.softcap))),
    wrong("last_segment_not_rescaled", "long", LONG, weights=_last_segment_as_it_is),
    wrong("lse_in_base_two", "all", LONG.but(lse=True), lse=lambda at, lse: lse * math.log2(math.e)),
    wrong("empty_row_is_nan", "one sequence", EMPTY, finish=lambda at, acc, l: acc / l[..., None]),
    wrong("empty_row_lse_is_plus_inf", "one sequence", EMPTY,
          lse=lambda at, lse: lse.masked_fill(lse == -math.inf, math.inf)),
    wrong("empty_row_is_minus_zero", "one sequence", EMPTY,
          finish=lambda at, acc, l: torch.where(l[..., None] == 0, -0.0, acc / l[..., None])),
)  # fmt: skip
_ROUNDED = (
    wrong("accumulator_in_bf16", "long", LONG.but(tile=16, segments=1),
          accumulator=lambda at, acc: acc.bfloat16().float() if at.long else acc),
    wrong("probabilities_in_e4m3", "long", LONG,
          probabilities=lambda at, p: p.to(torch.float8_e4m3fn).float() if at.long else p),
    wrong("tf32_undeclared", "all", LONG.but(heads=(4, 2), dtype=torch.float32),
          operand=lambda at, x: tf32(x)),
    wrong("query_scaled_in_bf16", "all", MIXED.but(head_size=128, loud=30.0),
          query=_query_scaled_in_bf16),
    wrong("scratch_not_cleared", "one sequence", SHORT_BEHIND_LONG, _ScratchNotCleared),
)  # fmt: skip
_WRITTEN = (
    wrong("row_unwritten", "one sequence", MIXED, store=_first_row_unwritten),
    wrong("last_column_unwritten", "one head", MIXED, store=_last_column_unwritten),
    wrong("row_past_the_end_written", "one sequence", MIXED, store=_row_past_the_end_written),
    wrong("wrote_behind_the_buffer", "all", MIXED, store=_wrote_behind_the_buffer),
    wrong("query_scaled_in_place", "all", MIXED, query=_query_scaled_in_place),
    wrong("cache_cleaned_in_place", "all", MIXED, cache=lambda at, kind, cache: cache.nan_to_num_(0.0)),
)
MATH = _COMPUTED + _ROUNDED + _WRITTEN
