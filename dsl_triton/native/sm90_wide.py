"""Heads of more than 256 lanes in sm90_prefill.py: each program sums half of V's lanes, and computes all scores.

Sums of 512 lanes do not fit: two halves of 64 rows have registers for 256. So an item is taken twice, once a share of
V's lanes, by programs that run beside each other and read the same K from L2. Roles and items are those of
sm90_prefill.py. Q fills more than half of shared memory, so tiles of K and V come in chunks of 128 lanes through one
ring, in the order in which they are read: K, V, K, V. A chunk is free as soon as its product is done, and comes by the
boxes of LOADERS warps, because one warp takes longer to ask for all of them than the products take.

A half takes its turn for the values of the tile before and then the scores of this one; its softmax runs under the
turn of the other half. The output leaves through the buffer of the queries.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from dsl_triton.native.gluon_names import async_load, barrier, reinterpret
from dsl_triton.native.sm90_boxes import box_shape, panels, rest_lanes, sum_lanes, tile_lanes
from dsl_triton.native.sm90_compute import (
    LN2,
    LOG2E,
    cast,
    clear,
    hand_on,
    limits,
    next_item,
    no_sums,
    products,
    softmax,
    take_turn,
    weigh,
)
from dsl_triton.native.sm90_load import EARLY, ENTRY, FIELDS, SLOTS, field, load_queries, schedule
from dsl_triton.native.sm90_rings import FLAT, barriers
from dsl_triton.native.sm90_store import half_rows, keep_rows, store, store_sums

CHUNK = gl.constexpr(128)  # lanes
CHUNKS = gl.constexpr(6)  # in flight: what 227 KB leave beside Q
# Warps, each with its share of every chunk's boxes. With one for K and one for V, prompts take 1.2 times as long.
LOADERS = gl.constexpr(4)


@gluon.constexpr_function
def chunks_of(lanes):
    return (lanes + 127) // 128


@gluon.constexpr_function
def chunks_of_tile(lanes):
    """The chunks of a tile: of K, then of a share of V."""
    return chunks_of(lanes) + chunks_of(lanes // 2)


@gluon.constexpr_function
def lanes_of(lanes, chunk):
    """Lanes of a chunk that the head has: all, or 64 of its last chunk."""
    return min(lanes - 128 * chunk, 128)


@gluon.constexpr_function
def panels_of_chunk(head_size, c):
    """Panels of 64 lanes of a tile's c-th chunk that a product reads."""
    keys = chunks_of(head_size)
    lanes = head_size - 128 * c if c < keys else head_size // 2 - 128 * (c - keys)
    return 2 if lanes > 64 else 1


@gluon.constexpr_function
def own_boxes(loader, count, panel_count):
    """How many of a chunk's boxes are this loader's, of `count` a panel."""
    return sum(box % LOADERS.value == loader for box in range(count * panel_count))


@gluon.constexpr_function
def announcing(count):
    """How many loaders have boxes of a chunk, of `count` a panel."""
    return min(LOADERS.value, 2 * count)


