"""Prefill for sm_90 alone, in Gluon: planned items, pages by TMA, softmax under products, warps with roles (ours).

Grid: one program per SM. Each claims items, a segment of a Q Block of 128 rows under one KV head, in the
order of the step's plan (step_plan.py): the longest sequence first, its last Q Block first. Twelve warps have roles,
and talk through rings of shared memory, each slot of which has a barrier for full and one for empty:

    schedule      1 warp   the plan, a counter   -> items        sm90_load.py
    load_queries  1 warp   items                 -> Q            boxes of tokens and heads, or copies
    load_tiles    2 warps  items, block table    -> K, V         boxes of pages
    compute       4+4      items, Q, K, V        -> the output   sm90_compute.py

New over unpaged.py: nothing is copied of a cache, as boxes of [BOX keys, 64 lanes] go from pages straight into the
tiles that the tensor cores read; a tile's scores are computed while the values of the tile before are summed; the two
halves of the rows take turns, so that the softmax of one runs under the products of the other (FlashAttention 3,
arXiv:2407.08608); queries are loaded and outputs stored while other items compute, by TMA if a group has a power of two
of heads. Heads are panels of 64 lanes, as 128 bytes are what a box may be wide for a tensor core. Short queries:
items as well, or parallel_softmax.py beside it.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from common.spec import AttentionShape, Features, Gpu, PagedBatch, UnsupportedFeature, is_per_token
from common.spec.kernel import Capacity, Precision, beside, join, launches, side_stream
from common.spec.metadata import ANY_QUERY, SHORT_QUERY
from common.spec.refusals import fp8_types
from common.spec.step_plan import COUNTERS, Cut
from common.spec.workspaces import SegmentScratch, has_room, partials
from dsl_triton import parallel_softmax, reduce_segments
from dsl_triton.binding import as_tensor
from dsl_triton.features import bundle
from dsl_triton.native import sm90_config
from dsl_triton.native.gluon_names import barrier, reinterpret
from dsl_triton.native.sm90_boxes import (
    ROWS,
    SUM_LANES,
    box_shape,
    fits_box,
    out_lanes,
    panel_lanes,
    panels,
    scales_rows,
    shares,
    tile_lanes,
)
from dsl_triton.native.sm90_compute import compute
from dsl_triton.native.sm90_config import (
    MOST_HEADS,
    Config,
    Prefill,
    group_heads,
    head_groups,
    most_keys,
    most_tokens,
    tokens_of_block,
)
from dsl_triton.native.sm90_load import ENTRY, SLOTS, load_queries, load_tiles, schedule
from dsl_triton.native.sm90_rings import (
    FLAT,
    barrier_row,
    barriers,
    loaded_ring,
    narrow_bytes,
    narrow_keys,
    widened_ring,
)
from dsl_triton.native.sm90_wide import sm90_wide_kernel
from dsl_triton.native.sm90_widen import widen
from dsl_triton.step_plan import make_plan

SUPPORTS = frozenset(
    {"causal", "non_causal", "sliding_window", "softcap", "sinks", "alibi", "fp8_kv", "fp8_query", "lse", "full_graph"}
    | {"head_size_512"}
)
CONTRACT = Precision()
NAME = "triton/native.sm90_prefill"
DEFAULT = sm90_config.DEFAULT
NARROW_HEAD = 128  # at most over 8 bits: sixteen warps leave 128 registers at the start, where 256 lanes need 158
# What `serves` offers to a choice, by bytes of a stored element: 48, 64, 72, 80, 96, 112, 128, 160, 192 and 256 were
# timed, and those between are padded as these are.
CHOSEN_HEADS = {2: (*range(48, 257, 8), *range(320, 513, 64)), 1: range(48, 129, 16)}
ALLOWED = (
    "sm_90, queries of 2 bytes or fp8, outputs of 2 bytes, heads of eights up to 256 and of sixty-fours up to 512 over "
    "2 bytes, up to 128 over fp8 whose scales are one number or one per KV head, rows at multiples of 16 bytes"
)
LOG2E = gl.constexpr(1.4426950408889634)


@dataclass(frozen=True)
class Workspace:
    """What each part needs beside the cache; nothing is copied out of it."""

    plan: torch.Tensor  # i32 [items, fields], as common.spec.step_plan has them
    counters: torch.Tensor  # i32 [COUNTERS]; the first two are zeros when a step is planned and behind each launch
    parts: SegmentScratch | None  # of the segments of items
    decode: SegmentScratch | None
    planned: bool = False  # the plan is that of this step: a launch takes it as it is


class Plan(NamedTuple):
    """A step's plan as a kernel argument."""

    items: torch.Tensor  # i32 [items of one group of heads, fields]
    counters: torch.Tensor  # i32 [COUNTERS], of which the kernel counts in the first two


