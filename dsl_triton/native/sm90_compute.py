"""The role of four warps of sm90_prefill.py, of which there are two: half of the rows of every item, to the output.

In: items in the ring, queries and tiles in shared memory, as sm90_load.py puts them there. Out: rows of the output and
of LSE, or the parts that reduce_segments.py merges. Scores, m and l are in base 2.

Rows are a group's GROUP heads of TOKENS tokens, token by token; the rest of the 128 rows are unused.
Tiles are taken from the last to the first, so that those that need a mask come first; the scores of one are computed
while the values of the one before are summed. Whose turn it is on the tensor cores two named barriers say (take_turn).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from dsl_triton.native.gluon_names import barrier, reinterpret
from dsl_triton.native.sm90_boxes import even_lanes, rest_lanes, scales_rows, sum_lanes, tile_lanes
from dsl_triton.native.sm90_load import FIELDS, SLOTS, field
from dsl_triton.native.sm90_store import half_rows, keep_rows, store, store_beside, store_sums

LOG2E = gl.constexpr(1.4426950408889634)
LN2 = gl.constexpr(0.6931471805599453)
TURNS = gl.constexpr(("14", "15"))  # the hardware's barriers of the two halves; Triton itself takes the first few


HEADROOM = gl.constexpr(15)  # over 8 bits P is in fp16, times 2^HEADROOM, so that small weights do not become 0
SLACK = gl.constexpr(2.0**-22)  # relative: rounding may make the maximum this much smaller than a product


@gluon.constexpr_function
def products(columns, dtype=gl.float16):
    """The layout of products of operands of this dtype."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 256 // dtype.primitive_bitwidth])


@gluon.jit
def take_turn(HALF: gl.constexpr):
    """Wait until the other half has handed on the tensor cores (FlashAttention 3's ping-pong, arXiv:2407.08608)."""
    asm: gl.constexpr = "bar.sync " + TURNS[HALF] + ", 256; mov.b32 $0, $1;"
    gl.inline_asm_elementwise(asm, "=r,r", [gl.to_tensor(0)], gl.int32, False, 1)


@gluon.jit
def hand_on(HALF: gl.constexpr):
    """Let half HALF have the tensor cores."""
    asm: gl.constexpr = "bar.arrive " + TURNS[HALF] + ", 256; mov.b32 $0, $1;"
    gl.inline_asm_elementwise(asm, "=r,r", [gl.to_tensor(0)], gl.int32, False, 1)


@gluon.jit
def _scores(q, keys, stage, TILE: gl.constexpr, D: gl.constexpr):
    """Products of queries and keys over the lanes of a head; a tile's lanes behind them are left out."""
    LANES: gl.constexpr = even_lanes(keys.dtype, D)
    s = gl.zeros([64, TILE], gl.float32, products(TILE, keys.dtype))
    for lane in gl.static_range(0, D, LANES):
        k = keys.index(stage).slice(lane, LANES, 1).permute((1, 0))
        s = hopper.warpgroup_mma(q.slice(lane, LANES, 1), k, s, use_acc=lane > 0, is_async=True)
    return s


@gluon.jit
def no_sums(D: gl.constexpr):
    """Zeros of a half's rows in the lanes of each product."""
    first = gl.zeros([64, sum_lanes(D)], gl.float32, products(sum_lanes(D)))
    if rest_lanes(D) == 0:
        return (first,)
    else:
        return first, gl.zeros([64, rest_lanes(D)], gl.float32, products(rest_lanes(D)))


@gluon.jit
def _add_values(p, values, stage, o, D: gl.constexpr):
    """o + p @ V over the lanes of a head: a product for the first lanes and one for the rest, not waited for."""
    tile = values.index(stage)
    LANES: gl.constexpr = sum_lanes(D)
    REST: gl.constexpr = rest_lanes(D)
    first = hopper.warpgroup_mma(p, tile.slice(0, LANES, 1), o[0], is_async=True)
    if REST == 0:
        return (first,)
    else:
        p = gl.convert_layout(p, gl.DotOperandLayout(0, products(REST), 2))  # the same registers
        return first, hopper.warpgroup_mma(p, tile.slice(LANES, REST, 1), o[1], is_async=True)


