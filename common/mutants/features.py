"""Mutants of features beyond plain causal attention: biases, masks, trees, scales and fp8 outputs."""

from dataclasses import replace

import torch

from common.cases.named import FEATURE_CASES
from common.mutants.mutant import NO_EDIT, Mutant, Probe, wrong

_BY_NAME = {case.name: case for case in FEATURE_CASES}


def _on(name: str, case: str, scope: str = "all", dtype: torch.dtype | None = None, **seams) -> Mutant:
    """A mutant on a named case, in the case's dtype or in another."""
    found = _BY_NAME[case]
    return wrong(name, scope, Probe(found if dtype is None else replace(found, dtype=dtype)), **seams)


def _as_of_a_power_of_two(at, slopes):
    return 2.0 ** (-8.0 * (1 + torch.arange(len(slopes))) / len(slopes))


def _from_the_query(at, query, key, seen):
    """Chunks that begin at the first query's position, not at the sequence's."""
    first = (query - at.context_len) // at.features.chunk * at.features.chunk + at.context_len
    return seen & (key >= first)


def _right_of_the_window_too(at, query, key, seen):
    """The window bounds only the keys before a query."""
    right = (key > query) & (key < at.seq_len)
    return seen if at.features.causal_per_sequence[at.seq] else seen | right


def _no_sink_without_keys(at, sinks):
    """LSE -inf though the sink is part of the sum: a merge by LSE then weighs the other part too much."""
    return NO_EDIT.sink(at, sinks) if at.seq_len else torch.full_like(sinks, -torch.inf)


def _no_lse_of_blind_rows(at, lse):
    """LSE -inf, despite its sink, for a row whose mask hides every key."""
    position = torch.arange(at.context_len, at.seq_len)
    return torch.where(position < 0, -torch.inf, lse)


