"""Copy the keys of long queries out of their pages (ours): what unpaged.py attends to.

Grid: a fixed number of programs, which stride over tiles x num_kv_heads. The scratch holds one region of whole tiles
for each sequence of more than `short` query tokens. Every program computes where regions begin, a prefix sum over the
sequences, 256 at a time: a launch of its own would cost more.
"""

import helion.language as hl
import torch

from common.spec.metadata import SHORT_QUERY
from dsl_helion.binding import cache_view, gather_form, kernel, run
from dsl_helion.features import bundle
from dsl_helion.masks import kv_tile_range, not_before
from dsl_helion.primitives import find_slots, load_kv_tile, load_token_scales

SEQUENCES = 256  # per step of the prefix sum; an argument of kernels, because Helion takes no global as a size


def region_tiles(query_start_loc, seq_lens, seq, live, f, tile_size, short, limits=(None, None)):
    """First tile and first key that a sequence's queries need, and how many tiles are copied: 0 of a short query.

    limits: (query rows of the batch, keys of a sequence). A sequence beyond them is not copied. None: no limits.
    """
    query_start = hl.load(query_start_loc, [seq], extra_mask=live)
    query_end = hl.load(query_start_loc, [seq + 1], extra_mask=live)
    query_len = query_end - query_start
    seq_len = hl.load(seq_lens, [seq], extra_mask=live)
    if limits[0] is not None:
        query_len = torch.where((query_end > limits[0]) | (seq_len > limits[1]), 0, query_len)
    context_len = seq_len - query_len
    first_key, _, lo, _, _, hi = kv_tile_range(seq, context_len, seq_len - 1, seq_len, f, tile_size, live)
    return lo, first_key, torch.where(query_len > short, hi - lo, 0)


def copy_scales(to, scales, block_table, seq, j, key_pos, first_key, end_key, f, kv_head, wanted, block_size,
                tile_size, row):  # fmt: skip
    """Copy scales of `wanted` keys to `row` of a float32 scratch, 0 for others; nothing without scales per token."""
    if scales is not None:
        tile = block_table, seq, j, key_pos, first_key, end_key, f, kv_head
        hl.store(to, [row], load_token_scales(scales, *tile, wanted, block_size, tile_size, True))