class Sums(NamedTuple):
    """Partial results of segments as a kernel argument.

    m and l are addressed by acc's strides. Their own strides follow the capacity, and Triton recompiles when an integer
    in a tuple is no longer a multiple of 16.
    """

    acc: torch.Tensor  # f32 [segments, num_tokens, num_query_heads, D]
    m: torch.Tensor  # f32 [segments, num_tokens, num_query_heads]
    l: torch.Tensor  # f32 [segments, num_tokens, num_query_heads]
    acc_strides: tuple[int, ...]

    @classmethod
    def of(cls, parts: SegmentScratch | None) -> "Sums | None":
        return None if parts is None else cls(*partials(parts), parts.acc.stride())


@gluon.jit(do_not_specialize=["total", "table_stride"])
def _sm90_prefill_kernel(
    query,  # [num_tokens, num_query_heads, D]: descriptor of boxes as sm90_boxes.py has them; without boxes a pointer
    key_cache,  # descriptor of [rows, num_kv_heads, D], a box of [BOX, 1, 64]
    value_cache,  # the same
    out,  # as query; a pointer is not read
    out_ptr,  # [num_tokens, num_query_heads, D]
    lse,  # f32 [num_tokens, num_query_heads] or None
    partial,  # Sums; None with one segment
    plan,
    block_table_ptr,  # i32 or i64 [num_seqs, max_blocks]
    total,  # items of all groups, at most
    softmax_scale,
    f,
    table_stride,
    page_rows,  # (of K, of V): rows from a page to the next
    steps,  # of queries, then of outputs: from a token to the next, from a head to the next, in 16 bytes
    D: gl.constexpr, NUM_GROUPS: gl.constexpr, SHARERS: gl.constexpr, GROUP: gl.constexpr, TOKENS: gl.constexpr,
    PAGE: gl.constexpr, BOX: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    OUT: gl.constexpr = out_ptr.dtype.element_ty
    QUERY: gl.constexpr = query.dtype if fits_box(GROUP) else query.dtype.element_ty
    NARROW: gl.constexpr = key_cache.dtype.primitive_bitwidth == 8
    NARROW_KEYS: gl.constexpr = NARROW and key_cache.dtype != QUERY  # else K is an operand as it is
    OWN_OUT: gl.constexpr = BUFFERS == 1 or QUERY != OUT
    SPLIT: gl.constexpr = partial is not None
    PADDED: gl.constexpr = tile_lanes(D)
    Q_LANES: gl.constexpr = panel_lanes(QUERY, D)
    PANELS: gl.constexpr = PADDED // Q_LANES
    Q_BOX: gl.constexpr = box_shape(GROUP)
    Q_ROWS: gl.constexpr = Q_BOX[0] * Q_BOX[1]
    q_boxes = gl.allocate_shared_memory(
        QUERY, [BUFFERS * PANELS * 128 // Q_ROWS, Q_BOX[0], Q_BOX[1], Q_LANES], panels(QUERY, Q_LANES, 3)
    )
    o_boxes = q_boxes  # outputs leave from the buffers of their queries, if there is another and both are as large
    if OWN_OUT:
        O_BOXES: gl.constexpr = 128 * out_lanes(D) // 64 // Q_ROWS
        o_boxes = gl.allocate_shared_memory(OUT, [O_BOXES, Q_BOX[0], Q_BOX[1], 64], panels(OUT, 64, 3))
    PART: gl.constexpr = narrow_keys(TILE)
    PARTS: gl.constexpr = narrow_bytes(NARROW_KEYS) // (PART * PADDED)
    K_PART: gl.constexpr = PART if NARROW_KEYS else TILE
    V_PART: gl.constexpr = PART if NARROW else TILE
    K_STAGES: gl.constexpr = PARTS if NARROW_KEYS else STAGES * 16 // QUERY.primitive_bitwidth
    V_STAGES: gl.constexpr = PARTS if NARROW else STAGES
    k_load = loaded_ring(key_cache, page_rows[0], K_STAGES, K_PART, BOX, PADDED, 1 if NARROW_KEYS else 2)
    v_load = loaded_ring(value_cache, page_rows[1], V_STAGES, V_PART, BOX, PADDED, 1 if NARROW else 2)
    k_tiles = k_load[1:4]
    v_tiles = v_load[1:4]
    if NARROW_KEYS:
        k_tiles = widened_ring(STAGES, TILE, PADDED)
    if NARROW:
        v_tiles = widened_ring(STAGES, TILE, PADDED)
    entries = gl.allocate_shared_memory(gl.int32, [SLOTS, ENTRY], FLAT)
    ring = reinterpret(entries, gl.int32, [SLOTS * ENTRY, 1], FLAT)
    READERS: gl.constexpr = 7 if NARROW_KEYS else 6 if NARROW else 5
    s_full, s_empty = barriers(SLOTS, 1, READERS)
    q_full, q_empty = barriers(BUFFERS, 1, 2)
    q_wide = q_full
    row_scales = entries
    if scales_rows(QUERY, NARROW):
        q_wide = barrier_row(BUFFERS, 2)
        row_scales = gl.allocate_shared_memory(gl.float32, [BUFFERS * 2, 64], FLAT)
    claim = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())  # K's loader wants the next item
    v_clear = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())  # both halves have cleared a tail
    mbarrier.init(claim, count=1)
    mbarrier.init(v_clear, count=2)
    hopper.fence_async_shared()
    barrier()
    items = (ring, s_full, s_empty)
    table = (claim, block_table_ptr, table_stride)
    rows = (q_boxes, q_wide, q_empty, row_scales)
    tiles = (k_tiles[0], v_tiles[0], k_tiles[1], k_tiles[2], v_tiles[1], v_tiles[2], v_clear)
    where = (out, out_ptr, lse, partial, (steps[2], steps[3]), o_boxes)
    worth = (f, softmax_scale * LOG2E)
    given = (q_boxes, q_full, q_wide, row_scales)
    loading = (q_boxes, q_full, q_empty)
    WIDENERS: gl.constexpr = 2 if NARROW_KEYS else 4
    _share_out(
        (0, rows, tiles, items, where, worth, D, SHARERS, GROUP, TOKENS, TILE, BUFFERS, OWN_OUT, NARROW),
        (1, rows, tiles, items, where, worth, D, SHARERS, GROUP, TOKENS, TILE, BUFFERS, OWN_OUT, NARROW),
        (0, given, k_load, k_tiles, items, GROUP, TOKENS, WIDENERS),
        (1, given, v_load, v_tiles, items, GROUP, TOKENS, WIDENERS),
        (True, k_load, items, table, SHARERS, PAGE, BOX, TILE),
        (False, v_load, items, table, SHARERS, PAGE, BOX, TILE),
        (query, (steps[0], steps[1]), loading, items, D, GROUP, TOKENS, PANELS, BUFFERS),
        (plan, total, entries, items, claim, NUM_GROUPS, SPLIT),
        NARROW_KEYS, NARROW,
    )  # fmt: skip


