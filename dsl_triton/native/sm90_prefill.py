"""Prefill for sm_90 alone, in Gluon: page boxes by TMA, products in flight under the softmax, warps with roles (ours).

Grid: one program a multiprocessor; each takes items (a segment of a Q Block of 128 rows under one KV head) until none
is left, forth and back so that long and short ones even out. New over unpaged.py: nothing is copied, for the four warps
that only load fetch pages of the cache, a box of [BOX, 64] a time, straight into the tiles that the tensor cores read;
and a tile's scores are computed while the values of the tile before are summed (FlashAttention 3, arXiv:2407.08608).

Eight warps compute, four for each half of the rows: the halves drift apart, and the softmax of one runs under the
products of the other. Tiles are taken from the last to the first: what needs a mask comes first. Heads are two halves
of 64 lanes, as 128 bytes are what a box may be wide for a tensor core. Short queries: parallel_softmax.py beside it.
"""

from dataclasses import dataclass, field
from types import ModuleType

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from common.gpus import Gpu
from common.spec import AttentionShape, Features, PagedBatch, UnsupportedFeature
from common.spec.kernel import Capacity, Precision, beside, has_room, join, require, side_stream
from common.spec.metadata import ANY_QUERY, SHORT_QUERY, BatchStats, cdiv, num_q_blocks
from dsl_triton import parallel_softmax, reduce_segments
from dsl_triton.native.gluon_names import barrier, reinterpret
from dsl_triton.native.sm90_roles import add, compute, load
from dsl_triton.unpaged import MOST_PARTS

SUPPORTS = frozenset({"causal", "non_causal", "lse", "full_graph"})
CONTRACT = Precision()
NAME = "triton/native.sm90_prefill"
ROWS = 128  # of a Q Block
MOST_SEQS = 8192  # their Q Blocks are counted in shared memory: 32 KB
LOG2E = gl.constexpr(1.4426950408889634)
TILES = gl.NVMMASharedLayout(128, 16, 2)  # rows of 128 bytes, swizzled as TMA writes and tensor cores read them
TILES_LAYOUT, FLAT = gl.constexpr(TILES), gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@dataclass(frozen=True)
class Prefill:
    """tile_size: keys. num_stages: tiles of K, and of V, in flight; two of 128 keys and Q fill 160 of 227 KB.

    num_segments: at most that many programs share the tiles of a Q Block. programs: as many as multiprocessors.
    overlap: the reduction of segments is launched when this kernel has ended.
    """

    tile_size: int = 128
    num_stages: int = 2
    num_segments: int = 1
    programs: int = 132
    overlap: bool = False


@dataclass(frozen=True)
class Config:
    """prefill: sequences of more than SHORT_QUERY query tokens; decode: the others."""

    prefill: Prefill = Prefill()
    decode: parallel_softmax.Config = parallel_softmax.DEFAULT


DEFAULT = Config()


