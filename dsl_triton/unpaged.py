"""Un-paged prefill (ours): the keys of long queries are copied out of their pages once, then read as whole tiles.

Copy: a persistent grid takes K and V of sequences with more than SHORT_QUERY query tokens, tile by tile and KV head by
KV head, into contiguous head-major scratch. Attend: Q Blocks x num_kv_heads, one axis, as in q_block.py, but a tile is
one block of a tensor descriptor (TMA on NVIDIA from sm_90 on, plain loads elsewhere). Short queries: the segments of
parallel_softmax.py, on a stream beside. New over adjustable_tile.py: O(keys) of copying make the O(query tokens x keys)
loop free of block tables, and each key's address is computed once instead of once a Q Block.

Which sequence is read from where is decided on the device, so a wrong hint costs time and never correctness:
    "copied"  those whose region fits into the scratch
or, without a copy, where no context is expected (Prefill.new_kv) and the step's new K and V are given:
    "new"     those without context: batch.key and batch.value are all that they see
The others are read through their pages, on the stream beside, by a launch of few programs (paged_queries.py); after a
copy there is one where the shapes allow such a batch.
Where the sums of all lanes of V would spill (common/choice/legal.py), each part of 256 lanes has launches of its own.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import triton
import triton.language as tl

from common.choice.legal import fits_one, value_parts
from common.gpus import warp_size
from common.spec import AttentionShape, Cdna, Gpu
from common.spec.kernel import (
    SEAMS,
    Capacity,
    Precision,
    beside,
    copied_scales,
    join,
    launches,
    side_stream,
)
from common.spec.metadata import ANY_QUERY, SHORT_QUERY
from common.spec.workspaces import CopyScratch, has_room, may_overflow, of_lanes, partials
from dsl_triton import parallel_softmax, reduce_segments
from dsl_triton.binding import as_partial, as_tensor, block_m_of, padded
from dsl_triton.copy_pages import SEQUENCES, copied_lanes, copy_pages, region_tiles
from dsl_triton.dense_tiles import Block, attend_block, masked_tile, tile_sources
from dsl_triton.features import bundle, row_operands
from dsl_triton.head_parts import init_parts, load_parts, narrow_parts, store_partial_sums, store_sums
from dsl_triton.masks import kv_tile_range, segment_range
from dsl_triton.paged_queries import attend_paged_queries
from dsl_triton.primitives import (
    head_and_block,
    q_block_rows,
    search_sequence,
    store_lse,
)

SUPPORTS = SEAMS | {"lse", "full_graph"}
CONTRACT = Precision()
MOST_PARTS = 4096  # segments x query tokens that may leave parts; larger batches are not split


@dataclass(frozen=True)
class Prefill(Cdna):
    """block_m, tile_size: rows of a Q Block, keys of a tile. copy_programs: programs of the copy, over all its tiles.

    num_segments: at most that many programs share the tiles of one Q Block, as in parallel_softmax.py: a chunk of few
    query tokens over a long context has few Q Blocks.
    heads_fastest: programs that start together work on the KV heads of one Q Block, not on Q Blocks of one KV head.
    overlap: the attention's launch begins while the copy runs (programmatic dependent launch: NVIDIA from sm_90 on).
    new_kv: long queries are expected to have no context: where the step's new K and V are given, nothing is copied.
    descriptors: tiles are blocks of tensor descriptors, of which Triton 3.7 makes loads of 2 bytes on GPUs without TMA;
    else plain loads, of 16 bytes.
    """

    RUN_TIME: ClassVar = ("num_segments",)

    block_m: int = 32
    tile_size: int = 32
    num_warps: int = 4
    num_stages: int = 2
    num_segments: int = 1
    heads_fastest: bool = True
    copy_programs: int = 1024
    overlap: bool = False
    new_kv: bool = False
    descriptors: bool = True


@dataclass(frozen=True)
class Config:
    """prefill: sequences of more than SHORT_QUERY query tokens; decode: the others."""

    prefill: Prefill = Prefill()
    decode: parallel_softmax.Config = parallel_softmax.DEFAULT


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Configs whose operands fit into shared memory and whose accumulator fits into registers."""
    decode = replace(parallel_softmax.DEFAULT, overlap=gpu.tma)
    for values in itertools.product((32, 64, 128), (32, 64, 128), (4, 8), (1, 2, 3), (1, 2, 4, 8), (True, False)):
        if fits_one(*values[:4], shape, gpu, dense=True):
            prefill = Prefill(*values, copy_programs=8 * gpu.units, overlap=gpu.tma)
            yield Config(prefill, decode)