@gluon.jit
def _share_out(
    first_half, second_half, k_widened, v_widened, k_loaded, v_loaded, queries, scheduled,
    NARROW_KEYS: gl.constexpr, NARROW: gl.constexpr,
):  # fmt: skip
    """Start every role with its arguments, warps and registers, which depend on whether K and V are widened."""
    if NARROW_KEYS:  # of 65536 registers 256 threads have 224, 128 have 40 and 128 have 24
        gl.warp_specialize(
            [
                (compute, first_half),
                (compute, second_half),
                (widen, k_widened),
                (widen, v_widened),
                (load_tiles, k_loaded),
                (load_tiles, v_loaded),
                (load_queries, queries),
                (schedule, scheduled),
            ],
            worker_num_warps=[4, 2, 2, 1, 1, 1, 1],
            worker_num_regs=[224, 40, 40, 24, 24, 24, 24],
        )
    elif NARROW:
        gl.warp_specialize(
            [
                (compute, first_half),
                (compute, second_half),
                (widen, v_widened),
                (load_tiles, k_loaded),
                (load_tiles, v_loaded),
                (load_queries, queries),
                (schedule, scheduled),
            ],
            worker_num_warps=[4, 4, 1, 1, 1, 1],
            worker_num_regs=[224, 40, 24, 24, 24, 24],
        )
    else:  # 256 have 240, and 128 have 24
        gl.warp_specialize(
            [
                (compute, first_half),
                (compute, second_half),
                (load_tiles, k_loaded),
                (load_tiles, v_loaded),
                (load_queries, queries),
                (schedule, scheduled),
            ],
            worker_num_warps=[4, 1, 1, 1, 1],
            worker_num_regs=[240, 24, 24, 24, 24],
        )


