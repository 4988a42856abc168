"""Copy the keys of long queries out of their pages (ours): what unpaged.py attends to.

Grid: a fixed number of programs, which stride over tiles x num_kv_heads. The scratch holds one region of whole tiles
for each sequence of more than SHORT query tokens. Every program computes where regions begin, a prefix sum over the
sequences, 256 at a time: a launch of its own would cost more.
"""

import triton
import triton.language as tl

from common.spec import AttentionShape
from common.spec.kernel import parts_of
from common.spec.metadata import SHORT_QUERY
from dsl_triton.binding import as_tensor, padded
from dsl_triton.features import bundle
from dsl_triton.masks import kv_tile_range, not_before
from dsl_triton.primitives import find_slots, load_kv_tile, load_token_scales

SEQUENCES = tl.constexpr(256)  # per step of the prefix sum
UNLIMITED = 2**31 - 1  # no int32 exceeds it


@triton.jit
def region_tiles(
    query_start_loc_ptr, seq_lens_ptr, seq, live, f, TILE_SIZE: tl.constexpr, SHORT: tl.constexpr, limits=None
):  # fmt: skip
    """First tile and first key that a sequence's queries need, and how many tiles are copied: 0 of a short query.

    limits: (query rows of the batch, keys of a sequence). A sequence beyond them is not copied. None: no limits.
    """
    query_start = tl.load(query_start_loc_ptr + seq, mask=live, other=0)
    query_end = tl.load(query_start_loc_ptr + seq + 1, mask=live, other=0)
    query_len = query_end - query_start
    seq_len = tl.load(seq_lens_ptr + seq, mask=live, other=0)
    if limits is not None:
        query_len = tl.where((query_end > limits[0]) | (seq_len > limits[1]), 0, query_len)
    context_len = seq_len - query_len
    first_key, _, lo, _, _, hi = kv_tile_range(seq, context_len, seq_len - 1, seq_len, f, TILE_SIZE, live)
    return lo, first_key, tl.where(query_len > SHORT, hi - lo, 0)


@triton.jit
def find_region(
    at, query_start_loc_ptr, seq_lens_ptr, num_seqs, f, TILE_SIZE: tl.constexpr, SHORT: tl.constexpr, limits
):  # fmt: skip
    """The sequence whose region holds tile `at` of the scratch, the region's first tile, and the tiles of all."""
    seq = 0
    begin = 0
    total = 0
    for first in range(0, num_seqs, SEQUENCES):
        index = first + tl.arange(0, SEQUENCES)
        live = index < num_seqs
        _, _, tiles = region_tiles(query_start_loc_ptr, seq_lens_ptr, index, live, f, TILE_SIZE, SHORT, limits)
        end = total + tl.cumsum(tiles, 0)
        before = live & (end <= at)
        seq += tl.sum(before.to(tl.int32), 0)
        begin = tl.maximum(begin, tl.max(tl.where(before, end, 0), 0))
        total += tl.sum(tiles, 0)
    return seq, begin, total


@triton.jit
def store_whole_rows(ptr, row, x, LANES: tl.constexpr):
    """The first LANES lanes of x [TILE_SIZE, lanes] to rows of a contiguous [rows, LANES]."""
    lane = tl.expand_dims(tl.arange(0, x.shape[1]), 0)
    place = tl.expand_dims(row * LANES, 1) + lane
    if x.shape[1] == LANES:
        tl.store(ptr + place, x)
    else:
        tl.store(ptr + place, x, mask=lane < LANES)


@triton.jit
def copy_scales(to_ptr, scales_ptr, strides, page, slot, kv_head, wanted, row):
    """Copy scales of `wanted` keys to `row` of a float32 scratch, 0 for others; nothing without scales per token."""
    if scales_ptr is not None:
        tl.store(to_ptr + row, load_token_scales(scales_ptr, strides, page, slot, kv_head, wanted))


