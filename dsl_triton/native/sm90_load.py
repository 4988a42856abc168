"""The roles of one warp of sm90_prefill.py: which items its program takes, and their Q, K and V.

In: the step's plan, descriptors, queries by pointers where they have no boxes, and the barriers between warps. Out:
items in a ring of shared memory, their queries and their tiles of K and V in buffers of it, each announced by a
barrier.

Barriers are pairs a slot: `full` when it holds what the readers wait for, `empty` when all have read it. A slot's
n-th use waits for the phase n & 1 of `full`, and (n & 1) ^ 1 of `empty`, which passes at once the first time.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import ampere, hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from dsl_triton.native.gluon_names import async_copy, async_load, barrier, reinterpret
from dsl_triton.native.sm90_boxes import fits_box
from dsl_triton.step_plan import END, FIRST_ITEM, HOLE, SIZE

# int32 of a ring's slot: an item's fields, its group of heads and what fills up a power of two
ENTRY = gl.constexpr(16)
SLOTS = gl.constexpr(2)  # of the ring of items
EARLY = gl.constexpr(2)  # K's loader asks for the next item this many tiles before the end of an item
FIELDS, STRIDE = gl.constexpr(FIRST_ITEM.value), gl.constexpr(SIZE.value)  # of an item in the plan
END, HOLE = gl.constexpr(END.value), gl.constexpr(HOLE.value)


@gluon.jit
def field(ring, slot, k: gl.constexpr, WARPS: gl.constexpr):
    """The k-th of step_plan.FIELDS of the item in a slot of the ring; FIELDS: its group of query heads."""
    return gl.max(ring.index(slot * ENTRY + k).load(gl.BlockedLayout([1], [32], [WARPS], [0])), 0)


@gluon.jit
def _count_up(counter_ptr):
    """Add one to a counter; returns its value before."""
    lane = gl.arange(0, 32, gl.BlockedLayout([1], [32], [1], [0]))
    old = gl.atomic_add(counter_ptr + lane * 0, lane * 0 + 1, mask=lane == 0)
    return gl.sum(gl.where(lane == 0, old, 0), 0)


@gluon.jit
def _item(plan_ptr, place, total, NUM_GROUPS: gl.constexpr):
    """(the place-th item as an entry of the ring, its sequence); groups of query heads are fastest."""
    gl.static_assert(FIELDS < ENTRY, "an entry of the ring has no place for the group of query heads")
    k = gl.arange(0, ENTRY, gl.BlockedLayout([1], [32], [1], [0]))
    ptrs = plan_ptr + place // NUM_GROUPS * STRIDE + k
    entry = gl.load(ptrs, mask=(k < FIELDS) & (place < total), other=END)
    return gl.where(k == FIELDS, place % NUM_GROUPS, entry), gl.sum(gl.where(k == 0, entry, 0), 0)


@gluon.jit
def schedule(plan, total, entries, items, claim, NUM_GROUPS: gl.constexpr, SPLIT: gl.constexpr):
    """Put items into the ring until none is left: first the item of the program's own number, then those it claims.

    counters: items claimed, programs done; the last program to end sets both to 0.
    """
    _, full, empty = items
    programs = gl.num_programs(0)
    place = gl.program_id(0)
    n = 0
    seq = place * 0
    while seq >= 0:
        if n > 0:
            mbarrier.wait(claim, (n - 1) & 1)
            place = programs + _count_up(plan.counters)
        entry, seq = _item(plan.items, place, total, NUM_GROUPS)
        if SPLIT:
            while seq == HOLE:
                place = programs + _count_up(plan.counters)
                entry, seq = _item(plan.items, place, total, NUM_GROUPS)
        slot = n % SLOTS
        mbarrier.wait(empty.index(slot), (n // SLOTS & 1) ^ 1)
        entries.index(slot).store(entry)
        barrier()
        mbarrier.arrive(full.index(slot), count=1)
        n += 1
    tl.extra.cuda.gdc_launch_dependents()  # the reduction of segments
    if _count_up(plan.counters + 1) == programs - 1:
        lane = gl.arange(0, 32, gl.BlockedLayout([1], [32], [1], [0]))
        gl.store(plan.counters + lane, lane * 0, mask=lane < 2)


@gluon.jit
def _copy_rows(
    query, steps, row, head_0, left, boxes, buffer,
    D: gl.constexpr, GROUP: gl.constexpr, TOKENS: gl.constexpr, PANELS: gl.constexpr,
):  # fmt: skip
    """An item's queries by pointers, and zeros for rows and lanes that it does not have. Waits until they are there."""
    BITS: gl.constexpr = boxes.dtype.primitive_bitwidth
    EACH: gl.constexpr = 128 // BITS
    ROWS: gl.constexpr = boxes.shape[1]
    LANES: gl.constexpr = boxes.shape[3]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, EACH], [32 * EACH // LANES, LANES // EACH], [1, 1], [1, 0])
    N: gl.constexpr = 64 // ROWS
    TILE: gl.constexpr = gl.NVMMASharedLayout(LANES * BITS // 8, BITS, 2)
    into = reinterpret(boxes, boxes.dtype, [boxes.shape[0], ROWS, LANES], TILE)
    lane = gl.expand_dims(gl.arange(0, LANES, gl.SliceLayout(0, LAYOUT)), 0)
    token_step, head_step = steps[0] * EACH, steps[1] * EACH
    query += row.to(gl.int64) * token_step + head_0.to(gl.int64) * head_step
    live_rows = gl.minimum(left, TOKENS) * GROUP
    for box in range(0, 2 * N):
        r = box * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
        start = gl.expand_dims(r * head_step + r // GROUP * (token_step - GROUP * head_step), 1)
        live = gl.expand_dims(r < live_rows, 1)
        place = (buffer * 2 + box // N) * PANELS * N + box % N
        for panel in gl.static_range(PANELS):
            lanes = panel * LANES + lane
            async_copy(into.index(place + panel * N), query + (start + lanes), mask=live & (lanes < D))
    ampere.async_copy.commit_group()
    ampere.async_copy.wait_group(0)
    hopper.fence_async_shared()
    barrier()


@gluon.jit
def load_queries(
    query, steps, rows, items,
    D: gl.constexpr, GROUP: gl.constexpr, TOKENS: gl.constexpr, PANELS: gl.constexpr,
    BUFFERS: gl.constexpr, SHARES: gl.constexpr = 1,
):  # fmt: skip
    """An item's queries: a box of [tokens, heads, lanes] for each half of its rows and each panel of lanes; copies
    where no box has the rows.

    steps: from a query token to the next, and from a head to the next, in 16 bytes; read for copies.
    SHARES: items of a group of heads, each with its own lanes of V.
    """
    boxes, q_full, q_empty = rows
    LANES: gl.constexpr = boxes.shape[3]
    BYTES: gl.constexpr = PANELS * LANES * (boxes.dtype.primitive_bitwidth // 8)
    ring, s_full, s_empty = items
    n = 0
    seq = n
    while seq >= 0:
        slot = n % SLOTS
        mbarrier.wait(s_full.index(slot), n // SLOTS & 1)
        seq = field(ring, slot, 0, 1)
        row = field(ring, slot, 1, 1)
        left = field(ring, slot, 2, 1)
        head_0 = field(ring, slot, FIELDS, 1) // SHARES * GROUP
        barrier()
        mbarrier.arrive(s_empty.index(slot), count=1)
        if seq >= 0:
            buffer = n % BUFFERS
            mbarrier.wait(q_empty.index(buffer), (n // BUFFERS & 1) ^ 1)
            if fits_box(GROUP):
                mbarrier.expect(q_full.index(buffer), TOKENS * GROUP * BYTES)
                for half in gl.static_range(2):
                    for panel in gl.static_range(PANELS):
                        at = [row + half * (TOKENS // 2), head_0, panel * LANES]
                        async_load(query, at, q_full.index(buffer), boxes.index((buffer * 2 + half) * PANELS + panel))
            else:
                _copy_rows(query, steps, row, head_0, left, boxes, buffer, D, GROUP, TOKENS, PANELS)
                mbarrier.arrive(q_full.index(buffer), count=1)
        n += 1


@gluon.jit
def find_boxes(j, table_ptr, last_key, page_rows, PAGE: gl.constexpr, BOX: gl.constexpr, TILE: gl.constexpr):
    """Rows of the cache at which the boxes of tile j begin, int32 [32]; behind the sequence its last page again.

    A sequence without keys has no page: it takes the first of the cache, and a mask hides it.
    """
    box = gl.arange(0, 32, gl.BlockedLayout([1], [32], [1], [0]))
    key = gl.maximum(gl.minimum(j * TILE + box * BOX, last_key), 0)
    page = gl.load(table_ptr + key // PAGE, mask=(box < TILE // BOX) & (last_key >= 0), other=0).to(gl.int32)
    return page * page_rows + key % PAGE // BOX * BOX


@gluon.jit
def load_tiles(
    CLAIMS: gl.constexpr, load, items, table,
    SHARERS: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    """Every tile of K, or of V, from an item's last to its first, in parts. Rows are found a part ahead of their boxes.

    A box's lanes behind the head's last come as zeros, and count as bytes that have landed.
    """
    boxes, tiles, full, empty, cache, page_rows = load
    STAGES: gl.constexpr = tiles.shape[0]
    PART: gl.constexpr = tiles.shape[1]
    PARTS: gl.constexpr = TILE // PART
    ring, s_full, s_empty = items
    claim, block_table_ptr, table_stride = table
    N: gl.constexpr = PART // BOX
    PANELS: gl.constexpr = boxes.shape[0] // (STAGES * N)
    LANES: gl.constexpr = boxes.shape[3]
    BYTES: gl.constexpr = PART * PANELS * LANES * (boxes.dtype.primitive_bitwidth // 8)
    box = gl.arange(0, 32, gl.BlockedLayout([1], [32], [1], [0]))
    loaded = 0
    n = 0
    seq = n
    while seq >= 0:
        slot = n % SLOTS
        mbarrier.wait(s_full.index(slot), n // SLOTS & 1)
        seq = field(ring, slot, 0, 1)
        last_key = field(ring, slot, 4, 1) - 1
        start = field(ring, slot, 5, 1) * PARTS
        stop = field(ring, slot, 6, 1) * PARTS
        kv_head = field(ring, slot, FIELDS, 1) // SHARERS
        barrier()
        mbarrier.arrive(s_empty.index(slot), count=1)
        if seq >= 0:
            table_ptr = block_table_ptr + seq.to(gl.int64) * table_stride
            ahead = find_boxes(stop - 1, table_ptr, last_key, page_rows, PAGE, BOX, PART)
            ask = gl.maximum(stop - start - EARLY, 0)
            for i in range(0, stop - start):
                rows = ahead
                ahead = find_boxes(stop - 2 - i, table_ptr, last_key, page_rows, PAGE, BOX, PART)
                if CLAIMS:
                    mbarrier.arrive(claim, count=1, pred=i == ask)
                stage = loaded % STAGES
                mbarrier.wait(empty.index(stage), (loaded // STAGES & 1) ^ 1)
                mbarrier.expect(full.index(stage), BYTES)
                for b in gl.static_range(N):
                    row = gl.sum(gl.where(box == b, rows, 0), 0)  # one instruction, and the scalar that TMA wants
                    for panel in gl.static_range(PANELS):
                        into = boxes.index((stage * PANELS + panel) * N + b)
                        async_load(cache, [row, kv_head, panel * LANES], full.index(stage), into)
                loaded += 1
        n += 1
