"""The role of four warps of sm90_prefill.py, of which there are two: half of the rows of every item, to the output.

In: items in the ring, queries and tiles in shared memory, as sm90_load.py puts them there. Out: rows of the output and
of LSE, or the parts that reduce_segments.py merges. Scores, m and l are in base 2.

Rows are (head, token): HEADS places for the heads of a group, a power of two of which GROUP are real, by tokens.
Tiles are taken from the last to the first, so that those that need a mask come first; the scores of one are computed
while the values of the one before are summed. Whose turn it is on the tensor cores two named barriers say (_take_turn).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from dsl_triton.native.gluon_names import async_store, barrier, reinterpret
from dsl_triton.native.sm90_load import FIELDS, box_head, box_token, box_tokens, field

LN2 = gl.constexpr(0.6931471805599453)
TURNS = gl.constexpr(("14", "15"))  # the hardware's barriers of the two halves; Triton itself takes the first few


@gluon.constexpr_function
def products(columns):
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])


@gluon.jit
def _take_turn(HALF: gl.constexpr):
    """Wait until the other half has handed on the tensor cores (FlashAttention 3's ping-pong, arXiv:2407.08608)."""
    asm: gl.constexpr = "bar.sync " + TURNS[HALF] + ", 256; mov.b32 $0, $1;"
    gl.inline_asm_elementwise(asm, "=r,r", [gl.to_tensor(0)], gl.int32, False, 1)


@gluon.jit
def _hand_on(HALF: gl.constexpr):
    """Let half HALF have the tensor cores."""
    asm: gl.constexpr = "bar.arrive " + TURNS[HALF] + ", 256; mov.b32 $0, $1;"
    gl.inline_asm_elementwise(asm, "=r,r", [gl.to_tensor(0)], gl.int32, False, 1)


@gluon.jit
def _scores(q, keys, stage, TILE: gl.constexpr):
    s = gl.zeros([64, TILE], gl.float32, products(TILE))
    return hopper.warpgroup_mma(q, keys.index(stage).permute((1, 0)), s, use_acc=False, is_async=True)


@gluon.jit
def _softmax(s, m, l, base2, last_key, first_key, TILE: gl.constexpr, MASKED: gl.constexpr):
    """p [64, TILE] and the new m, l, and what the sums so far are worth; as primitives.softmax_step."""
    if MASKED:  # one subtraction a row, not an addition a score: 628 instructions a tile for 907
        column = gl.expand_dims(gl.arange(0, TILE, gl.SliceLayout(0, s.type.layout)), 0)
        s = gl.where(column <= gl.expand_dims(last_key - first_key, 1), s, float("-inf"))
    m_new = gl.maximum(m, gl.max(s, 1) * base2)
    shift = m_new
    if MASKED:
        shift = gl.where(m_new == float("-inf"), 0.0, m_new)
    p = gl.exp2(s * base2 - gl.expand_dims(shift, 1))
    alpha = gl.exp2(m - shift)
    return p, m_new, l * alpha + gl.sum(p, 1), alpha


@gluon.jit
def _step(
    HALF: gl.constexpr, at, j, p, m, l, o, q, keys, values, k_full, k_empty, v_full, v_empty, base2, last_key, keep,
    TILE: gl.constexpr, MASKED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Scores of tile j, the at-th of this program, while p sums the values of the tile before; then its softmax."""
    O: gl.constexpr = products(128)
    stage, before = at % STAGES, (at - 1) % STAGES
    mbarrier.wait(k_full.index(stage), at // STAGES & 1)
    _take_turn(HALF)
    s = _scores(q, keys, stage, TILE)
    mbarrier.wait(v_full.index(before), (at - 1) // STAGES & 1)
    o = hopper.warpgroup_mma(p, values.index(before), o, is_async=True)
    _hand_on(1 - HALF)
    s = hopper.warpgroup_mma_wait(1, deps=[s])
    mbarrier.arrive(k_empty.index(stage), count=1)
    x, m, l, alpha = _softmax(s, m, l, base2, last_key, j * TILE, TILE, MASKED)
    x = gl.convert_layout(x.to(keys.dtype), gl.DotOperandLayout(0, O, 2))
    # ptxas moves the wait ahead of the softmax, which then runs under nothing: 2.3 us a tile for 1.6. Not past a store.
    keep.store(l)
    o, p, x = hopper.warpgroup_mma_wait(0, deps=[o, p, x])
    mbarrier.arrive(v_empty.index(before), count=1)
    alpha = gl.expand_dims(gl.convert_layout(alpha, gl.SliceLayout(1, O)), 1)
    return x, m, l, o * alpha


@gluon.jit
def _clear_tail(HALF: gl.constexpr, values, stage, first_key, seq_len, v_clear, cleared, TILE: gl.constexpr):
    """Zeros in V's tile behind the sequence: its slots may hold NaN, and 0 * NaN would reach the output.

    Each half of the rows clears half of the lanes and waits for the other, for the cleared-th time.
    """
    BLOCKED: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    key = gl.expand_dims(first_key + gl.arange(0, TILE, gl.SliceLayout(1, BLOCKED)), 1)
    lane = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(0, BLOCKED)), 0)
    panels = reinterpret(values, values.dtype, [values.shape[0] * 2, TILE, 64], values.layout)
    tile = panels.index(stage * 2 + HALF)
    tile.store(gl.where(key + lane * 0 < seq_len, tile.load(BLOCKED), 0.0).to(values.dtype))
    hopper.fence_async_shared()
    barrier()
    mbarrier.arrive(v_clear, count=1)
    mbarrier.wait(v_clear, cleared & 1)


@gluon.jit
def _rows(HALF: gl.constexpr, left, GROUP: gl.constexpr, HEADS: gl.constexpr, LAYOUT: gl.constexpr):
    """Query token and head within the group of this half's rows, and which of them are real."""
    BLOCK_Q: gl.constexpr = 128 // HEADS
    r = HALF * 64 + gl.arange(0, 64, LAYOUT)
    token, head = r % BLOCK_Q, r // BLOCK_Q
    return token, head, (token < left) & (head < GROUP)


@gluon.jit
def _store_rows(ptr, row, head, live, strides, x, O: gl.constexpr):
    lane = gl.expand_dims(gl.arange(0, 128, gl.SliceLayout(0, O)), 0)
    offset = row.to(gl.int64) * strides[0] + head.to(gl.int64) * strides[1]
    ptrs = ptr + gl.expand_dims(offset, 1) + lane
    gl.store(ptrs, x.to(ptr.dtype.element_ty), mask=gl.expand_dims(live, 1) & (lane < 128))


@gluon.jit
def _store_boxes(HALF: gl.constexpr, out, x, q, boxes, buffer, row, head_0, GROUP: gl.constexpr, HEADS: gl.constexpr):
    """The output of a full Q Block, by TMA through the buffer that held its queries."""
    TOKENS: gl.constexpr = box_tokens(HEADS)
    q.store(x)
    hopper.fence_async_shared()
    barrier()
    for panel in gl.static_range(2):
        for b in gl.static_range(64 // TOKENS):
            if box_head(HALF, b, HEADS) < GROUP:
                at = [row + box_token(HALF, b, HEADS), head_0 + box_head(HALF, b, HEADS), panel * 64]
                async_store(out, at, boxes.index((buffer * 4 + HALF * 2 + panel) * (64 // TOKENS) + b))


@gluon.jit
def compute(
    HALF: gl.constexpr, q_boxes, keys, values, k_full, k_empty, v_full, v_empty, v_clear, q_full,
    q_empty, ring, s_full, s_empty, out, out_ptr, lse_ptr, acc_ptr, m_ptr, l_ptr, base2,
    out_strides, lse_strides, acc_strides,
    GROUP: gl.constexpr, HEADS: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr,
    BUFFERS: gl.constexpr, NUM_SEGMENTS: gl.constexpr, CAUSAL: gl.constexpr, LSE: gl.constexpr,
):  # fmt: skip
    """Four warps: half HALF of the rows of every item. Both halves take the same steps, or a turn would be missing."""
    S: gl.constexpr = gl.SliceLayout(1, products(TILE))
    O: gl.constexpr = products(128)
    queries = reinterpret(q_boxes, keys.dtype, [BUFFERS * 2, 64, 128], keys.layout)
    keep = gl.allocate_shared_memory(gl.float32, [64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    if HALF == 1:
        _hand_on(0)
    done = 0
    cleared = 0
    n = 0
    seq = n
    while seq >= 0:
        slot = n % SLOTS
        mbarrier.wait(s_full.index(slot), n // SLOTS & 1)
        seq = field(ring, slot, 0, 4)
        row_0 = field(ring, slot, 1, 4)
        left = field(ring, slot, 2, 4)
        position = field(ring, slot, 3, 4)
        seq_len = field(ring, slot, 4, 4)
        start = field(ring, slot, 5, 4)
        stop = field(ring, slot, 6, 4)
        part = field(ring, slot, 7, 4)
        head_0 = field(ring, slot, FIELDS, 4) * GROUP
        barrier()
        mbarrier.arrive(s_empty.index(slot), count=1)
        if seq >= 0:
            buffer = n % BUFFERS
            q = queries.index(buffer * 2 + HALF)
            token, head, live = _rows(HALF, left, GROUP, HEADS, S)
            if CAUSAL:
                last_key = position + token
                full = gl.maximum(position + 1, 0) // TILE
            else:
                last_key = token * 0 + seq_len - 1
                full = seq_len // TILE
            masked = gl.maximum(stop - gl.maximum(full, start), 1)
            m = gl.full([64], float("-inf"), gl.float32, S)
            l = gl.zeros([64], gl.float32, S)
            o = gl.zeros([64, 128], gl.float32, O)
            stage = done % STAGES
            mbarrier.wait(q_full.index(buffer), n // BUFFERS & 1)
            mbarrier.wait(k_full.index(stage), done // STAGES & 1)
            s = hopper.warpgroup_mma_wait(0, deps=[_scores(q, keys, stage, TILE)])
            mbarrier.arrive(k_empty.index(stage), count=1)
            if n > 0:  # by now the output of the item before has left its buffer
                tma.store_wait(0)
                barrier()
                mbarrier.arrive(q_empty.index((n - 1) % BUFFERS), count=1)
            x, m, l, _alpha = _softmax(s, m, l, base2, last_key, (stop - 1) * TILE, TILE, True)
            p = gl.convert_layout(x.to(keys.dtype), gl.DotOperandLayout(0, O, 2))
            if stop * TILE > seq_len:
                mbarrier.wait(v_full.index(stage), done // STAGES & 1)
                _clear_tail(HALF, values, stage, (stop - 1) * TILE, seq_len, v_clear, cleared, TILE)
                cleared += 1
            done += 1
            for i in range(1, masked):
                p, m, l, o = _step(
                    HALF, done, stop - 1 - i, p, m, l, o, q, keys, values, k_full, k_empty, v_full, v_empty,
                    base2, last_key, keep, TILE, True, STAGES,
                )  # fmt: skip
                done += 1
            for i in range(masked, stop - start):
                p, m, l, o = _step(
                    HALF, done, stop - 1 - i, p, m, l, o, q, keys, values, k_full, k_empty, v_full, v_empty,
                    base2, last_key, keep, TILE, False, STAGES,
                )  # fmt: skip
                done += 1
            stage = (done - 1) % STAGES
            mbarrier.wait(v_full.index(stage), (done - 1) // STAGES & 1)
            o = hopper.warpgroup_mma(p, values.index(stage), o, is_async=True)
            inverse = 1.0 / gl.where(l > 0.0, l, 1.0)
            o, p = hopper.warpgroup_mma_wait(0, deps=[o, p])
            mbarrier.arrive(v_empty.index(stage), count=1)
            o_token, o_head, o_live = _rows(HALF, left, GROUP, HEADS, gl.SliceLayout(1, O))
            if NUM_SEGMENTS == 1 or part < 0:
                scale = gl.expand_dims(gl.convert_layout(inverse, gl.SliceLayout(1, O)), 1)
                result = (o * scale).to(keys.dtype)
                if left >= 128 // HEADS:
                    _store_boxes(HALF, out, result, q, q_boxes, buffer, row_0, head_0, GROUP, HEADS)
                else:  # a box would write into the sequence behind
                    _store_rows(out_ptr, row_0 + o_token, head_0 + o_head, o_live, out_strides, result, O)
                if LSE:
                    place = (row_0 + token).to(gl.int64) * lse_strides[0] + (head_0 + head) * lse_strides[1]
                    gl.store(lse_ptr + place, (m + gl.log2(l)) * LN2, mask=live)
            else:
                begin = part.to(gl.int64) * acc_strides[0]
                _store_rows(acc_ptr + begin, row_0 + o_token, head_0 + o_head, o_live, acc_strides[1:], o, O)
                place = (begin + (row_0 + token).to(gl.int64) * acc_strides[1]) // 128 + head_0 + head  # m, l: no lanes
                gl.store(m_ptr + place, m, mask=live)
                gl.store(l_ptr + place, l, mask=live)
        n += 1
    if HALF == 0:
        _take_turn(0)  # the one that is left over
    tma.store_wait(0)