def workspace(shape: AttentionShape, capacity: Capacity, config: Config) -> Workspace:
    """The plan of items, scratch for the parts of their segments, and for short queries beside them."""
    segments, parts = config.prefill.num_segments, None
    if segments > 1:
        tokens = min(capacity.num_tokens, most_tokens(shape, segments))
        parts = SegmentScratch.of(shape, segments, tokens, capacity.device)
    cut = Cut((tokens_of_block(shape), most_keys(shape)), config.short, segments=segments)
    return Workspace(
        cut.make_space(capacity.num_tokens, capacity.num_seqs, capacity.device),
        torch.zeros(COUNTERS, dtype=torch.int32, device=capacity.device),
        parts,
        None if config.together else parallel_softmax.workspace(shape, capacity, config.decode, SHORT_QUERY),
    )


def prepare(batch: PagedBatch, features: Features, config: Config, workspace: Workspace) -> Workspace:
    """The plan of a step, which all its layers may share. Raises SpecError where the workspace has no room for it."""
    if batch.num_seqs and batch.num_tokens > config.short:
        make_plan(workspace.plan, workspace.counters, batch, features, _cut(batch, features, config, workspace))
    return replace(workspace, planned=True)


@launches(NAME, SUPPORTS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Write out (and lse) of every query token."""
    _require_sm90(batch, features, out)
    if not workspace.planned:
        prepare(batch, features, config, workspace)
    if config.together:
        _attend_items(batch, features, out, config, workspace, lse)
        return
    decode = (batch, features, out, config.decode, workspace.decode, lse, SHORT_QUERY)
    if batch.num_tokens <= SHORT_QUERY:
        parallel_softmax.attend_segments(*decode)
        return
    side = side_stream(batch.device)
    with beside(side):
        parallel_softmax.attend_segments(*decode)
    _attend_items(batch, features, out, config, workspace, lse)
    join(side)


def _tiles(shape: AttentionShape, features: Features, config: Prefill) -> tuple[int, int]:
    """Keys of a tile, and how many are in flight. Under a window of up to two tiles they are half as large and twice as
    many: 4q512s2k~ of 64 heads of 64 under a window of 128 takes 42.5 us for 55.6."""
    tile_size, stages = min(config.tile_size, most_keys(shape)), config.num_stages
    if tile_size == 128 and features.sliding_window is not None and features.sliding_window <= 2 * tile_size:
        return tile_size // 2, 2 * stages
    return tile_size, stages


def _cut(batch: PagedBatch, features: Features, config: Config, workspace: Workspace) -> Cut:
    """How sequences become items: in one segment where parts have no room."""
    segments = config.prefill.num_segments
    if not has_room(partials(workspace.parts)[0], batch, segments):
        segments = 1
    tile_size, _ = _tiles(batch.shape, features, config.prefill)
    return Cut((tokens_of_block(batch.shape), tile_size), config.short, segments=segments)


def _attend_items(batch, features, out, config, workspace, lse) -> None:
    """The sequences that are items of the plan; no other row is written."""
    shape, cut, config = batch.shape, _cut(batch, features, config, workspace), config.prefill
    segments, (block_q, tile_size) = cut.segments, cut.long
    parts = workspace.parts if segments > 1 else None
    groups, (_, stages) = head_groups(shape), _tiles(shape, features, config)
    total = cut.most_items(batch.num_tokens, batch.num_seqs) * shape.num_kv_heads * groups
    loaded = narrow_keys(tile_size) if shape.quantised else tile_size
    box = min(shape.block_size & -shape.block_size, loaded)  # keys that cannot leave a page
    keys, key_rows = _boxes(batch.key_cache, box)
    kernel, results = _sm90_prefill_kernel, [out]
    own = {"STAGES": stages, "BUFFERS": 1 if shape.head_size > 128 else 2}  # queries land under the item before
    if (count := shares(shape.head_size)) > 1:
        kernel, own, total = sm90_wide_kernel, {}, total * count
        results = out.split(shape.head_size // count, -1)
    values, value_rows = _boxes(batch.value_cache, box)
    group, queries = group_heads(shape), batch.query
    if fits_box(group):
        queries, *results = (_head_boxes(x, *box_shape(group)) for x in (queries, *results))
    kernel[(min(config.programs, total),)](
        queries, keys, values, *results, out, as_tensor(lse), Sums.of(parts),
        Plan(workspace.plan, workspace.counters), batch.block_table, total, batch.softmax_scale, bundle(features),
        batch.block_table.stride(0), (key_rows, value_rows), (*_steps(batch.query), *_steps(out)),
        D=shape.head_size, NUM_GROUPS=shape.num_kv_heads * groups, SHARERS=groups, GROUP=group,
        TOKENS=block_q, PAGE=shape.block_size, BOX=box, TILE=tile_size, **own, num_warps=4,
    )  # fmt: skip
    if segments > 1:
        merge = (block_q, ANY_QUERY, False, cut.longest_short + 1)
        reduce_segments.reduce_segments(batch, features, out, replace(config, tile_size=tile_size), parts, lse, *merge)


def _boxes(cache: torch.Tensor, box: int) -> tuple[TensorDescriptor, int]:
    """A cache as rows of heads, in boxes of one head, and how many rows further the next page begins; pages may
    overlap.

    One without pages is laid out as one page: TMA takes no empty tensor, and sequences without keys read a first page,
    which a mask hides.
    """
    if cache.shape[0] == 0:
        cache = cache.new_zeros((1, *cache.shape[1:]))
    blocks, slots, heads, size = cache.shape
    page, row, head, _ = cache.stride()
    lanes, page_rows = min(128 // cache.element_size(), tile_lanes(size)), page // row
    shape, steps = [(blocks - 1) * page_rows + slots, heads, size], [row, head, 1]
    return TensorDescriptor(cache, shape, steps, [box, 1, lanes], _layout(cache, lanes)), page_rows


def _head_boxes(rows: torch.Tensor, tokens: int, heads: int) -> TensorDescriptor:
    """The descriptor of queries, or outputs, in boxes of so many tokens and heads."""
    lanes = min(128 // rows.element_size(), tile_lanes(rows.shape[2]))
    return TensorDescriptor(rows, list(rows.shape), list(rows.stride()), [tokens, heads, lanes], _layout(rows, lanes))


def _steps(rows: torch.Tensor) -> tuple[int, int]:
    """Strides of tokens and heads in units of 16 bytes, so that the compiler sees that addresses are aligned."""
    each = 16 // rows.element_size()
    return rows.stride(0) // each, rows.stride(1) // each


def _layout(tensor: torch.Tensor, lanes: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(lanes * tensor.element_size(), 8 * tensor.element_size(), 3)


def serves(shape: AttentionShape, gpu: Gpu) -> bool:
    """Whether batches of these sizes and dtypes can take this kernel on `gpu`, and a choice asks for it."""
    chosen = shape.head_size in CHOSEN_HEADS.get(shape.cache_dtype.itemsize, ())
    return gpu.arch == "sm_90" and chosen and shape.value_size is None and all(_wanted(shape).values())


def takes(batch: PagedBatch, features: Features, out: torch.Tensor) -> bool:
    """Whether it can serve these tensors, of a batch whose sizes and dtypes it serves."""
    return is_boxed(batch, out) and _halves(out) and not _is_scaled_by_token(features)


def is_boxed(batch: PagedBatch, out: torch.Tensor) -> bool:
    """Whether TMA can load its caches, and queries and outputs move by boxes or 16 bytes a thread: tokens and heads
    begin at multiples of 16 bytes, and the rows of one copy span less than 2^31 elements."""
    caches = batch.key_cache, batch.value_cache
    pages = all(cache.stride(0) % cache.stride(1) == 0 for cache in caches if cache.stride(1))
    near = ROWS * batch.query.stride(0) + MOST_HEADS * batch.query.stride(1) < 2**31
    steps = [(x, x.stride()[-3:-1]) for x in (*caches, batch.query, out)]
    aligned = all(
        x.data_ptr() % 16 == 0 and all(step > 0 and step * x.element_size() % 16 == 0 for step in outer)
        for x, outer in steps
    )
    return pages and aligned and (near or fits_box(group_heads(batch.shape)))


def _wanted(shape: AttentionShape) -> dict[str, bool]:
    return {
        f"dtype {shape.dtype}": shape.dtype.itemsize == 2 or shape.dtype in fp8_types("sm_90"),
        f"cache of {shape.cache_dtype}": shape.cache_dtype in (shape.dtype, *fp8_types("sm_90")),
        f"head_size {shape.head_size}": shape.head_size % (8 if shape.head_size <= SUM_LANES else 64) == 0,
        f"head_size {shape.head_size} over {shape.cache_dtype}": not shape.quantised or shape.head_size <= NARROW_HEAD,
        f"block_size {shape.block_size}": shape.block_size % 8 == 0,
    }


def _halves(out: torch.Tensor) -> bool:
    """Whether outputs have 16 bits; beside an fp8 query they may have others."""
    return out.dtype.itemsize == 2


def _is_scaled_by_token(features: Features) -> bool:
    return is_per_token(features.key_scale) or is_per_token(features.value_scale)


def _require_sm90(batch: PagedBatch, features: Features, out: torch.Tensor) -> None:
    """Refuse, by name, what this GPU or TMA cannot do."""
    device = batch.device
    here = "of a CPU, where Gluon has no interpreter" if triton.knobs.runtime.interpret else (9, 0)
    if device.type == "cuda":
        here = "of AMD" if torch.version.hip else torch.cuda.get_device_capability(device)
    strides = [x.stride() for x in (batch.key_cache, batch.value_cache, batch.query, out)]
    wanted = {
        f"device {here}": here == (9, 0),  # a CPU that does not interpret can only compile
        **_wanted(batch.shape),
        f"out of {out.dtype}": _halves(out),
        "scales per token": not _is_scaled_by_token(features),
        f"strides {strides}": is_boxed(batch, out),
    }
    for found, ok in wanted.items():
        if not ok:
            raise UnsupportedFeature(NAME, found, ALLOWED)
