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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import helion.language as hl
import torch

from common.choice.legal import fits_one, value_parts
from common.gpus import warp_size
from common.spec import AttentionShape, Cdna, Gpu
from common.spec.kernel import SEAMS, Capacity, Precision, beside, copied_scales, join, parts_of, side_stream
from common.spec.metadata import ANY_QUERY, SHORT_QUERY
from common.spec.workspaces import CopyScratch, has_room, may_overflow, of_lanes, partials
from dsl_helion import parallel_softmax, reduce_segments
from dsl_helion.arithmetic import div, int32
from dsl_helion.binding import (
    Gather,
    block_m_of,
    fewest_rows,
    held,
    kernel,
    launches,
    loadable,
    loop_order,
    page_form_applies,
    run,
    smallest_block_m,
)
from dsl_helion.copy_pages import SEQUENCES, copy_pages, region_tiles
from dsl_helion.dense_tiles import attend_block, masked_tile, tile_sources
from dsl_helion.features import bundle, narrow, row_operands
from dsl_helion.head_parts import first_lanes, init_sums, load_parts, store_partial_sums, store_sums
from dsl_helion.masks import kv_tile_range, segment_range
from dsl_helion.paged_queries import attend_paged_queries
from dsl_helion.primitives import begins, q_block_rows, store_lse

SUPPORTS = SEAMS | {"lse", "full_graph"}
CONTRACT = Precision()
MOST_PARTS = 4096  # segments x query tokens that may leave parts; larger batches are not split


@dataclass(frozen=True)
class Prefill(Cdna):
    """block_m, tile_size: rows of a Q Block, keys of a tile. copy_programs: programs of the copy, over all its tiles.

    num_segments: at most that many programs share the tiles of one Q Block, as in parallel_softmax.py: a chunk of few
    query tokens over a long context has few Q Blocks.
    heads_fastest: programs that start together work on the KV heads of one Q Block, not on Q Blocks of one KV head.
    gather: how the copy reads the pages (binding.Gather); the next form where it does not apply.
    new_kv: long queries are expected to have no context: where the step's new K and V are given, nothing is copied.
    """

    RUN_TIME: ClassVar = ("num_segments",)

    block_m: int = 32
    tile_size: int = 32
    gather: Gather = "page"
    num_warps: int = 4
    num_stages: int = 2
    num_segments: int = 1
    heads_fastest: bool = True
    copy_programs: int = 1024
    new_kv: bool = False