@gluon.jit
def load_chunks(
    LOADER: gl.constexpr, load, items, table, D: gl.constexpr,
    SHARERS: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    """Load this loader's boxes of each chunk of K and V, from an item's last tile to its first. The first loader asks
    for the next item."""
    keys, values, boxes, full, empty, page_rows = load
    ring, s_full, s_empty = items
    claim, block_table_ptr, table_stride = table
    N: gl.constexpr = TILE // BOX
    KEYS: gl.constexpr = chunks_of(D)
    box = gl.arange(0, 32, gl.BlockedLayout([1], [32], [1], [0]))
    loaded = 0  # tiles
    n = 0
    seq = n
    while seq >= 0:
        slot = n % SLOTS
        mbarrier.wait(s_full.index(slot), n // SLOTS & 1)
        seq = field(ring, slot, 0, 1)
        last_key = field(ring, slot, 4, 1) - 1
        start = field(ring, slot, 5, 1)
        stop = field(ring, slot, 6, 1)
        group = field(ring, slot, FIELDS, 1)
        barrier()
        mbarrier.arrive(s_empty.index(slot), count=1)
        if seq >= 0:
            kv_head = group // (2 * SHARERS)
            first_lane = group % 2 * (D // 2)
            table_ptr = block_table_ptr + seq.to(gl.int64) * table_stride
            ahead = _find_pages(box, stop - 1, table_ptr, last_key, PAGE, BOX, TILE)
            ask = gl.maximum(stop - start - EARLY, 0)
            for i in range(0, stop - start):
                j = stop - 1 - i
                within = gl.maximum(gl.minimum(j * TILE + box * BOX, last_key), 0) % PAGE // BOX * BOX
                key_rows = ahead * page_rows[0] + within
                value_rows = ahead * page_rows[1] + within
                ahead = _find_pages(box, j - 1, table_ptr, last_key, PAGE, BOX, TILE)
                if LOADER == 0:
                    mbarrier.arrive(claim, count=1, pred=i == ask)
                if announcing(N) > LOADER:
                    for c in gl.static_range(chunks_of_tile(D)):
                        place = c
                        turn = loaded
                        if chunks_of_tile(D) < CHUNKS:
                            place = (loaded * chunks_of_tile(D) + c) % CHUNKS
                            turn = (loaded * chunks_of_tile(D) + c) // CHUNKS
                        mbarrier.wait(empty.index(place), (turn & 1) ^ 1)
                        mbarrier.expect(full.index(place), own_boxes(LOADER, N, panels_of_chunk(D, c)) * BOX * 64 * 2)
                        if c < KEYS:
                            _load_boxes(LOADER, keys, boxes, full, place, box, key_rows, kv_head, c, c * CHUNK, D, N)
                        else:
                            lane = first_lane + (c - KEYS) * CHUNK
                            _load_boxes(LOADER, values, boxes, full, place, box, value_rows, kv_head, c, lane, D, N)
                loaded += 1
        n += 1


@gluon.jit
def _find_pages(box, j, table_ptr, last_key, PAGE: gl.constexpr, BOX: gl.constexpr, TILE: gl.constexpr):
    """The pages of tile j's boxes, as sm90_load.find_boxes."""
    key = gl.maximum(gl.minimum(j * TILE + box * BOX, last_key), 0)
    return gl.load(table_ptr + key // PAGE, mask=(box < TILE // BOX) & (last_key >= 0), other=0).to(gl.int32)


@gluon.jit
def _load_boxes(
    LOADER: gl.constexpr, cache, boxes, full, place, box, rows, kv_head, c: gl.constexpr, lane, D: gl.constexpr,
    N: gl.constexpr,
):  # fmt: skip
    """Load those of both panels of a box of keys that are this loader's; one sum gives the row of both."""
    for b in gl.static_range(N):
        row = gl.sum(gl.where(box == b, rows, 0), 0)
        for panel in gl.static_range(panels_of_chunk(D, c)):
            if (panel * N + b) % LOADERS == LOADER:
                into = boxes.index((place * 2 + panel) * N + b)
                async_load(cache, [row, kv_head, lane + panel * 64], full.index(place), into)


@gluon.jit
def _wait(full, at):
    mbarrier.wait(full.index(at % CHUNKS), at // CHUNKS & 1)


@gluon.jit
def _free(empty, at):
    mbarrier.arrive(empty.index(at % CHUNKS), count=1)


@gluon.jit
def _add_values(at, p, o, chunks, V: gl.constexpr):
    """o + p @ V of the chunks from the at-th on; the last is not waited for."""
    tiles, full, empty = chunks
    REST: gl.constexpr = rest_lanes(V)
    _wait(full, at)
    first = hopper.warpgroup_mma(p, tiles.index(at % CHUNKS), o[0], is_async=True)
    _wait(full, at + 1)
    rest = gl.convert_layout(p, gl.DotOperandLayout(0, products(REST), 2))  # the same registers
    values = tiles.index((at + 1) % CHUNKS).slice(0, REST, 1)
    second = hopper.warpgroup_mma(rest, values, o[1], is_async=True)
    second = hopper.warpgroup_mma_wait(1, deps=[second])
    _free(empty, at)
    return first, second


@gluon.jit
def _scores(at, q, chunks, behind, D: gl.constexpr, TILE: gl.constexpr):
    """Scores by the chunks from the at-th on; the last is not waited for. And `behind`, sums of values whose last
    product is in flight before, and its operand, or nothing."""
    tiles, full, empty = chunks
    s = gl.zeros([64, TILE], gl.float32, products(TILE))
    for c in gl.static_range(chunks_of(D)):
        _wait(full, at + c)
        k = tiles.index((at + c) % CHUNKS).slice(0, lanes_of(D, c), 1).permute((1, 0))
        s = hopper.warpgroup_mma(q.slice(c * CHUNK, lanes_of(D, c), 1), k, s, use_acc=c > 0, is_async=True)
        if c > 0:
            s = hopper.warpgroup_mma_wait(1, deps=[s])
            _free(empty, at + c - 1)
        elif len(behind) > 0:
            scored = (s,)
            done = hopper.warpgroup_mma_wait(1, deps=behind + scored)
            s = done[len(behind)]
            behind = done[: len(behind)]
            _free(empty, at - 1)
    return s, behind


@gluon.jit
def _scored(HALF: gl.constexpr, at, s, empty):
    """s when its last product, of the at-th chunk, is done. Hands the turn to the other half."""
    hand_on(1 - HALF)
    s = hopper.warpgroup_mma_wait(0, deps=[s])
    _free(empty, at)
    return s


@gluon.jit
def _step(
    HALF: gl.constexpr, at, j, p, m, l, o, q, chunks, base2, f, row,
    D: gl.constexpr, TILE: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """A turn: p sums the values of the tile before, then tile j is scored, whose chunks are the at-th on. Then its
    softmax."""
    V: gl.constexpr = D // 2
    take_turn(HALF)
    first, second = _add_values(at - chunks_of(V), p, o, chunks, V)
    s, done = _scores(at, q, chunks, (first, second, p), D, TILE)
    s = _scored(HALF, at + chunks_of(D) - 1, s, chunks[2])
    x, m, l, alpha = softmax(s, m, l, base2, f, row, j * TILE, TILE, MASKED, False)
    p = gl.convert_layout(x.to(q.dtype), gl.DotOperandLayout(0, products(sum_lanes(V)), 2))
    return p, m, l, weigh((done[0], done[1]), alpha)


@gluon.jit
def _clear_values(
    HALF: gl.constexpr, at, chunks, first_key, low, seq_len, v_clear, cleared, V: gl.constexpr, TILE: gl.constexpr
):
    """sm90_compute.clear of a tile of V, whose chunks are the at-th on."""
    tiles, full, _ = chunks
    for c in gl.static_range(chunks_of(V)):
        _wait(full, at + c)
        clear(HALF, tiles, (at + c) % CHUNKS, first_key, low, seq_len, v_clear, cleared, TILE)
        cleared += 1
    return cleared


@gluon.jit
def compute_wide(
    HALF: gl.constexpr, rows, chunks, v_clear, items, where, worth,
    D: gl.constexpr, GROUP: gl.constexpr, TOKENS: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    """Four warps: half HALF of the rows of every item, and of V's lanes the item's share."""
    S: gl.constexpr = gl.SliceLayout(1, products(TILE))
    V: gl.constexpr = D // 2
    KEYS: gl.constexpr = chunks_of(D)
    VALUES: gl.constexpr = chunks_of(V)
    q_boxes, q_full, q_empty = rows
    tiles, _, empty = chunks
    outs, out_ptr, lse, partial, out_steps = where
    f, base2 = worth
    queries = reinterpret(q_boxes, tiles.dtype, [2, 64, 512], tiles.layout)
    q = queries.index(HALF)
    if HALF == 1:
        hand_on(0)
    at = 0  # the first chunk of the next tile
    cleared = 0
    n = 0
    seq = n
    while seq >= 0:
        seq, row_0, left, position, seq_len, start, stop, part, group = next_item(items, n)
        share = group % 2
        group = group // 2
        head_0 = group * GROUP
        low = 0
        if f.sliding_window is not None:
            low = gl.maximum(position - f.sliding_window + 1, 0)
        if seq >= 0:
            token, head, live = half_rows(HALF, left, GROUP, TOKENS, S)
            row, m, l, masked, unmasked = limits(
                position, seq_len, token, head_0 + head, start, stop, f, part, live,
                S, TILE, TOKENS, False,
            )  # fmt: skip
            o = no_sums(V)
            mbarrier.wait(q_full.index(0), n & 1)
            take_turn(HALF)
            s, _none = _scores(at, q, chunks, (), D, TILE)
            s = _scored(HALF, at + KEYS - 1, s, empty)
            x, m, l, _alpha = softmax(s, m, l, base2, f, row, (stop - 1) * TILE, TILE, True, False)
            p = gl.convert_layout(x.to(tiles.dtype), gl.DotOperandLayout(0, products(sum_lanes(V)), 2))
            if (stop * TILE > seq_len) | ((stop - 1) * TILE < low):
                first_key = (stop - 1) * TILE
                cleared = _clear_values(HALF, at + KEYS, chunks, first_key, low, seq_len, v_clear, cleared, V, TILE)
            at += chunks_of_tile(D)
            for i in range(1, masked):
                p, m, l, o = _step(HALF, at, stop - 1 - i, p, m, l, o, q, chunks, base2, f, row, D, TILE, True)
                at += chunks_of_tile(D)
            for i in range(masked, masked + unmasked):
                p, m, l, o = _step(HALF, at, stop - 1 - i, p, m, l, o, q, chunks, base2, f, row, D, TILE, False)
                at += chunks_of_tile(D)
            if f.sliding_window is not None:
                for i in range(masked + unmasked, stop - start):
                    p, m, l, o = _step(HALF, at, stop - 1 - i, p, m, l, o, q, chunks, base2, f, row, D, TILE, True)
                    at += chunks_of_tile(D)
            if f.sliding_window is not None and (start * TILE < low) & (start < stop - 1):
                first_key = start * TILE
                cleared = _clear_values(HALF, at - VALUES, chunks, first_key, low, seq_len, v_clear, cleared, V, TILE)
            o = _add_values(at - VALUES, p, o, chunks, V)
            inverse = 1.0 / gl.where(l > 0.0, l, 1.0)
            first, second, p = hopper.warpgroup_mma_wait(0, deps=[o[0], o[1], p])
            _free(empty, at - 1)
            if partial is None or part < 0:
                kept = q.slice(0, 256, 1)
                keep_rows(kept, cast(weigh((first, second), inverse), tiles.dtype))
                if share == 0:
                    store(
                        HALF, outs[0], out_ptr, kept, q_boxes, HALF * 8, 0, row_0, head_0, left, out_steps,
                        GROUP, TOKENS, V,
                    )  # fmt: skip
                else:
                    store(
                        HALF, outs[1], out_ptr + V, kept, q_boxes, HALF * 8, 0, row_0, head_0, left, out_steps,
                        GROUP, TOKENS, V,
                    )  # fmt: skip
                if lse.ptr is not None:
                    place = (row_0 + token).to(gl.int64) * lse.strides[0] + (head_0 + head) * lse.strides[1]
                    gl.store(lse.ptr + place, (m + gl.log2(l)) * LN2, mask=live)
            else:
                begin = part.to(gl.int64) * partial.acc_strides[0]
                sums = partial.acc + begin + share * V
                strides = partial.acc_strides[1:]
                store_sums(HALF, sums, row_0, head_0, left, strides, (first, second), GROUP, TOKENS, V)
                place = (begin + (row_0 + token).to(gl.int64) * strides[0]) // D + head_0 + head
                gl.store(partial.m + place, m, mask=live)
                gl.store(partial.l + place, l, mask=live)
            tma.store_wait(0)
            barrier()
            mbarrier.arrive(q_empty.index(0), count=1)
        n += 1
    if HALF == 0:
        take_turn(0)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["total", "table_stride"])
def sm90_wide_kernel(
    query, key_cache,  # as of sm90_prefill.py, whose arguments these are
    value_cache,
    out_0, out_1,  # descriptors of [num_tokens, num_query_heads, D / 2]: each share of V's lanes
    out_ptr, lse, partial, plan, block_table_ptr, total, softmax_scale,
    f,  # without scales: a cache of 8 bits has other heads
    table_stride, page_rows, steps,
    D: gl.constexpr, NUM_GROUPS: gl.constexpr, SHARERS: gl.constexpr, GROUP: gl.constexpr, TOKENS: gl.constexpr,
    PAGE: gl.constexpr, BOX: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    DTYPE: gl.constexpr = out_ptr.dtype.element_ty
    SPLIT: gl.constexpr = partial is not None
    N: gl.constexpr = TILE // BOX
    Q_BOX: gl.constexpr = box_shape(GROUP)
    PANELS: gl.constexpr = tile_lanes(D) // 64
    Q_BOXES: gl.constexpr = PANELS * 128 // (Q_BOX[0] * Q_BOX[1])
    q_boxes = gl.allocate_shared_memory(DTYPE, [Q_BOXES, Q_BOX[0], Q_BOX[1], 64], panels(DTYPE, 64, 3))
    boxes = gl.allocate_shared_memory(DTYPE, [CHUNKS * 2 * N, BOX, 1, 64], key_cache.layout)
    tiles = reinterpret(boxes, DTYPE, [CHUNKS, TILE, CHUNK], panels(DTYPE, 64, 2))
    full, empty = barriers(CHUNKS, announcing(N), 2)
    entries = gl.allocate_shared_memory(gl.int32, [SLOTS, ENTRY], FLAT)
    s_full, s_empty = barriers(SLOTS, 1, 3 + LOADERS)
    q_full, q_empty = barriers(1, 1, 2)
    items = (reinterpret(entries, gl.int32, [SLOTS * ENTRY, 1], FLAT), s_full, s_empty)
    rows = (q_boxes, q_full, q_empty)
    claim = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    v_clear = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(claim, count=1)
    mbarrier.init(v_clear, count=2)
    hopper.fence_async_shared()
    barrier()
    chunks = (tiles, full, empty)
    table = (claim, block_table_ptr, table_stride)
    load = (key_cache, value_cache, boxes, full, empty, page_rows)
    where = ((out_0, out_1), out_ptr, lse, partial, (steps[2], steps[3]))
    worth = (f, softmax_scale * LOG2E)
    gl.warp_specialize(
        [
            (compute_wide, (0, rows, chunks, v_clear, items, where, worth, D, GROUP, TOKENS, TILE)),
            (compute_wide, (1, rows, chunks, v_clear, items, where, worth, D, GROUP, TOKENS, TILE)),
            (load_chunks, (0, load, items, table, D, SHARERS, PAGE, BOX, TILE)),
            (load_chunks, (1, load, items, table, D, SHARERS, PAGE, BOX, TILE)),
            (load_chunks, (2, load, items, table, D, SHARERS, PAGE, BOX, TILE)),
            (load_chunks, (3, load, items, table, D, SHARERS, PAGE, BOX, TILE)),
            (load_queries, (query, (steps[0], steps[1]), rows, items, D, GROUP, TOKENS, PANELS, 1, 2)),
            (schedule, (plan, total, entries, items, claim, NUM_GROUPS * 2, SPLIT)),
        ],
        worker_num_warps=[4, 1, 1, 1, 1, 1, 1],
        worker_num_regs=[232, 24, 24, 24, 24, 24, 24],
    )  # fmt: skip