def default(heuristics: ModuleType, shape: AttentionShape, stats: BatchStats, gpu: Gpu) -> Config:
    """Segments where Q Blocks leave units idle: a wave costs its tiles and one more, the reduction about four."""
    decode = heuristics.unpaged(shape, stats, gpu).decode
    items = max(stats.num_tokens * shape.queries_per_kv // ROWS, 1) * shape.num_kv_heads
    tiles = cdiv(stats.max_seq_len, DEFAULT.prefill.tile_size)

    def cost(segments: int) -> int:
        return cdiv(items * segments, gpu.units) * (cdiv(tiles, segments) + 1) + 4 * (segments > 1)

    return Config(Prefill(num_segments=min(range(1, 17), key=cost), programs=gpu.units), decode)


@dataclass(frozen=True)
class Workspace:
    """What each part needs beside the cache; nothing is copied out of it."""

    parts: reduce_segments.Workspace | None  # of the segments of long queries
    decode: reduce_segments.Workspace | None
    num_seqs: int  # the kernel is compiled for the next power of two
    side: torch.cuda.Stream | None = field(compare=False)


@gluon.jit(do_not_specialize=["num_seqs"])
def _sm90_prefill_kernel(
    query_ptr,  # [num_tokens, num_query_heads, 128]
    key_cache,  # descriptor of [rows, row], a box of [BOX, 64]
    value_cache,  # the same
    block_table_ptr,  # i32 or i64 [num_seqs, max_blocks]
    query_start_loc_ptr,  # i32 [num_seqs + 1]
    seq_lens_ptr,  # i32 [num_seqs]
    out_ptr,  # [num_tokens, num_query_heads, 128]
    lse_ptr,  # f32 [num_tokens, num_query_heads]; not read without LSE
    acc_ptr,  # f32 [NUM_SEGMENTS, num_tokens, num_query_heads, 128]; not read with one segment, nor m and l
    m_ptr,  # f32 [NUM_SEGMENTS, num_tokens, num_query_heads]
    l_ptr,  # f32 [NUM_SEGMENTS, num_tokens, num_query_heads]
    num_seqs,
    softmax_scale,
    query_strides, block_table_strides, key_strides, value_strides, out_strides, lse_strides, acc_strides, m_strides,
    NUM_KV_HEADS: gl.constexpr, QUERIES_PER_KV: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr,
    TILE: gl.constexpr, SHORT: gl.constexpr, NUM_SEGMENTS: gl.constexpr, CAUSAL: gl.constexpr, SEQS: gl.constexpr,
    STAGES: gl.constexpr, LSE: gl.constexpr,
):  # fmt: skip
    BLOCK_Q: gl.constexpr = 128 // QUERIES_PER_KV
    BOXES: gl.constexpr = STAGES * 2 * (TILE // BOX)
    q_smem = gl.allocate_shared_memory(key_cache.dtype, [4, 64, 64], TILES_LAYOUT)
    k_boxes = gl.allocate_shared_memory(key_cache.dtype, [BOXES, BOX, 64], TILES_LAYOUT)
    v_boxes = gl.allocate_shared_memory(key_cache.dtype, [BOXES, BOX, 64], TILES_LAYOUT)
    keys = reinterpret(k_boxes, key_cache.dtype, [STAGES * 2, TILE, 64], TILES_LAYOUT)
    values = reinterpret(v_boxes, key_cache.dtype, [STAGES * 2, TILE, 64], TILES_LAYOUT)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_clear = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(v_clear, count=2)  # each half of the rows clears its half of the lanes
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=2)  # two warps load a tile
        mbarrier.init(v_full.index(stage), count=2)
        mbarrier.init(k_empty.index(stage), count=2)  # two halves of the rows read it
        mbarrier.init(v_empty.index(stage), count=2)

    # where each sequence's Q Blocks end among those of long queries: a batch's decodes cost no item
    seq = gl.arange(0, SEQS, gl.BlockedLayout([SEQS // 128], [32], [4], [0]))
    begin = gl.load(query_start_loc_ptr + seq, mask=seq < num_seqs, other=0)
    query_len = gl.load(query_start_loc_ptr + seq + 1, mask=seq < num_seqs, other=0) - begin
    blocks = gl.where(query_len > SHORT, (query_len + BLOCK_Q - 1) // BLOCK_Q, 0)
    ends = gl.allocate_shared_memory(gl.int32, [SEQS], FLAT)
    ends.store(gl.associative_scan(blocks, 0, add))
    ends = reinterpret(ends, gl.int32, [SEQS, 1], FLAT)
    total = gl.sum(blocks, 0) * NUM_SEGMENTS * NUM_KV_HEADS
    base2 = softmax_scale * LOG2E
    # triton 3.6 hands total to the other warps in the four bytes that the sum is read from, with no barrier between: a
    # late warp read total, and counted its heads twice; items behind the last one lie in no sequence
    barrier()
    gl.warp_specialize(
        [
            (compute, (
                0, q_smem, keys, values, k_full, k_empty, v_full, v_empty, v_clear, total, ends, query_ptr, out_ptr,
                lse_ptr, acc_ptr, m_ptr, l_ptr, query_start_loc_ptr, seq_lens_ptr, base2,
                query_strides, out_strides, lse_strides, acc_strides, m_strides,
                NUM_KV_HEADS, QUERIES_PER_KV, BLOCK_Q, TILE, NUM_SEGMENTS, CAUSAL, SEQS, STAGES, LSE,
            )),
            (compute, (
                1, q_smem, keys, values, k_full, k_empty, v_full, v_empty, v_clear, total, ends, query_ptr, out_ptr,
                lse_ptr, acc_ptr, m_ptr, l_ptr, query_start_loc_ptr, seq_lens_ptr, base2,
                query_strides, out_strides, lse_strides, acc_strides, m_strides,
                NUM_KV_HEADS, QUERIES_PER_KV, BLOCK_Q, TILE, NUM_SEGMENTS, CAUSAL, SEQS, STAGES, LSE,
            )),
            (load, (
                0, key_cache, k_boxes, k_full, k_empty, total, ends, query_start_loc_ptr, seq_lens_ptr,
                block_table_ptr, block_table_strides, key_strides,
                NUM_KV_HEADS, BLOCK_Q, TILE, NUM_SEGMENTS, CAUSAL, SEQS, PAGE, BOX, STAGES,
            )),
            (load, (
                1, key_cache, k_boxes, k_full, k_empty, total, ends, query_start_loc_ptr, seq_lens_ptr,
                block_table_ptr, block_table_strides, key_strides,
                NUM_KV_HEADS, BLOCK_Q, TILE, NUM_SEGMENTS, CAUSAL, SEQS, PAGE, BOX, STAGES,
            )),
            (load, (
                0, value_cache, v_boxes, v_full, v_empty, total, ends, query_start_loc_ptr, seq_lens_ptr,
                block_table_ptr, block_table_strides, value_strides,
                NUM_KV_HEADS, BLOCK_Q, TILE, NUM_SEGMENTS, CAUSAL, SEQS, PAGE, BOX, STAGES,
            )),
            (load, (
                1, value_cache, v_boxes, v_full, v_empty, total, ends, query_start_loc_ptr, seq_lens_ptr,
                block_table_ptr, block_table_strides, value_strides,
                NUM_KV_HEADS, BLOCK_Q, TILE, NUM_SEGMENTS, CAUSAL, SEQS, PAGE, BOX, STAGES,
            )),
        ],
        worker_num_warps=[4, 1, 1, 1, 1],
        worker_num_regs=[240, 24, 24, 24, 24],  # of 65536: 256 threads with 240, 128 with 24
    )  # fmt: skip


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> Workspace:
    """Scratch for the parts of segments, and for short queries."""
    segments, parts = config.prefill.num_segments, None
    if segments > 1:
        tokens = min(capacity.num_tokens, MOST_PARTS // segments)
        parts = reduce_segments.make_workspace(shape, segments, tokens, capacity.device)
    decode = parallel_softmax.workspace(shape, capacity, config.decode, SHORT_QUERY)
    return Workspace(parts, decode, capacity.num_seqs, side_stream(capacity.device))


def launch(
    batch: PagedBatch,
    features: Features,
    out: torch.Tensor,
    config: Config,
    workspace: Workspace,
    *,
    lse: torch.Tensor | None = None,
) -> None:
    """Write out (and lse) of every query token. Raises SpecError or UnsupportedFeature before any launch."""
    require(NAME, SUPPORTS, batch, features, out, lse)
    _require_sm90(batch)
    if batch.num_seqs == 0 or batch.num_tokens == 0:
        return
    decode = (batch, features, out, config.decode, workspace.decode, lse, SHORT_QUERY)
    if batch.num_tokens <= SHORT_QUERY:
        parallel_softmax.attend_segments(*decode)
        return
    with beside(workspace.side):
        parallel_softmax.attend_segments(*decode)
    _attend_long(batch, features, out, config.prefill, workspace.parts, lse, workspace.num_seqs)
    join(workspace.side)


def _attend_long(batch, features, out, config, parts, lse, num_seqs) -> None:
    """The sequences of more than SHORT_QUERY query tokens; no other row is written."""
    shape, segments = batch.shape, config.num_segments
    if segments == 1 or not has_room(reduce_segments.scratch(parts)[0], batch, segments):
        parts, segments = None, 1
    acc, m, l = reduce_segments.scratch(parts) if parts else (out, out, out)
    block_q = ROWS // shape.queries_per_kv
    most = shape.num_kv_heads * segments * num_q_blocks(batch.num_tokens, batch.num_seqs, block_q)
    box = min(shape.block_size & -shape.block_size, config.tile_size)  # keys that cannot leave a page
    (keys, key_strides), (values, value_strides) = (_boxes(c, box) for c in (batch.key_cache, batch.value_cache))
    _sm90_prefill_kernel[(min(config.programs, most),)](
        batch.query, keys, values, batch.block_table, batch.query_start_loc, batch.seq_lens, out,
        out if lse is None else lse, acc, m, l, batch.num_seqs, batch.softmax_scale,
        batch.query.stride(), batch.block_table.stride(), key_strides, value_strides, out.stride(),
        (0, 0) if lse is None else lse.stride(), acc.stride(), m.stride(),
        NUM_KV_HEADS=shape.num_kv_heads, QUERIES_PER_KV=shape.queries_per_kv, PAGE=shape.block_size, BOX=box,
        TILE=config.tile_size, SHORT=SHORT_QUERY, NUM_SEGMENTS=segments, CAUSAL=features.causal,
        SEQS=triton.next_power_of_2(max(batch.num_seqs, num_seqs, 128)), STAGES=config.num_stages, LSE=lse is not None,
        num_warps=4,
    )  # fmt: skip
    if segments > 1:
        merge = (block_q, ANY_QUERY, False, SHORT_QUERY + 1)
        reduce_segments.reduce_segments(batch, features, out, config, parts, lse, *merge)


def _boxes(cache: torch.Tensor, box: int) -> tuple[TensorDescriptor, tuple[int, int, int]]:
    """A cache as rows of stride(1) elements; rows from page to page, and rows and lanes from KV head to KV head."""
    page, row, head, _ = cache.stride()
    descriptor = TensorDescriptor(cache, [cache.shape[0] * (page // row), row], [row, 1], [box, 64], TILES)
    return descriptor, (page // row, head // row, 0) if head % row == 0 else (page // row, 0, head)


def serves(shape: AttentionShape, gpu: Gpu) -> bool:
    """Whether batches of these sizes and dtypes can take this kernel on `gpu`."""
    plain = shape.value_size is None and not shape.quantised
    return gpu.arch == "sm_90" and plain and all(_wanted(shape).values())


def is_boxed(batch: PagedBatch) -> bool:
    """Whether boxes can be laid over its caches: rows of pages, heads and lanes at multiples of 16 bytes."""
    caches = batch.key_cache, batch.value_cache
    return all(c.data_ptr() % 16 == 0 and _is_boxed(c.stride(), batch.shape) for c in caches)


def _wanted(shape: AttentionShape) -> dict[str, bool]:
    return {
        f"dtype {shape.dtype}": shape.dtype.itemsize == 2,
        f"head_size {shape.head_size}": shape.head_size == 128,
        f"block_size {shape.block_size}": shape.block_size % 8 == 0,
        f"{shape.queries_per_kv} query heads a KV head": shape.queries_per_kv <= ROWS,
    }


def _require_sm90(batch: PagedBatch) -> None:
    """Refuse by name what this machine, or a box, does not do."""
    device = batch.device
    here = "of a CPU, where Gluon has no interpreter" if triton.knobs.runtime.interpret else (9, 0)
    if device.type == "cuda":
        here = "of AMD" if torch.version.hip else torch.cuda.get_device_capability(device)
    strides = [cache.stride() for cache in (batch.key_cache, batch.value_cache)]
    wanted = {
        f"device {here}": here == (9, 0),  # a CPU that does not interpret can only compile
        **_wanted(batch.shape),
        f"{batch.num_seqs} sequences": batch.num_seqs <= MOST_SEQS,
        f"strides {strides}": is_boxed(batch),
    }
    for found, ok in wanted.items():
        if not ok:
            raise UnsupportedFeature(
                NAME, found, "sm_90, 2 bytes, heads of 128, rows of pages at multiples of 16 bytes"
            )


def _is_boxed(stride: tuple[int, ...], shape: AttentionShape) -> bool:
    page, row, head, _ = stride
    inside = head % row == 0 or (shape.num_kv_heads - 1) * head + shape.head_size <= row
    return page % row == 0 and row % 8 == 0 and head % 8 == 0 and inside