@gluon.jit
def _added(o, held):
    """o when its products are done, and `held`, whose registers they may read until then."""
    done = hopper.warpgroup_mma_wait(0, deps=o + held)
    return done[: len(o)], done[len(o) :]


@gluon.jit
def weigh(o, weight):
    """o times a number a row."""
    first = o[0] * _over_lanes(weight, o[0])
    if len(o) == 1:
        return (first,)
    else:
        return first, o[1] * _over_lanes(weight, o[1])


@gluon.jit
def cast(o, dtype: gl.constexpr):
    if len(o) == 1:
        return (o[0].to(dtype),)
    else:
        return o[0].to(dtype), o[1].to(dtype)


@gluon.jit
def _over_lanes(weight, x):
    return gl.expand_dims(gl.convert_layout(weight, gl.SliceLayout(1, x.type.layout)), 1)


@gluon.jit
def softmax(
    s, m, l, base2, f, row, first_key,
    TILE: gl.constexpr, MASKED: gl.constexpr, NARROW: gl.constexpr,
):  # fmt: skip
    """p [64, TILE], the new m and l, and alpha, by which the sums so far are multiplied; as primitives.softmax_weights.

    row: the last key that each row sees, the first one, its position and its slope, as far as features ask for them.
    NARROW: base2 has a number for each row; p, l and the sums are 2^HEADROOM times as large, as m is HEADROOM smaller.
    """
    last_key, lowest_key, query_pos, slope = row
    scale = base2
    if NARROW:
        scale = gl.expand_dims(base2, 1)
    if MASKED or f.alibi_slopes is not None:
        column = gl.expand_dims(gl.arange(0, TILE, gl.SliceLayout(0, s.type.layout)), 0)
    if f.softcap is not None:
        s = f.softcap * LOG2E * (1.0 - 2.0 / (gl.exp2(s * (scale * 2.0 / f.softcap)) + 1.0))
    if f.alibi_slopes is not None:
        if f.softcap is None:
            s = s * scale
        distance = column + gl.expand_dims(first_key - query_pos, 1)
        s = s + gl.expand_dims(slope, 1) * distance.to(gl.float32)
    if f.softcap is not None or f.alibi_slopes is not None:
        base2 = 1.0
        scale = 1.0
    if MASKED:  # one subtraction a row, not an addition a score: 628 instructions a tile for 907
        seen = column <= gl.expand_dims(last_key - first_key, 1)
        if f.sliding_window is not None:
            seen = seen & (column >= gl.expand_dims(lowest_key - first_key, 1))
        s = gl.where(seen, s, float("-inf"))
    top = gl.max(s, 1) * base2
    if NARROW:  # at least the largest product after rounding: else p may be Inf in fp16
        top = gl.maximum(top * (1.0 + SLACK), top * (1.0 - SLACK)) - HEADROOM
    m_new = gl.maximum(m, top)
    shift = m_new
    if MASKED:
        shift = gl.where(m_new == float("-inf"), 0.0, m_new)
    p = gl.exp2(s * scale - gl.expand_dims(shift, 1))
    alpha = gl.exp2(m - shift)
    return p, m_new, l * alpha + gl.sum(p, 1), alpha