@dataclass(frozen=True)
class Config:
    """prefill: sequences of more than SHORT_QUERY query tokens; decode: the others."""

    prefill: Prefill = Prefill()
    decode: parallel_softmax.Config = parallel_softmax.DEFAULT


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Configs whose operands fit into shared memory and whose accumulator fits into registers."""
    axes = (32, 64, 128), (32, 64, 128), ("page", "flat"), (4, 8), (1, 2, 3), (1, 2, 4, 8), (True, False)
    for rows, tile_size, gather, warps, stages, *rest in product(*axes):
        if gather == "page" and not page_form_applies(shape, tile_size):
            continue
        if fits_one(max(rows, smallest_block_m(shape)), tile_size, warps, stages, shape, gpu, dense=True):
            prefill = Prefill(rows, tile_size, gather, warps, stages, *rest, 8 * gpu.units)
            yield Config(prefill, parallel_softmax.DEFAULT)


def _unpaged_kernel(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_size]
    keys: torch.Tensor,  # [num_kv_heads * tiles * tile_size, head_size]; new: [num_tokens, num_kv_heads, head_size]
    values: torch.Tensor,  # the same of V
    key_scales: torch.Tensor | None,  # f32 [num_kv_heads * tiles * tile_size]
    value_scales: torch.Tensor | None,  # the same of V
    query_start_loc: torch.Tensor,  # i32 [num_seqs + 1]
    seq_lens: torch.Tensor,  # i32 [num_seqs]
    out: torch.Tensor,  # [num_tokens, num_query_heads, value_size]
    lse: torch.Tensor | None,  # f32 [num_tokens, num_query_heads]
    partial_acc: torch.Tensor | None,  # f32 [num_segments, num_tokens, num_query_heads, value_size]
    partial_m: torch.Tensor | None,  # f32 [num_segments, num_tokens, num_query_heads]
    partial_l: torch.Tensor | None,  # f32 [num_segments, num_tokens, num_query_heads]
    tiles: int,
    softmax_scale: float,
    f: dict,
    num_kv_heads: hl.constexpr,
    short: hl.constexpr,
    sequences: hl.constexpr,
    new: hl.constexpr,
    first_part: hl.constexpr,
    parts: hl.constexpr,
    num_segments: int,
) -> None:
    hl.pdl_wait()  # Wait for the copy, in every program: this launch ends after it.
    num_seqs = seq_lens.size(0)
    hl.specialize(query.size(2))
    value_size = hl.specialize(out.size(2))
    hl.specialize((keys.size(-1), values.size(-1)))
    heads = -2 if new else -1  # rows of scratch are no constant: each of a plan's sizes would be traced
    hl.specialize((keys.size(heads), values.size(heads)))
    queries_per_kv = hl.specialize(query.size(1)) // num_kv_heads
    block_m = hl.register_block_size(fewest_rows(queries_per_kv), 256)
    tile_size = hl.register_block_size(16, 256)
    block_q = block_m // queries_per_kv
    q_blocks = query.size(0) // block_q + num_seqs
    for program, segment, kv_head in hl.grid([q_blocks, num_segments, num_kv_heads]):
        q_block_idx = int32(q_blocks - 1 - program)  # the last Q Blocks of a prefill see most keys and start first
        # the last sequence that begins at or before this Q Block; sequence i does at query_start_loc[i] // block_q + i
        left = hl.zeros([], dtype=torch.int32)
        right = hl.full([], num_seqs, dtype=torch.int32)
        while right - left > 1:
            middle = div(left + right, 2)
            if begins(q_block_idx, query_start_loc[middle], middle, block_q):
                left = middle
            else:
                right = middle
        seq = left
        query_start = query_start_loc[seq]
        query_len = query_start_loc[seq + 1] - query_start
        first = (q_block_idx - (div(query_start, block_q) + seq)) * int32(block_q)
        seq_len = seq_lens[seq]
        context_len = seq_len - query_len
        mine = (first < query_len) & (query_len > short)
        if new:
            mine = mine & (context_len <= 0)
            row = query_start - context_len
        else:
            begin = hl.zeros([], dtype=torch.int32)  # of the sequence's region in the scratch, in tiles
            for before in hl.grid(0, seq, sequences):
                index = before + hl.arange(sequences)
                _, _, earlier = region_tiles(query_start_loc, seq_lens, index, index < seq, f, tile_size, short)
                begin = begin + earlier.sum(0, dtype=torch.int32)
            region_lo, _, count = region_tiles(query_start_loc, seq_lens, seq, seq >= 0, f, tile_size, short)
            mine = mine & (begin + count <= tiles)
            row = (kv_head * tiles + begin - region_lo) * tile_size
        if mine:
            token, head, real = q_block_rows(first, kv_head, query_len, queries_per_kv, block_m)
            q = load_parts(query, query_start + token, head, real, first_part)
            query_pos = context_len + token
            last_pos = context_len + torch.minimum(first + int32(block_q), query_len) - 1
            r = row_operands(f, seq, kv_head, token, head, real, context_len)
            m, l, acc, acc_rest = init_sums(f, head, real, segment, q, value_size, parts)
            _, _, lo, full_lo, full_hi, hi = kv_tile_range(seq, context_len + first, last_pos, seq_len, f, tile_size)
            start, full_start, full_stop, stop, used = segment_range(segment, lo, full_lo, full_hi, hi, f, num_segments)
            for j_full in hl.grid(full_start, full_stop):
                m, l, acc, acc_rest = attend_block(
                    j_full, q, m, l, acc, acc_rest, query_pos, seq_len, softmax_scale, f, r, keys, values,
                    key_scales, value_scales, row, kv_head, tile_size, first_part, parts, False, new,
                )  # fmt: skip
            for i_edge in hl.grid(0, full_start - start + stop - full_stop):
                j_edge = masked_tile(i_edge, full_start - start, start, full_stop)
                m, l, acc, acc_rest = attend_block(
                    j_edge, q, m, l, acc, acc_rest, query_pos, seq_len, softmax_scale, f, r, keys, values,
                    key_scales, value_scales, row, kv_head, tile_size, first_part, parts, True, new,
                )  # fmt: skip
            total = narrow(acc, value_size)
            if partial_acc is None or used <= 1:
                writes = real & (segment == 0)
                store_sums(out, query_start + token, head, writes, total, acc_rest, l, kv_head, f, parts)
                store_lse(lse, query_start + token, head, writes, m, l)
            else:
                at = segment, query_start + token, head, real
                store_partial_sums((partial_acc, partial_m, partial_l), *at, m, l, total, acc_rest, parts)


_unpaged = kernel(_unpaged_kernel, "num_seqs", "num_segments", "tiles", "q_blocks", "block_q")


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> CopyScratch:
    """Scratch for `capacity.num_keys` keys of long queries; sequences beyond it are read through their pages."""
    lanes = (shape.head_size, shape.value_lanes)
    decode = parallel_softmax.workspace(shape, capacity, config.decode, SHORT_QUERY)
    tile_size, segments = held(config.prefill, shape).tile_size, config.prefill.num_segments
    return CopyScratch.up_to(capacity, shape, tile_size, segments, MOST_PARTS, lanes, decode)


@launches("helion/unpaged", SUPPORTS)
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
    shape, config = batch.shape, held(config, batch.shape)
    rows, threads = block_m_of(config, shape), config.num_warps * warp_size(batch.device)
    parts = value_parts(rows, config.tile_size, threads, shape.value_lanes)
    if len(parts) > 1:  # the copy is before all launches
        config = replace(config, new_kv=False)
    views = [(batch, out, workspace)]
    if len(parts) > 1:
        views = [of_lanes(batch, out, workspace, lanes, lanes.stop - lanes.start) for lanes in parts]
    launches = [(*view, *_sources(view[0], features, config, view[2])) for view in views]
    sources, tiles = launches[0][3:]
    segments = config.num_segments
    if segments > 1 and not has_room(partials(workspace.parts)[0], batch, segments):
        segments = 1
    side, copied = side_stream(batch.device), "copied" in sources
    left = not copied or may_overflow(batch, tiles, config.tile_size)  # queries to their pages, as far as shapes say
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


def _sources(batch, features, config, workspace) -> tuple[dict[str, tuple[torch.Tensor, ...]], int]:
    return tile_sources(batch, features, workspace.key, workspace.value, config.tile_size, config.new_kv)


def _attend(batch, features, out, config, workspace, lse, segments, sources, tiles) -> None:
    """One launch, of the one source that there is."""
    shape = batch.shape
    scales = copied_scales(features, workspace.scales)
    sums = partials(workspace.parts if segments > 1 else None)
    sizes = [block_m_of(config, shape), config.tile_size]
    ((source, (keys, values)),) = sources.items()
    args = (
        loadable(batch.query), keys, values, *scales, batch.query_start_loc, batch.seq_lens, out, lse, *sums, tiles,
        batch.softmax_scale, bundle(features, config, shape.head_size), shape.num_kv_heads,
        SHORT_QUERY, SEQUENCES, source == "new", first_lanes(shape, batch.device),
        parts_of(shape), segments,
    )  # fmt: skip
    run(_unpaged, config, args, block_sizes=sizes, loop_orders=[loop_order(config, 3)], descriptors=True)
