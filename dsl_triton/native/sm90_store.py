"""How half of the rows of an item of sm90_prefill.py leaves: the output, or a segment's sums.

In: registers of a product, and the item's place in the batch. Out: rows of the output, through shared memory, or of the
parts that reduce_segments.py merges.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import tma

from dsl_triton.native.gluon_names import async_store, barrier, reinterpret
from dsl_triton.native.sm90_boxes import fits_box, out_lanes, sum_lanes


@gluon.jit
def half_rows(HALF: gl.constexpr, left, GROUP: gl.constexpr, TOKENS: gl.constexpr, LAYOUT: gl.constexpr):
    """Query token and head within the group of this half's rows, and which of them are real."""
    r = HALF * 64 + gl.arange(0, 64, LAYOUT)
    return r // GROUP, r % GROUP, r < gl.minimum(left, TOKENS) * GROUP


@gluon.jit
def store_sums(
    HALF: gl.constexpr, ptr, row_0, head_0, left, strides, x, GROUP: gl.constexpr, TOKENS: gl.constexpr, D: gl.constexpr
):
    """A segment's sums, float32, of rows of the batch alone."""
    _store_lanes(HALF, ptr, row_0, head_0, left, strides, x[0], 0, GROUP, TOKENS, D)
    if len(x) == 2:
        _store_lanes(HALF, ptr, row_0, head_0, left, strides, x[1], sum_lanes(D), GROUP, TOKENS, D)


@gluon.jit
def _store_lanes(
    HALF: gl.constexpr, ptr, row_0, head_0, left, strides, x, first_lane: gl.constexpr, GROUP: gl.constexpr,
    TOKENS: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    O: gl.constexpr = x.type.layout
    token, head, live = half_rows(HALF, left, GROUP, TOKENS, gl.SliceLayout(1, O))
    lane = gl.expand_dims(first_lane + gl.arange(0, x.shape[1], gl.SliceLayout(0, O)), 0)
    offset = (row_0 + token).to(gl.int64) * strides[0] + (head_0 + head).to(gl.int64) * strides[1]
    gl.store(ptr + gl.expand_dims(offset, 1) + lane, x, mask=gl.expand_dims(live, 1) & (lane < D))


@gluon.jit
def keep_rows(kept, x):
    """The output's rows in shared memory, visible to other threads and to TMA."""
    if len(x) == 1:
        kept.store(x[0])
    else:
        FIRST: gl.constexpr = x[0].shape[1]
        kept.slice(0, FIRST, 1).store(x[0])
        kept.slice(FIRST, x[1].shape[1], 1).store(x[1])
    hopper.fence_async_shared()
    barrier()


@gluon.jit
def _store_rows(
    HALF: gl.constexpr, ptr, row_0, head_0, left, steps, kept, lane_0: gl.constexpr,
    GROUP: gl.constexpr, TOKENS: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """Store the kept rows that belong to the batch, by pointers: 16 bytes a thread, 128 of a row side by side.

    Straight from the registers of a product a thread would store 4 bytes at a time, which is slower.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    token, head, live = half_rows(HALF, left, GROUP, TOKENS, gl.SliceLayout(1, LAYOUT))
    lane = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(0, LAYOUT)), 0)
    start = (row_0 + token).to(gl.int64) * (steps[0] * 8) + (head_0 + head).to(gl.int64) * (steps[1] * 8)
    ptrs = ptr + gl.expand_dims(start, 1)
    for panel in gl.static_range(kept.shape[1] // 64):
        lanes = lane_0 + panel * 64 + lane
        x = kept.slice(panel * 64, 64, 1).load(LAYOUT)
        gl.store(ptrs + lanes, x, mask=gl.expand_dims(live, 1) & (lanes < D))
    hopper.fence_async_shared()  # what is read here, TMA may write next


@gluon.jit
def store(
    HALF: gl.constexpr, out, out_ptr, kept, boxes, first_box, lane_0: gl.constexpr, row_0, head_0, left, steps,
    GROUP: gl.constexpr, TOKENS: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """Kept rows, of lanes from lane_0 on: by TMA where they are all the batch's, for a box always stores all of its
    rows. Lanes behind a head's last are not stored."""
    if fits_box(GROUP) and left >= TOKENS:
        for panel in gl.static_range(kept.shape[1] // 64):
            at = [row_0 + HALF * (TOKENS // 2), head_0, lane_0 + panel * 64]
            async_store(out, at, boxes.index(first_box + panel))
    else:
        _store_rows(HALF, out_ptr, row_0, head_0, left, steps, kept, lane_0, GROUP, TOKENS, D)


@gluon.jit
def store_beside(
    HALF: gl.constexpr, out, out_ptr, boxes, x, row_0, head_0, left, steps,
    GROUP: gl.constexpr, TOKENS: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """An output, by OUT_LANES lanes where it has more, through a buffer that holds no queries: the next item's come
    meanwhile."""
    LANES: gl.constexpr = out_lanes(D)
    kept = reinterpret(boxes, boxes.dtype, [2, 64, LANES], gl.NVMMASharedLayout(128, 16, 2)).index(HALF)
    for i in gl.static_range(2 if D > LANES else 1):
        tma.store_wait(0)
        barrier()
        if D > LANES:
            keep_rows(kept.slice(0, x[i].shape[1], 1), (x[i],))
        else:
            keep_rows(kept, x)
        store(
            HALF, out, out_ptr, kept, boxes, HALF * (LANES // 64), i * LANES, row_0, head_0, left, steps,
            GROUP, TOKENS, D,
        )  # fmt: skip