def _copy_kernel(
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size], flat: [rows, num_kv_heads, head_size]
    value_cache: torch.Tensor,  # the same, value_size in place of head_size
    block_table: torch.Tensor,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
    seq_lens: torch.Tensor,  # i32 [num_seqs]
    key: torch.Tensor,  # [num_kv_heads * tiles * tile_size, head_size]
    value: torch.Tensor,  # the same, value_size in place of head_size
    key_scales: torch.Tensor | None,  # f32 [num_kv_heads * tiles * tile_size]
    value_scales: torch.Tensor | None,  # the same of V
    num_tokens: int | None,  # of a batch, and keys of a sequence, at most: what exceeds them is not copied
    max_keys: int | None,
    f: dict,
    num_kv_heads: hl.constexpr,
    block_size: hl.constexpr,
    page_rows: int,
    gather: hl.constexpr,
    short: hl.constexpr,
    sequences: hl.constexpr,
    programs: int,
) -> None:
    hl.pdl_wait()  # the next line makes this a dependent launch as well, so it must wait for what ran before it
    hl.pdl_launch_dependents()  # the attention's launch begins while the copy runs (NVIDIA from sm_90 on)
    num_seqs = seq_lens.size(0)
    hl.specialize((key_cache.size(-1), value_cache.size(-1), key_cache.size(-2), value_cache.size(-2)))
    hl.specialize((key_cache.size(1), value_cache.size(1)))  # whole pages need no mask
    hl.specialize((key_cache.stride(0), value_cache.stride(0)))  # K and V share what is computed of a page
    hl.specialize((key_cache.stride(-3), value_cache.stride(-3)))  # of slots: whole pages then add one offset a page
    hl.specialize((key.size(1), value.size(1)))
    tile_size = hl.register_block_size(16, 256)
    tiles = key.size(0) // (num_kv_heads * tile_size)
    for program in hl.grid(programs):
        total = hl.zeros([], dtype=torch.int32)
        for first in hl.grid(0, num_seqs, sequences):
            index = first + hl.arange(sequences)
            _, _, count = region_tiles(
                query_start_loc, seq_lens, index, index < num_seqs, f, tile_size, short, (num_tokens, max_keys)
            )
            total = total + count.sum(0, dtype=torch.int32)
        held = torch.minimum(total, hl.full([], tiles, dtype=torch.int32))
        for item in hl.grid(program, held * num_kv_heads, programs):
            kv_head = item % num_kv_heads
            at = item // num_kv_heads  # the tile of the scratch
            seq = hl.zeros([], dtype=torch.int32)
            begin = hl.zeros([], dtype=torch.int32)
            end_before = hl.zeros([], dtype=torch.int32)
            for chunk in hl.grid(0, num_seqs, sequences):
                index = chunk + hl.arange(sequences)
                live = index < num_seqs
                _, _, count = region_tiles(
                    query_start_loc, seq_lens, index, live, f, tile_size, short, (num_tokens, max_keys)
                )
                end = end_before + torch.cumsum(count, 0).to(torch.int32)
                before = live & (end <= at)
                seq = seq + before.to(torch.int32).sum(0, dtype=torch.int32)
                begin = torch.maximum(begin, torch.where(before, end, 0).amax(0))
                end_before = end_before + count.sum(0, dtype=torch.int32)
            lo, first_key, _ = region_tiles(
                query_start_loc, seq_lens, seq, seq >= 0, f, tile_size, short, (num_tokens, max_keys)
            )
            j = lo + at - begin
            key_pos = j * tile_size + hl.arange(tile_size)
            end_key = seq_lens[seq]
            wanted = not_before(first_key, key_pos, key_pos < end_key, f)
            page, slot = find_slots(
                block_table, seq, j, key_pos, first_key, end_key, f, block_size, page_rows, gather, tile_size, True
            )
            k = load_kv_tile(key_cache, page, slot, kv_head, wanted, block_size, gather, tile_size, key.dtype, True)
            v = load_kv_tile(value_cache, page, slot, kv_head, wanted, block_size, gather, tile_size, value.dtype, True)
            row = (kv_head * tiles + at) * tile_size + hl.arange(tile_size)
            hl.store(key, [row, slice(None)], k)
            hl.store(value, [row, slice(None)], v)
            tile = block_table, seq, j, key_pos, first_key, end_key, f, kv_head
            copy_scales(key_scales, f["key_token_scales"], *tile, wanted, block_size, tile_size, row)
            copy_scales(value_scales, f["value_token_scales"], *tile, wanted, block_size, tile_size, row)


_copy = kernel(_copy_kernel, "num_seqs", "tiles", "num_tokens", "max_keys", "programs")


def copy_pages(batch, features, key, value, scales, tiles, config, limits=(None, None)) -> None:
    """Fill the regions that begin within `tiles` tiles of key and value [num_kv_heads * tiles * tile_size, head_size].

    Before the first key that a window shows to any row, and behind a sequence's last, its tiles are zeros.
    scales: as copied_scales gives them. limits: query rows of the batch, and keys of a sequence, where either may be
    exceeded.
    """
    shape, tile_size = batch.shape, config.tile_size
    gather, page_rows = gather_form(config.gather, batch, tile_size)
    args = (
        cache_view(batch.key_cache, gather, page_rows), cache_view(batch.value_cache, gather, page_rows),
        batch.block_table, batch.query_start_loc, batch.seq_lens, key, value, *scales,
        *limits, bundle(features, config),
        shape.num_kv_heads, shape.block_size, page_rows, gather, SHORT_QUERY, SEQUENCES,
        min(tiles * shape.num_kv_heads, config.copy_programs),
    )  # fmt: skip
    run(_copy, config, args, block_sizes=[tile_size], num_warps=4, num_stages=2)