@gluon.jit
def _step(
    HALF: gl.constexpr, at, j, p, m, l, o, q, keys, values, k_full, k_empty, v_full, v_empty, base2, f, row, keep,
    D: gl.constexpr, TILE: gl.constexpr, MASKED: gl.constexpr, NARROW: gl.constexpr,
):  # fmt: skip
    """Scores of tile j, the at-th of this program, while p sums the values of the tile before; then its softmax."""
    FIRST: gl.constexpr = products(sum_lanes(D))
    K_STAGES: gl.constexpr = keys.shape[0]
    V_STAGES: gl.constexpr = values.shape[0]
    stage, before = at % K_STAGES, (at - 1) % V_STAGES
    mbarrier.wait(k_full.index(stage), at // K_STAGES & 1)
    take_turn(HALF)
    s = _scores(q, keys, stage, TILE, D)
    mbarrier.wait(v_full.index(before), (at - 1) // V_STAGES & 1)
    o = _add_values(p, values, before, o, D)
    hand_on(1 - HALF)
    s = hopper.warpgroup_mma_wait(len(o), deps=[s])
    mbarrier.arrive(k_empty.index(stage), count=1)
    x, m, l, alpha = softmax(s, m, l, base2, f, row, j * TILE, TILE, MASKED, NARROW)
    x = gl.convert_layout(x.to(values.dtype), gl.DotOperandLayout(0, FIRST, 2))
    # ptxas moves the wait ahead of the softmax, which then runs under nothing: 2.3 us a tile for 1.6. Not past a store.
    keep.store(l)
    o, held = _added(o, (p, x))
    mbarrier.arrive(v_empty.index(before), count=1)
    o = weigh(o, alpha)
    return held[1], m, l, o


@gluon.jit
def clear(HALF: gl.constexpr, values, stage, first_key, low, high, v_clear, cleared, TILE: gl.constexpr):
    """Zeros in V's tile outside [low, high): those slots may hold NaN, and 0 * NaN would reach the output.

    Each half of the rows clears every second panel of 64 lanes, the same zeros where there is but one, and waits for
    the other, for the cleared-th time.
    """
    PANELS: gl.constexpr = values.shape[2] // 64
    BLOCKED: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    key = gl.expand_dims(first_key + gl.arange(0, TILE, gl.SliceLayout(1, BLOCKED)), 1)
    lane = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(0, BLOCKED)), 0)
    seen = (key + lane * 0 >= low) & (key + lane * 0 < high)
    panels = reinterpret(values, values.dtype, [values.shape[0] * PANELS, TILE, 64], values.layout)
    for panel in gl.static_range(PANELS):
        if PANELS == 1 or panel % 2 == HALF:
            tile = panels.index(stage * PANELS + panel)
            tile.store(gl.where(seen, tile.load(BLOCKED), 0.0).to(values.dtype))
    hopper.fence_async_shared()
    barrier()
    mbarrier.arrive(v_clear, count=1)
    mbarrier.wait(v_clear, cleared & 1)


