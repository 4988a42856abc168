"""Rings of tiles in shared memory of sm90_prefill.py: their slots, and a pair of barriers for each.

`full` opens when a slot holds what its readers wait for, `empty` when all have read it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from dsl_triton.native.gluon_names import reinterpret
from dsl_triton.native.sm90_boxes import panels

FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.constexpr_function
def narrow_keys(tile):
    """Keys of 8 bits that are loaded at once: a quarter of a tile, so that others come while one is widened."""
    return tile // 4


@gluon.constexpr_function
def narrow_bytes(keys):
    """Bytes in flight of V of 8 bits, and of K if `keys` are widened too: what is left of 227 KB of shared memory."""
    return 16384 if keys else 32768


@gluon.jit
def barrier_row(SLOTS: gl.constexpr, COUNT: gl.constexpr):
    """A row of barriers, each of which opens when COUNT have arrived."""
    row = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(row.index(slot), count=COUNT)
    return row


@gluon.jit
def barriers(SLOTS: gl.constexpr, FULL: gl.constexpr, EMPTY: gl.constexpr):
    """Barriers (full, empty) of a ring's slots. FULL, EMPTY: how many arrivals open one of each."""
    return barrier_row(SLOTS, FULL), barrier_row(SLOTS, EMPTY)


@gluon.jit
def loaded_ring(
    cache, page_rows, COUNT: gl.constexpr, KEYS: gl.constexpr, BOX: gl.constexpr, PADDED: gl.constexpr,
    READERS: gl.constexpr,
):  # fmt: skip
    """A ring of COUNT tiles that TMA fills, as load_tiles takes it: boxes, the tiles they make up, full, empty."""
    LANES: gl.constexpr = cache.block_shape[2]
    boxes = gl.allocate_shared_memory(
        cache.dtype, [COUNT * (PADDED // LANES) * (KEYS // BOX), BOX, 1, LANES], cache.layout
    )
    tiles = reinterpret(boxes, cache.dtype, [COUNT, KEYS, PADDED], panels(cache.dtype, LANES, 2))
    full, empty = barriers(COUNT, 1, READERS)
    return boxes, tiles, full, empty, cache, page_rows


@gluon.jit
def widened_ring(COUNT: gl.constexpr, KEYS: gl.constexpr, PADDED: gl.constexpr):
    """A ring of COUNT tiles that warps fill, which both halves read."""
    tiles = gl.allocate_shared_memory(gl.float16, [COUNT, KEYS, PADDED], panels(gl.float16, 64, 2))
    full, empty = barriers(COUNT, 1, 2)
    return tiles, full, empty