# do not recompile for another batch, capacity or scratch
@triton.jit(do_not_specialize=["num_seqs", "tiles", "num_tokens", "max_keys"])
def _copy_kernel(
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    value_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, VALUE_SIZE]
    block_table,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    key_ptr,  # [num_kv_heads, TILES * TILE_SIZE, KEY_LANES]
    value_ptr,  # [num_kv_heads, TILES * TILE_SIZE, VALUE_LANES]
    key_scales_ptr,  # f32 [num_kv_heads, TILES * TILE_SIZE] or None
    value_scales_ptr,  # the same of V
    num_seqs,
    tiles,
    num_tokens,  # limits of region_tiles
    max_keys,
    f,
    key_strides, value_strides,
    NUM_KV_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    KEY_LANES: tl.constexpr, VALUE_LANES: tl.constexpr, TILE_SIZE: tl.constexpr, SHORT: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    limits = (num_tokens, max_keys)
    item = tl.program_id(0)
    kv_head = item % NUM_KV_HEADS
    at = item // NUM_KV_HEADS
    seq, begin, total = find_region(at, query_start_loc_ptr, seq_lens_ptr, num_seqs, f, TILE_SIZE, SHORT, limits)
    while at < tl.minimum(total, tiles):
        lo, first_key, _ = region_tiles(query_start_loc_ptr, seq_lens_ptr, seq, True, f, TILE_SIZE, SHORT, limits)
        key_pos = (lo + at - begin) * TILE_SIZE + tl.arange(0, TILE_SIZE)
        end_key = tl.load(seq_lens_ptr + seq)
        wanted = not_before(first_key, key_pos, key_pos < end_key, f)
        table_ptr = block_table.ptr + seq.to(tl.int64) * block_table.strides[0]
        page, slot = find_slots(table_ptr, key_pos, first_key, end_key, f, BLOCK_SIZE, True)
        k = load_kv_tile(
            key_cache_ptr, key_strides, page, slot, kv_head, wanted, f, HEAD_SIZE, key_ptr.dtype.element_ty, True
        )
        v = load_kv_tile(
            value_cache_ptr, value_strides, page, slot, kv_head, wanted, f, VALUE_SIZE, value_ptr.dtype.element_ty, True
        )
        row = (kv_head.to(tl.int64) * tiles + at) * TILE_SIZE + tl.arange(0, TILE_SIZE)
        store_whole_rows(key_ptr, row, k, KEY_LANES)
        store_whole_rows(value_ptr, row, v, VALUE_LANES)
        copy_scales(key_scales_ptr, f.key_token_scales, f.key_token_strides, page, slot, kv_head, wanted, row)
        copy_scales(value_scales_ptr, f.value_token_scales, f.value_token_strides, page, slot, kv_head, wanted, row)
        item += tl.num_programs(0)
        kv_head = item % NUM_KV_HEADS
        at = item // NUM_KV_HEADS
        seq, begin, total = find_region(at, query_start_loc_ptr, seq_lens_ptr, num_seqs, f, TILE_SIZE, SHORT, limits)


def copied_lanes(shape: AttentionShape) -> tuple[int, int]:
    """Lanes of a row of the scratch for K and for V: a head's own where it has parts, else a power of two."""
    lanes = shape.head_size, shape.value_lanes
    return lanes if parts_of(shape) > 1 else (padded(lanes[0]), padded(lanes[1]))


def copy_pages(batch, features, key, value, scales, tiles, config, limits=(UNLIMITED, UNLIMITED)) -> None:
    """Fill the regions that begin within `tiles` tiles of key and value [num_kv_heads * tiles * tile_size, lanes].

    lanes: copied_lanes. Behind a sequence's last key its last tile is zeros. scales: as copied_scales gives them.
    limits: as of `region_tiles`.
    """
    shape = batch.shape
    _copy_kernel[(min(tiles * shape.num_kv_heads, config.copy_programs),)](
        batch.key_cache, batch.value_cache, as_tensor(batch.block_table), batch.query_start_loc, batch.seq_lens,
        key, value, *scales, batch.num_seqs, tiles, *limits, bundle(features, config),
        batch.key_cache.stride(), batch.value_cache.stride(),
        NUM_KV_HEADS=shape.num_kv_heads, HEAD_SIZE=shape.head_size, VALUE_SIZE=shape.value_lanes,
        BLOCK_SIZE=shape.block_size, KEY_LANES=key.shape[1], VALUE_LANES=value.shape[1], TILE_SIZE=config.tile_size,
        SHORT=SHORT_QUERY, OVERLAP=config.overlap, num_warps=4,
    )  # fmt: skip
