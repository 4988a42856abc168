"""Mutants that read the wrong keys: through the mask, the segments, or the address of a key."""

import torch

from common.mutants.emulation import State
from common.mutants.mutant import LONG, MIXED, SHORT_BEHIND_LONG, WINDOW, probe, wrong


def _own_key_hidden(at, query, key, seen):
    head = torch.arange(at.batch.query.shape[1])[:, None, None]
    return seen & ((head != 3) | (key != query) | (query == 0))


def _whole_pages(at):
    page = at.batch.key_cache.shape[1]
    return at.seq_len // page * page


def _empty_segment_of_one(at, states):
    """Segments without keys that count as one key of logit 0 would."""
    empty = [bool((state.l == 0).all()) for state in states]
    neutral = [State(torch.zeros_like(s.m), torch.ones_like(s.l), s.acc) for s in states]
    return [n if e else s for s, n, e in zip(states, neutral, empty, strict=True)]


def _next_page(at, index, where):
    """The pages of a tile, but the one behind wherever `where` holds."""
    return at.batch.block_table[at.seq].long()[index + where]


def _token_major(at, kind, cache):
    blocks, page, heads, size = cache.shape
    return cache.nan_to_num(0.5).reshape(blocks, heads, page, size).transpose(1, 2)


def _used_columns_alone(at, kind, index, pages):
    used = -(-int(at.batch.seq_lens.max()) // at.batch.key_cache.shape[1])
    flat = at.batch.block_table.flatten().long()[at.seq * used + index]
    return flat.clamp(0, at.batch.key_cache.shape[0] - 1)


def _slots_reversed(at, kind, slots):
    page = at.batch.key_cache.shape[1]
    return torch.where(slots.amax() == page - 1, page - 1 - slots, slots) if kind == "value" else slots


_SMALL = {"heads": (2, 1), "head_size": 8, "block_size": 8}
_MANY_PAGES = probe("many-pages", [(1, 900), (2, 700)], spare_pages=70_000, **_SMALL)
_MASK = (
    wrong("last_key_dropped", "long", LONG, visible=lambda at, query, key, seen: seen & (key < at.seq_len - at.long)),
    wrong("first_key_dropped", "long", LONG, visible=lambda at, query, key, seen: seen & (key >= at.long)),
    wrong("future_key_visible", "one sequence", MIXED,
          visible=lambda at, query, key, seen: seen | (key == query + (at.seq == 1))),
    wrong("own_key_hidden", "one head", MIXED, visible=_own_key_hidden),
    wrong("non_causal_taken_as_causal", "all", MIXED.but(causal=False),
          visible=lambda at, query, key, seen: seen & (key <= query)),
    wrong("window_one_short", "long", WINDOW,
          visible=lambda at, query, key, seen: seen & (key > query - at.features.sliding_window + at.long)),
    wrong("window_one_long", "long", WINDOW,
          visible=lambda at, query, key, seen: seen | (at.long & (key == query - at.features.sliding_window))),
    wrong("window_ignored_when_split", "all", WINDOW,
          visible=lambda at, query, key, seen: key <= query if at.schedule.segments > 1 else seen),
    wrong("window_open_to_the_right", "all", MIXED.but(causal=False, sliding_window=8),
          visible=lambda at, query, key, seen: seen | (key > query)),
    wrong("segment_boundary_key_dropped", "long", LONG,
          segment=lambda at, keys: keys[1:] if at.long and at.segment == 1 else keys),
    wrong("key_counted_in_two_segments", "long", LONG,
          segment=lambda at, keys: range(keys.start - 1, keys.stop) if at.long and at.segment == 1 else keys),
    wrong("partial_page_dropped", "long", LONG,
          visible=lambda at, query, key, seen: seen & (key < _whole_pages(at) if at.long else seen)),
    wrong("last_tile_skipped_when_full", "one sequence", probe("whole-tiles", [(1, 130), (1, 128), (3, 77)], 32),
          segment=lambda at, keys: keys[: -at.schedule.tile] if at.seq_len % at.schedule.tile == 0 else keys),
    wrong("empty_segment_not_neutral", "one sequence", SHORT_BEHIND_LONG, partials=_empty_segment_of_one),
)  # fmt: skip
_ADDRESS = (
    wrong("page_off_by_one", "one sequence", MIXED,
          pages=lambda at, kind, index, pages: _next_page(at, index, (index == 1) & (at.seq == 1))),
    wrong("page_of_next_sequence", "one sequence", MIXED,
          pages=lambda at, kind, index, pages: torch.where(
              (index == 0) & (at.seq == 0), at.batch.block_table[1, 0].long(), pages)),
    wrong("value_page_beside_key_page", "long", LONG,
          pages=lambda at, kind, index, pages: _next_page(at, index, (index == 40) & at.long & (kind == "value"))),
    wrong("page_id_in16_bits", "all", _MANY_PAGES,
          pages=lambda at, kind, index, pages: pages & 0xFFFF),
    wrong("value_slots_reversed", "all", MIXED, slots=_slots_reversed),
    wrong("head_major_cache_read_as_token_major", "all", MIXED, cache=_token_major),
    wrong("table_stride_is_used_columns", "all", MIXED, pages=_used_columns_alone),
    wrong("head_reads_neighbouring_kv_head", "one head", LONG,
          kv_heads=lambda at, heads: heads - (torch.arange(heads.numel()) == heads.numel() - 1).long()),
    wrong("ratio_rounded_up_to_power_of_two", "one head", MIXED.but(heads=(6, 2)),
          kv_heads=lambda at, heads: torch.arange(heads.numel()) // 4),
    wrong("query_row_of_neighbour", "one sequence", MIXED,
          query=lambda at, query: query.roll(1, dims=1) if at.seq == 1 else query),
)  # fmt: skip
KEYS = _MASK + _ADDRESS