@gluon.jit
def limits(
    position, seq_len, token, head, start, stop, f, part, live,
    LAYOUT: gl.constexpr, TILE: gl.constexpr, TOKENS: gl.constexpr, NARROW: gl.constexpr,
):  # fmt: skip
    """What each row sees and how it begins, as masks.py and primitives.softmax_init say: `row` as softmax takes it,
    m and l, and how many tiles from the last on need a mask, then how many none."""
    query_pos = position + token
    last_key = query_pos
    lowest_key = token * 0
    full = position + 1
    slope = token.to(gl.float32)
    if f.non_causal is not None:
        last_key = token * 0 + seq_len - 1
        full = seq_len
        if f.sliding_window is not None:
            last_key = gl.minimum(last_key, query_pos + f.sliding_window - 1)
            full = gl.minimum(full, position + f.sliding_window)
    masked = gl.maximum(stop - gl.maximum(gl.maximum(full, 0) // TILE, start), 1)
    unmasked = stop - start - masked
    if f.sliding_window is not None:
        lowest_key = query_pos - f.sliding_window + 1
        below = (
            gl.maximum(position + TOKENS - f.sliding_window, 0) + TILE - 1
        ) // TILE  # tiles before it begin below a row's window
        unmasked = gl.maximum(stop - gl.maximum(below, start) - masked, 0)
    if f.alibi_slopes is not None:
        slope = gl.load(f.alibi_slopes + head, mask=live, other=0.0) * LOG2E
    m = gl.full([64], float("-inf"), gl.float32, LAYOUT)
    l = gl.zeros([64], gl.float32, LAYOUT)
    if f.sinks is not None:
        sink = gl.load(f.sinks + head, mask=live & (part <= 0), other=float("-inf"))
        m = sink.to(gl.float32) * LOG2E
        one = 1.0
        if NARROW:
            m -= HEADROOM
            one = float(1 << HEADROOM)
        l = gl.where(m > float("-inf"), one, l)
    return (last_key, lowest_key, query_pos, slope), m, l, masked, unmasked


@gluon.jit
def _give_back(q_empty, buffer):
    """Free the Q buffer after its output is stored."""
    tma.store_wait(0)
    barrier()
    mbarrier.arrive(q_empty.index(buffer), count=1)


@gluon.jit
def _stand_by(HALF: gl.constexpr, tiles, at, start, stop, low, seq_len, cleared, TILE: gl.constexpr):
    """The second half in an item that fills the first alone: its turns and barriers, and no product. Returns how many
    tiles it has seen and cleared by then.

    Without products its four warps are kept in step by the barrier that Triton (3.6 to 3.9) puts before an arrival.
    """
    keys, values, k_full, k_empty, v_full, v_empty, v_clear = tiles
    K_STAGES: gl.constexpr = keys.shape[0]
    V_STAGES: gl.constexpr = values.shape[0]
    for i in range(0, stop - start):
        j = stop - 1 - i
        mbarrier.wait(k_full.index(at % K_STAGES), at // K_STAGES & 1)
        if i > 0:
            take_turn(HALF)
            hand_on(1 - HALF)
        mbarrier.arrive(k_empty.index(at % K_STAGES), count=1)
        stage = at % V_STAGES
        mbarrier.wait(v_full.index(stage), at // V_STAGES & 1)
        if (j * TILE + TILE > seq_len) | (j * TILE < low):
            clear(HALF, values, stage, j * TILE, low, seq_len, v_clear, cleared, TILE)
            cleared += 1
        mbarrier.arrive(v_empty.index(stage), count=1)
        at += 1
    return at, cleared


@gluon.jit
def next_item(items, n):
    """step_plan.FIELDS of the n-th item, and its group of query heads; its slot is free again."""
    ring, full, empty = items
    slot = n % SLOTS
    mbarrier.wait(full.index(slot), n // SLOTS & 1)
    seq = field(ring, slot, 0, 4)
    row = field(ring, slot, 1, 4)
    left = field(ring, slot, 2, 4)
    position = field(ring, slot, 3, 4)
    seq_len = field(ring, slot, 4, 4)
    start = field(ring, slot, 5, 4)
    stop = field(ring, slot, 6, 4)
    part = field(ring, slot, 7, 4)
    group = field(ring, slot, FIELDS, 4)
    barrier()
    mbarrier.arrive(empty.index(slot), count=1)
    return seq, row, left, position, seq_len, start, stop, part, group


@gluon.jit
def _keep_item(
    HALF: gl.constexpr, rows, where, worth, row, first, part, group, m, l, o, inverse, buffer,
    keys, D: gl.constexpr, SHARERS: gl.constexpr, GROUP: gl.constexpr, TOKENS: gl.constexpr,
    BUFFERS: gl.constexpr, OWN_OUT: gl.constexpr,
):  # fmt: skip
    """Store a half's output and LSE, or its sums, m and l where the item is one of several parts.

    row: of each row its token, its head and whether there is one. first: the item's first row, its first head and how
    many tokens are left. keys: tiles of K, as which a buffer of queries is laid out.
    """
    q_boxes, _q_full, _q_empty, _row_scales = rows
    out, out_ptr, lse, partial, out_steps, o_boxes = where
    OUT: gl.constexpr = out_ptr.dtype.element_ty
    f, _base2 = worth
    token, head, live = row
    row_0, head_0, left = first
    PADDED: gl.constexpr = tile_lanes(D)
    if partial is None or part < 0:
        if f.value_scale is not None:
            inverse *= gl.load(f.value_scale + group // SHARERS * f.value_scale_stride)
        output = cast(weigh(o, inverse), OUT)
        if OWN_OUT:
            store_beside(HALF, out, out_ptr, o_boxes, output, row_0, head_0, left, out_steps, GROUP, TOKENS, D)
        else:
            kept = reinterpret(q_boxes, OUT, [BUFFERS * 2, 64, PADDED], keys.layout).index(buffer * 2 + HALF)
            keep_rows(kept, output)
            first_box = (buffer * 2 + HALF) * (PADDED // 64)
            store(HALF, out, out_ptr, kept, q_boxes, first_box, 0, row_0, head_0, left, out_steps, GROUP, TOKENS, D)
        if lse.ptr is not None:
            place = (row_0 + token).to(gl.int64) * lse.strides[0] + (head_0 + head) * lse.strides[1]
            gl.store(lse.ptr + place, (m + gl.log2(l)) * LN2, mask=live)
    else:
        begin = part.to(gl.int64) * partial.acc_strides[0]
        store_sums(HALF, partial.acc + begin, row_0, head_0, left, partial.acc_strides[1:], o, GROUP, TOKENS, D)
        row_begin = begin + (row_0 + token).to(gl.int64) * partial.acc_strides[1]
        place = row_begin // D + head_0 + head  # m, l: no lanes
        gl.store(partial.m + place, m, mask=live)
        gl.store(partial.l + place, l, mask=live)


@gluon.jit
def compute(
    HALF: gl.constexpr, rows, tiles, items, where, worth,
    D: gl.constexpr, SHARERS: gl.constexpr, GROUP: gl.constexpr, TOKENS: gl.constexpr, TILE: gl.constexpr,
    BUFFERS: gl.constexpr, OWN_OUT: gl.constexpr, NARROW: gl.constexpr,
):  # fmt: skip
    """Four warps: half HALF of the rows of every item. Both halves take equally many turns, else one waits forever.

    OWN_OUT: outputs leave through buffers of their own. NARROW: over a cache of 8 bits.
    """
    q_boxes, q_full, q_empty, row_scales = rows
    keys, values, k_full, k_empty, v_full, v_empty, v_clear = tiles
    S: gl.constexpr = gl.SliceLayout(1, products(TILE, keys.dtype))
    SCALED: gl.constexpr = scales_rows(q_boxes.dtype, NARROW)
    K_STAGES: gl.constexpr = keys.shape[0]
    V_STAGES: gl.constexpr = values.shape[0]
    f, softmax_base2 = worth
    PADDED: gl.constexpr = keys.shape[2]
    FIRST: gl.constexpr = products(sum_lanes(D))
    queries = reinterpret(q_boxes, keys.dtype, [BUFFERS * 2, 64, PADDED], keys.layout)
    keep = gl.allocate_shared_memory(gl.float32, [64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    if HALF == 1:
        hand_on(0)
    done = 0
    cleared = 0
    n = 0
    seq = n
    while seq >= 0:
        seq, row_0, left, position, seq_len, start, stop, part, group = next_item(items, n)
        head_0 = group * GROUP
        idle = False  # the first half always has rows; its branches on `idle` are not compiled
        if HALF == 1:
            idle = left * GROUP <= 64
        buffer = n % BUFFERS
        low = 0  # no row of this or a later block sees keys before it: their pages may belong to others
        if f.sliding_window is not None:
            low = gl.maximum(position - f.sliding_window + 1, 0)
        if (seq >= 0) & idle:
            mbarrier.wait(q_full.index(buffer), n // BUFFERS & 1)
            if not OWN_OUT and n > 0:
                _give_back(q_empty, (n - 1) % BUFFERS)
            done, cleared = _stand_by(HALF, tiles, done, start, stop, low, seq_len, cleared, TILE)
            if OWN_OUT:
                mbarrier.arrive(q_empty.index(buffer), count=1)
        elif seq >= 0:
            q = queries.index(buffer * 2 + HALF)
            token, head, live = half_rows(HALF, left, GROUP, TOKENS, S)
            row, m, l, masked, unmasked = limits(
                position, seq_len, token, head_0 + head, start, stop, f, part, live,
                S, TILE, TOKENS, NARROW,
            )  # fmt: skip
            base2 = softmax_base2
            if f.key_scale is not None:
                base2 *= gl.load(f.key_scale + group // SHARERS * f.key_scale_stride)
            if f.query_scale is not None:
                base2 *= gl.load(f.query_scale)
            o = no_sums(D)
            stage = done % K_STAGES
            mbarrier.wait(q_full.index(buffer), n // BUFFERS & 1)
            if NARROW:
                base2 = gl.full([64], base2, gl.float32, S)
            if SCALED:
                base2 *= row_scales.index(buffer * 2 + HALF).load(S)
            mbarrier.wait(k_full.index(stage), done // K_STAGES & 1)
            s = hopper.warpgroup_mma_wait(0, deps=[_scores(q, keys, stage, TILE, D)])
            mbarrier.arrive(k_empty.index(stage), count=1)
            if not OWN_OUT and n > 0:  # the output of the item before is stored now, so its buffer is free
                _give_back(q_empty, (n - 1) % BUFFERS)
            x, m, l, _alpha = softmax(s, m, l, base2, f, row, (stop - 1) * TILE, TILE, True, NARROW)
            p = gl.convert_layout(x.to(values.dtype), gl.DotOperandLayout(0, FIRST, 2))
            if (stop * TILE > seq_len) | ((stop - 1) * TILE < low):
                stage = done % V_STAGES
                mbarrier.wait(v_full.index(stage), done // V_STAGES & 1)
                clear(HALF, values, stage, (stop - 1) * TILE, low, seq_len, v_clear, cleared, TILE)
                cleared += 1
            done += 1
            for i in range(1, masked):
                p, m, l, o = _step(
                    HALF, done, stop - 1 - i, p, m, l, o, q, keys, values, k_full, k_empty, v_full, v_empty,
                    base2, f, row, keep, D, TILE, True, NARROW,
                )  # fmt: skip
                done += 1
            for i in range(masked, masked + unmasked):
                p, m, l, o = _step(
                    HALF, done, stop - 1 - i, p, m, l, o, q, keys, values, k_full, k_empty, v_full, v_empty,
                    base2, f, row, keep, D, TILE, False, NARROW,
                )  # fmt: skip
                done += 1
            if f.sliding_window is not None:
                for i in range(masked + unmasked, stop - start):
                    p, m, l, o = _step(
                        HALF, done, stop - 1 - i, p, m, l, o, q, keys, values, k_full, k_empty, v_full, v_empty,
                        base2, f, row, keep, D, TILE, True, NARROW,
                    )  # fmt: skip
                    done += 1
            if OWN_OUT:  # all scores are computed
                mbarrier.arrive(q_empty.index(buffer), count=1)
            stage = (done - 1) % V_STAGES
            mbarrier.wait(v_full.index(stage), (done - 1) // V_STAGES & 1)
            if f.sliding_window is not None and (start * TILE < low) & (start < stop - 1):
                clear(HALF, values, stage, start * TILE, low, seq_len, v_clear, cleared, TILE)
                cleared += 1
            o = _add_values(p, values, stage, o, D)
            inverse = 1.0 / gl.where(l > 0.0, l, 1.0)
            o, _held = _added(o, (p,))
            mbarrier.arrive(v_empty.index(stage), count=1)
            _keep_item(
                HALF, rows, where, worth, (token, head, live), (row_0, head_0, left), part, group, m, l, o, inverse,
                buffer, keys, D, SHARERS, GROUP, TOKENS, BUFFERS, OWN_OUT,
            )  # fmt: skip
        n += 1
    if HALF == 0:
        take_turn(0)  # half 1 has handed on once more than half 0 took
    tma.store_wait(0)