@triton.jit(do_not_specialize=["num_seqs", "tiles", "num_segments"])  # do not recompile for another batch or scratch
def _unpaged_kernel(
    query,  # [num_tokens, num_query_heads, HEAD_SIZE]
    keys,  # Block of [num_kv_heads * tiles * TILE_SIZE, lanes], or [num_tokens, num_kv_heads * HEAD_SIZE]
    values,  # the same of V
    key_rest,  # Block of K's lanes behind the first part, or None
    value_rest,  # the same of V
    scales,  # of keys, of values: f32 [num_kv_heads * tiles * TILE_SIZE] or None
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    out,  # [num_tokens, num_query_heads, VALUE_SIZE]
    lse,  # f32 [num_tokens, num_query_heads] or None
    partial,  # binding.Partial; None with one segment
    num_seqs,
    tiles,
    num_segments,
    softmax_scale,
    f,
    NUM_KV_HEADS: tl.constexpr, QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    FORM: tl.constexpr, SHORT: tl.constexpr, NEW: tl.constexpr, HEADS_FASTEST: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    BLOCK_M: tl.constexpr = FORM[0]
    TILE_SIZE: tl.constexpr = FORM[1]
    BLOCK_Q: tl.constexpr = BLOCK_M // QUERIES_PER_KV
    PARTS: tl.constexpr = 1 if key_rest is None else 2
    # One axis: others hold 65,535 programs at most. The last Q Blocks of a prefill see most keys and start first.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    if f.xcds is not None:
        kv_head, block = head_and_block(f, NUM_KV_HEADS, LAST_FIRST=True)
    elif HEADS_FASTEST:
        kv_head = program % NUM_KV_HEADS
        block = program // NUM_KV_HEADS
    else:
        kv_head = program // (tl.num_programs(0) // NUM_KV_HEADS)
        block = program % (tl.num_programs(0) // NUM_KV_HEADS)
    segments = 1 if partial is None else num_segments
    segment = block % segments
    q_block_idx = block // segments

    seq = search_sequence(q_block_idx, 0, num_seqs, query_start_loc_ptr, BLOCK_Q)

    query_start = tl.load(query_start_loc_ptr + seq)
    query_len = tl.load(query_start_loc_ptr + seq + 1) - query_start
    first = (q_block_idx - (query_start // BLOCK_Q + seq)) * BLOCK_Q
    seq_len = tl.load(seq_lens_ptr + seq)
    context_len = seq_len - query_len
    mine = (first < query_len) & (query_len > SHORT)
    if NEW:
        mine = mine & (context_len <= 0)
        row = query_start - context_len
        column = kv_head * HEAD_SIZE
    else:
        begin = 0  # of the sequence's region in the scratch, in tiles
        for before in range(0, seq, SEQUENCES):
            index = before + tl.arange(0, SEQUENCES)
            _, _, count = region_tiles(query_start_loc_ptr, seq_lens_ptr, index, index < seq, f, TILE_SIZE, SHORT)
            begin += tl.sum(count, 0)
        region_lo, _, count = region_tiles(query_start_loc_ptr, seq_lens_ptr, seq, True, f, TILE_SIZE, SHORT)
        mine = mine & (begin + count <= tiles)
        row = (kv_head * tiles + begin - region_lo) * TILE_SIZE
        column = 0
    token, head, live = q_block_rows(first, kv_head, query_len, QUERIES_PER_KV, BLOCK_M)
    q = load_parts(query.ptr, query.strides, query_start + token, head, live & mine, HEAD_SIZE, PARTS)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()  # Wait for the copy, in every program: this launch ends after it.
    if mine:
        query_pos = context_len + token
        last_pos = context_len + tl.minimum(first + BLOCK_Q, query_len) - 1
        r = row_operands(f, seq, kv_head, token, head, live, context_len)
        m, l, acc = init_parts(f, head, live, segment, q, VALUE_SIZE, PARTS)
        _, _, lo, full_lo, full_hi, hi = kv_tile_range(seq, context_len + first, last_pos, seq_len, f, TILE_SIZE)
        start, full_start, full_stop, stop, used = segment_range(segment, lo, full_lo, full_hi, hi, f, segments)
        for j in range(full_start, full_stop):
            m, l, acc = attend_block(
                j, q, m, l, acc, query_pos, seq_len, softmax_scale, f, r,
                keys, values, key_rest, value_rest, scales[0], scales[1], row + j * TILE_SIZE, column,
                TILE_SIZE, VALUE_SIZE, MASKED=False, FOREIGN=False,
            )  # fmt: skip
        for i in range(0, full_start - start + stop - full_stop):
            j = masked_tile(i, full_start - start, start, full_stop)
            m, l, acc = attend_block(
                j, q, m, l, acc, query_pos, seq_len, softmax_scale, f, r,
                keys, values, key_rest, value_rest, scales[0], scales[1], row + j * TILE_SIZE, column,
                TILE_SIZE, VALUE_SIZE, MASKED=True, FOREIGN=NEW,
            )  # fmt: skip
        acc = narrow_parts(acc, VALUE_SIZE, PARTS)
        place = query_start + token
        if partial is None or used <= 1:
            if segment == 0:
                store_sums(out.ptr, out.strides, place, head, live, acc, l, kv_head, f, VALUE_SIZE, PARTS)
                store_lse(lse.ptr, lse.strides, place, head, live, m, l)
        else:
            store_partial_sums(partial, segment, place, head, live, m, l, acc, VALUE_SIZE, PARTS)


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> CopyScratch:
    """Scratch for `capacity.num_keys` keys of long queries; sequences beyond it are read through their pages."""
    decode = parallel_softmax.workspace(shape, capacity, config.decode, SHORT_QUERY)
    tile_size, segments = config.prefill.tile_size, config.prefill.num_segments
    return CopyScratch.up_to(capacity, shape, tile_size, segments, MOST_PARTS, copied_lanes(shape), decode)


@launches("triton/unpaged", SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    if batch.num_tokens <= SHORT_QUERY:
        parallel_softmax.attend_segments(batch, features, out, config.decode, workspace.decode, lse, SHORT_QUERY)
        return
    side = side_stream(batch.device)
    with beside(side):
        parallel_softmax.attend_segments(batch, features, out, config.decode, workspace.decode, lse, SHORT_QUERY)
    attend_unpaged(batch, features, out, config.prefill, workspace, lse)
    join(side)


def attend_unpaged(batch, features, out, config, workspace, lse) -> None:
    """Copy and attend, for the sequences of more than SHORT_QUERY query tokens; no other row is written.

    If the sums of all lanes of V do not fit into registers, each part of the lanes has a launch, and both run at once.
    """
    shape, tile_size = batch.shape, config.tile_size
    rows, threads = block_m_of(config, shape), config.num_warps * warp_size(batch.device)
    parts = value_parts(rows, tile_size, threads, shape.value_lanes)
    if len(parts) > 1:  # no descriptor lies over a part of the new V; the copy is before both launches, not one
        config = replace(config, new_kv=False, overlap=False)
    views = [(batch, out, workspace)]
    if len(parts) > 1:
        views = [of_lanes(batch, out, workspace, lanes, padded(lanes.stop - lanes.start)) for lanes in parts]
    launches = [(*view, *_sources(view[0], features, config, view[2])) for view in views]
    sources, tiles = launches[0][3:]
    segments = config.num_segments
    if segments > 1 and not has_room(partials(workspace.parts)[0], batch, segments):
        segments = 1
    side, copied = side_stream(batch.device), "copied" in sources
    left = not copied or may_overflow(batch, tiles, tile_size)  # queries to their pages, as far as shapes say
    for part, to, scratch, *_ in launches if left else ():
        with beside(side):
            attend_paged_queries(part, features, to, config, scratch, lse, segments, tiles, not copied)
    if copied:
        scales = copied_scales(features, workspace.scales)
        copy_pages(batch, features, workspace.key, workspace.value, scales, tiles, config)
    for number, (part, to, scratch, *tiled) in reversed([*enumerate(launches)]):
        with beside(side if number else None):
            _attend(part, features, to, config, scratch, lse, segments, *tiled)
    if len(parts) > 1 or segments > 1:
        join(side if len(parts) > 1 or left else None)
    if segments > 1:
        merge = (rows // shape.queries_per_kv, ANY_QUERY, False, SHORT_QUERY + 1)
        reduce_segments.reduce_segments(batch, features, out, config, workspace.parts, lse, *merge)


def _sources(batch, features, config, workspace) -> tuple[dict[str, tuple[Block, ...]], int]:
    how = config.tile_size, config.new_kv, config.descriptors
    return tile_sources(batch, features, workspace.key, workspace.value, *how)


def _attend(batch, features, out, config, workspace, lse, segments, sources, tiles) -> None:
    """One launch, of the one source that there is."""
    shape, tile_size = batch.shape, config.tile_size
    block_m = block_m_of(config, shape)
    q_blocks = batch.num_q_blocks(block_m)
    scales = copied_scales(features, workspace.scales)
    ((source, blocks),) = sources.items()
    overlap = config.overlap and source == "copied"  # without a copy Q, read before the wait, may not be written yet
    _unpaged_kernel[(shape.num_kv_heads * q_blocks * segments,)](
        as_tensor(batch.query), *blocks, scales, batch.query_start_loc, batch.seq_lens, as_tensor(out),
        as_tensor(lse), as_partial(workspace.parts if segments > 1 else None), batch.num_seqs, tiles, segments,
        batch.softmax_scale, bundle(features, config),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, HEAD_SIZE=shape.head_size,
        VALUE_SIZE=shape.value_lanes, FORM=(block_m, tile_size), SHORT=SHORT_QUERY,
        NEW=source == "new", HEADS_FASTEST=config.heads_fastest, OVERLAP=overlap,
        num_warps=config.num_warps, num_stages=config.num_stages, **config.options(),
        **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip
