"""Roles of two or four warps of sm90_prefill.py over a cache of 8 bits: operands of 16 bits.

In: tiles of fp8 in a ring of shared memory, as load_tiles of sm90_load.py leaves them. Out: the same numbers in fp16,
in the ring that sm90_compute.py reads over any cache. fp16 holds every number of fp8, and an instruction converts two;
scales wait for the scores and for the output. Queries in bf16 become fp16 where they lie, each row with a factor of its
own. An fp8 query takes K as it is: V alone is widened.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from dsl_triton.native.gluon_names import barrier, reinterpret
from dsl_triton.native.sm90_boxes import scales_rows
from dsl_triton.native.sm90_load import SLOTS, field

KEYS = gl.constexpr(16)  # that a turn takes: of heads of 128 lanes by two warps 32 numbers a thread, of 40 registers


@gluon.jit
def _widen_rows(boxes, place, row_scales, live, WARPS: gl.constexpr):
    """Queries of the first `live` of 64 rows as fp16 in their place, and a factor for each, as features.query_operand:
    a power of two takes a row's largest to [2^14, 2^15)."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    TILE: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    PANELS: gl.constexpr = boxes.shape[0] // (row_scales.shape[0] * 64 // (boxes.shape[1] * boxes.shape[2]))
    SHAPE: gl.constexpr = [row_scales.shape[0] * PANELS * 8, 8, 64]
    given = reinterpret(boxes, boxes.dtype, SHAPE, TILE)
    widened = reinterpret(boxes, gl.float16, SHAPE, TILE)
    scales = reinterpret(row_scales, gl.float32, [row_scales.shape[0] * 8, 8], row_scales.layout)
    for i in range(0, (live + 7) // 8):
        first = place * PANELS * 8 + i
        x = given.index(first).load(LAYOUT).to(gl.float32)
        most = gl.max(gl.abs(x), 1)
        y = x
        if PANELS == 2:
            y = given.index(first + 8).load(LAYOUT).to(gl.float32)
            most = gl.maximum(most, gl.max(gl.abs(y), 1))
        exponent = gl.maximum(most.to(gl.int32, bitcast=True) >> 23, 16)
        factor = gl.expand_dims(((268 - exponent) << 23).to(gl.float32, bitcast=True), 1)
        widened.index(first).store((x * factor).to(gl.float16))
        if PANELS == 2:
            widened.index(first + 8).store((y * factor).to(gl.float16))
        scales.index(place * 8 + i).store(((exponent - 14) << 23).to(gl.float32, bitcast=True))


@gluon.jit
def widen(
    HALF: gl.constexpr, rows, loaded, widened, items,
    GROUP: gl.constexpr, TOKENS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Every tile of K, or of V, of every item. It comes in parts, the last first. Before them: half HALF of the item's
    queries, where they need it."""
    _, narrow, narrow_full, narrow_empty, _, _ = loaded
    wide, wide_full, wide_empty = widened
    ring, s_full, s_empty = items
    boxes, q_full, q_wide, row_scales = rows
    PARTS: gl.constexpr = narrow.shape[0]
    PART: gl.constexpr = narrow.shape[1]
    STAGES: gl.constexpr = wide.shape[0]
    TILE: gl.constexpr = wide.shape[1]
    ACROSS: gl.constexpr = wide.shape[2] // 8  # 8 bytes of a row and 16 of a wide one: no two threads meet in a bank
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [WARPS, 1], [1, 0])
    done = 0
    n = 0
    seq = n
    while seq >= 0:
        slot = n % SLOTS
        mbarrier.wait(s_full.index(slot), n // SLOTS & 1)
        seq = field(ring, slot, 0, WARPS)
        left = field(ring, slot, 2, WARPS)
        start = field(ring, slot, 5, WARPS)
        stop = field(ring, slot, 6, WARPS)
        barrier()
        mbarrier.arrive(s_empty.index(slot), count=1)
        if seq >= 0:
            if scales_rows(boxes.dtype, True):
                BUFFERS: gl.constexpr = row_scales.shape[0] // 2
                buffer = n % BUFFERS
                mbarrier.wait(q_full.index(buffer), n // BUFFERS & 1)
                live = gl.minimum(gl.minimum(left, TOKENS) * GROUP - HALF * 64, 64)
                _widen_rows(boxes, buffer * 2 + HALF, row_scales, live, WARPS)
                hopper.fence_async_shared()
                barrier()
                mbarrier.arrive(q_wide.index(buffer), count=1)
            for _ in range(start, stop):
                stage = done % STAGES
                mbarrier.wait(wide_empty.index(stage), (done // STAGES & 1) ^ 1)
                for k in gl.static_range(TILE // PART):
                    part = done * (TILE // PART) + k
                    source = part % PARTS
                    mbarrier.wait(narrow_full.index(source), part // PARTS & 1)
                    x = narrow.index(source).slice(0, KEYS, 0).load(LAYOUT)  # always a turn ahead of what is stored
                    for key in gl.static_range(0, PART, KEYS):
                        ahead = x
                        if key + KEYS < PART:
                            ahead = narrow.index(source).slice(key + KEYS, KEYS, 0).load(LAYOUT)
                        wide.index(stage).slice(TILE - (k + 1) * PART + key, KEYS, 0).store(x.to(gl.float16))
                        x = ahead
                    if k + 1 == TILE // PART:
                        hopper.fence_async_shared()
                    barrier()
                    mbarrier.arrive(narrow_empty.index(source), count=1)
                mbarrier.arrive(wide_full.index(stage), count=1)
                done += 1
        n += 1