def _by_logical_page(at, kind, scale):
    """The scales of one sequence's V in logical page order instead of through the block table."""
    if kind == "key" or at.seq != 0:
        return scale
    table = at.batch.block_table[at.seq].long()
    moved = scale.clone()
    used = -(-at.seq_len // scale.shape[1])
    moved[table[:used]] = scale[table[:used].flip(0)]
    return moved


def _times_256(at, p, dtype):
    """P times 256, which exceeds e4m3fnuz's 240, with a cast that does not saturate."""
    return (2 * p).masked_fill(2 * p > torch.finfo(dtype).max, float("nan")).to(dtype).float() / 2


_BF16 = torch.bfloat16
_BIASES = (
    _on("alibi_of_the_other_sign", "alibi-slopes-of-4-heads", slopes=lambda at, slopes: -slopes),
    _on("alibi_missing_in_a_head", "alibi-slopes-of-32-heads", "one head",  # that of the smallest slope, 2^-8
        slopes=lambda at, slopes: slopes * (slopes > slopes.min())),
    _on("alibi_slopes_as_of_a_power_of_two", "alibi-slopes-of-12-heads", dtype=_BF16, slopes=_as_of_a_power_of_two),
    _on("alibi_from_the_context", "alibi-with-sinks-and-softcap",  # the same softmax, except beside a sink
        distance=lambda at, query, key: (key - at.context_len).float().expand(query.shape[0], -1)),
    _on("alibi_root_missing", "alibi-sqrt", distance=lambda at, query, key: (key - query).float()),
    _on("alibi_root_to_the_right_too", "alibi-sqrt-to-both-sides",
        distance=lambda at, query, key: -(query - key).abs().float().sqrt()),
    _on("tree_row_shifted", "tree-of-8", tree=lambda at, row, column: (row - 1, column)),
    _on("tree_by_position_in_the_sequence", "tree-of-8",
        tree=lambda at, row, column: (row, column + at.context_len)),
    _on("tree_repeats_its_last_row", "tree-smaller-than-the-query",
        tree=lambda at, row, column: (row.clamp(max=at.features.tree_bias.shape[0] - 1), column)),
)  # fmt: skip
_MASKS = (
    _on("chunk_lookback_one_more", "chunk-of-16-lookback-1", chunk=lambda at, chunk, lookback: (chunk, lookback + 1)),
    _on("chunk_as_a_window", "chunk-of-10-lookback-2", dtype=_BF16,
        chunk=lambda at, chunk, lookback: (1, chunk * (lookback + 1) - 1)),
    _on("chunks_counted_from_the_query", "chunk-of-16", chunk=lambda *_: (2**20, 0), visible=_from_the_query),
    _on("span_end_exclusive", "spans-in-a-prompt",
        spans=lambda at, spans: [(first, last - 1) for first, last in NO_EDIT.spans(at, spans)]),
    _on("spans_from_the_context", "spans-in-a-prompt",
        spans=lambda at, spans: [(a + at.context_len, b + at.context_len) for a, b in NO_EDIT.spans(at, spans)]),
    _on("first_span_alone", "spans-in-a-prompt", spans=lambda at, spans: NO_EDIT.spans(at, spans)[:1]),
    _on("span_clipped_by_the_window", "spans-left-of-the-window",
        visible=lambda at, query, key, seen: seen & (query - key < at.features.sliding_window)),
    # V is zeroed left of the first row's window, though a span reaches past the window
    _on("values_of_long_spans_dropped", "spans-longer-than-the-window",
        wanted=lambda at, key, seen: NO_EDIT.wanted(at, key, seen)
        & (at.context_len - key < at.features.sliding_window)),
    _on("causal_flag_of_the_neighbour", "per-sequence-mixed", "one sequence",
        causal=lambda at, flags: bool(flags[(at.seq + 1) % len(flags)])),
    _on("non_causal_sequence_sees_all_to_the_right", "per-sequence-with-window", "one sequence",
        visible=_right_of_the_window_too),
    _on("cross_is_causal", "cross-fewer-keys-than-queries",
        visible=lambda at, query, key, seen: seen & (key <= query.clamp(min=0))),
    # rows before the first key see nothing, as if the attention were causal
    _on("non_causal_asks_for_a_position", "fewer-keys-non-causal",
        visible=lambda at, query, key, seen: seen & (query >= 0)),
    # the mask is aligned with the first key instead of the last, as in FlashAttention before 2.1
    _on("first_query_at_the_first_key", "fewer-keys-causal", dtype=_BF16,
        visible=lambda at, query, key, seen: key <= query - min(at.context_len, 0)),
    # a negative position becomes 0, so that the row's window covers keys that are too far away
    _on("window_of_a_row_before_the_keys_at_the_first", "fewer-keys-to-both-sides", dtype=_BF16,
        visible=lambda at, query, key, seen: seen | ((query < 0) & (key < at.features.sliding_window))),
    _on("sink_without_keys_dropped", "sinks-without-keys", dtype=_BF16, sink=_no_sink_without_keys),
    _on("sink_of_a_blind_row_dropped", "fewer-keys-sinks-fp8-query", lse=_no_lse_of_blind_rows),
)  # fmt: skip
_SCALES = (
    _on("scale_of_k_for_v", "fp8-scales-of-heads", dtype=_BF16, kv_scale=lambda at, kind, scale: at.features.key_scale),
    _on("scale_of_the_first_head_for_all", "fp8-scales-of-heads", "one head", _BF16,
        kv_scale=lambda at, kind, scale: scale[:1].expand(len(scale)).contiguous()),
    _on("scale_of_the_next_slot", "fp8-scales-of-tokens",
        kv_scale=lambda at, kind, scale: scale.roll(-1, 1) if kind == "key" else scale),
    _on("scale_of_the_logical_page", "int8", "one sequence", kv_scale=_by_logical_page),
    # the same bits mean twice as much
    _on("fnuz_read_as_fn", "fp8-fnuz", stored=lambda at, kind, x: x.view(torch.float8_e4m3fn)),
    _on("query_scale_forgotten", "fp8-query-fp16-out-scales", query_scale=lambda at, scale: None),
    _on("probabilities_times256_in_fnuz", "fp8-query-fnuz", rounded=_times_256),
    # P times its scale overflows to Inf
    _on("probabilities_times_scale_in_fp16", "fp8-large-scales-of-tokens-fp16",
        rounded=lambda at, p, dtype: p.half()),
    # a cast to fp8 without saturation gives NaN past 448
    _on("output_not_cut", "fp8-out-saturated",
        cut=lambda at, rows, most: rows.masked_fill(rows.abs() > most, float("nan"))),
    _on("output_times_its_scale", "fp8-out",
        cut=lambda at, rows, most: NO_EDIT.cut(at, rows * at.features.out_scale**2, most)),
    _on("scale_of_the_value_size", "value-64-head-96", scale=lambda at, scale: at.batch.shape.value_lanes**-0.5),
)  # fmt: skip
FEATURES = _BIASES + _MASKS + _SCALES
