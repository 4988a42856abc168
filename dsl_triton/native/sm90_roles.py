"""What the warps of sm90_prefill.py do: four load boxes of pages, eight compute; all find their items by themselves.

Barriers are named by what they wait for: `full` a tile that has landed, `empty` one that both halves of the rows have
read, `clear` one whose tail both have cleared. A tile of K or V is two smem tiles [TILE, 64], one per half of the
lanes. Scores, m and l are in base 2.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from dsl_triton.native.gluon_names import async_load, barrier

LN2 = gl.constexpr(0.6931471805599453)


@gluon.constexpr_function
def products(columns):
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])


@gluon.jit
def add(a, b):
    return a + b


@gluon.jit
def _read(smem, i, WARPS: gl.constexpr):
    return gl.max(smem.index(i).load(gl.BlockedLayout([1], [32], [WARPS], [0])), 0)


@gluon.jit
def find_item(
    number, total, ends, query_start_loc_ptr, seq_lens_ptr, NUM_KV_HEADS: gl.constexpr, BLOCK_Q: gl.constexpr,
    TILE: gl.constexpr, NUM_SEGMENTS: gl.constexpr, CAUSAL: gl.constexpr, SEQS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """The program's number-th item: where it lies, its tiles [start, stop) and how many at the end need a mask."""
    programs = gl.num_programs(0)
    place = number * programs + gl.where(number % 2 == 0, gl.program_id(0), programs - 1 - gl.program_id(0))
    item = gl.maximum(total - 1 - place, 0)
    kv_head = item % NUM_KV_HEADS
    segment = item // NUM_KV_HEADS % NUM_SEGMENTS
    q_block = item // (NUM_KV_HEADS * NUM_SEGMENTS)
    seq = q_block * 0
    right = seq + (SEQS - 1)
    while seq < right:  # the first sequence whose Q Blocks end behind this one
        middle = (seq + right) // 2
        if _read(ends, middle, WARPS) > q_block:
            right = middle
        else:
            seq = middle + 1
    if seq > 0:
        q_block -= _read(ends, seq - 1, WARPS)
    query_start = gl.load(query_start_loc_ptr + seq)
    query_len = gl.load(query_start_loc_ptr + seq + 1) - query_start
    seq_len = gl.load(seq_lens_ptr + seq)
    first = q_block * BLOCK_Q
    end_key = seq_len
    full_end = seq_len
    if CAUSAL:
        end_key = gl.minimum(seq_len - query_len + gl.minimum(first + BLOCK_Q, query_len), seq_len)
        full_end = seq_len - query_len + first + 1
    hi = (gl.maximum(end_key, 0) + TILE - 1) // TILE
    per_segment = gl.maximum((hi + NUM_SEGMENTS - 1) // NUM_SEGMENTS, 1)
    used = (hi + per_segment - 1) // per_segment
    start = gl.minimum(segment * per_segment, hi)
    stop = gl.where(place < total, gl.minimum(start + per_segment, hi), start)
    masked = stop - gl.minimum(gl.maximum(gl.maximum(full_end, 0) // TILE, start), stop)
    mine = (place < total) & ((stop > start) | (segment == 0))
    return mine, kv_head, segment, seq, query_start, query_len, first, seq_len, start, stop, masked, used


@gluon.jit
def _find_boxes(j, table_ptr, last_key, page_rows, head_row, PAGE: gl.constexpr, BOX: gl.constexpr, TILE: gl.constexpr):
    """Rows of the cache at which the boxes of tile j begin, int32 [32]; behind the sequence its last page again."""
    box = gl.arange(0, 32, gl.BlockedLayout([1], [32], [1], [0]))
    key = gl.maximum(gl.minimum(j * TILE + box * BOX, last_key), 0)
    page = gl.load(table_ptr + key // PAGE, mask=box < TILE // BOX, other=0).to(gl.int32)
    return page * page_rows + head_row + key % PAGE // BOX * BOX


@gluon.jit
def load(
    PART: gl.constexpr, cache, boxes, full, empty, total, ends, query_start_loc_ptr, seq_lens_ptr, block_table_ptr,
    block_table_strides, cache_strides, NUM_KV_HEADS: gl.constexpr, BLOCK_Q: gl.constexpr, TILE: gl.constexpr,
    NUM_SEGMENTS: gl.constexpr, CAUSAL: gl.constexpr, SEQS: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """One warp: half PART of the lanes of every tile of K, or of V. Rows are found a tile ahead of their box."""
    loaded = 0
    box = gl.arange(0, 32, gl.BlockedLayout([1], [32], [1], [0]))
    for number in range(0, gl.cdiv(total, gl.num_programs(0))):
        _, kv_head, _, seq, _, _, _, seq_len, start, stop, _, _ = find_item(
            number, total, ends, query_start_loc_ptr, seq_lens_ptr,
            NUM_KV_HEADS, BLOCK_Q, TILE, NUM_SEGMENTS, CAUSAL, SEQS, 1,
        )  # fmt: skip
        table_ptr = block_table_ptr + seq.to(gl.int64) * block_table_strides[0]
        head_row = kv_head * cache_strides[1]
        lane = kv_head * cache_strides[2] + PART * 64
        ahead = _find_boxes(stop - 1, table_ptr, seq_len - 1, cache_strides[0], head_row, PAGE, BOX, TILE)
        for i in range(0, stop - start):
            rows = ahead
            ahead = _find_boxes(stop - 2 - i, table_ptr, seq_len - 1, cache_strides[0], head_row, PAGE, BOX, TILE)
            stage = loaded % STAGES
            mbarrier.wait(empty.index(stage), (loaded // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), TILE * 128)  # bytes: 64 lanes of 2
            for b in gl.static_range(TILE // BOX):
                row = gl.sum(gl.where(box == b, rows, 0), 0)  # one instruction, and the scalar that TMA wants
                place = (stage * 2 + PART) * (TILE // BOX) + b
                async_load(cache, [row, lane], full.index(stage), boxes.index(place))
            loaded += 1


@gluon.jit
def _scores(q0, q1, keys, stage, TILE: gl.constexpr):
    s = gl.zeros([64, TILE], gl.float32, products(TILE))
    s = hopper.warpgroup_mma(q0, keys.index(stage * 2).permute((1, 0)), s, use_acc=False, is_async=True)
    return hopper.warpgroup_mma(q1, keys.index(stage * 2 + 1).permute((1, 0)), s, is_async=True)


@gluon.jit
def _softmax(s, m, l, base2, query_pos, j, seq_len, TILE: gl.constexpr, CAUSAL: gl.constexpr, MASKED: gl.constexpr):
    """p [64, TILE] and the new m, l, and what the sums so far are worth; as primitives.softmax_step."""
    if MASKED:
        key_pos = gl.expand_dims(j * TILE + gl.arange(0, TILE, gl.SliceLayout(0, s.type.layout)), 0)
        last = gl.expand_dims(query_pos if CAUSAL else query_pos * 0 + seq_len - 1, 1)
        s = gl.where(key_pos <= last, s, float("-inf"))
    m_new = gl.maximum(m, gl.max(s, 1) * base2)
    shift = m_new
    if MASKED:
        shift = gl.where(m_new == float("-inf"), 0.0, m_new)
    p = gl.exp2(s * base2 - gl.expand_dims(shift, 1))
    alpha = gl.exp2(m - shift)
    return p, m_new, l * alpha + gl.sum(p, 1), alpha


@gluon.jit
def _step(
    at, j, p, m, l, o0, o1, q0, q1, keys, values, k_full, k_empty, v_full, v_empty, base2, query_pos, seq_len, keep,
    TILE: gl.constexpr, CAUSAL: gl.constexpr, MASKED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Scores of tile j, the at-th of this program, while p sums the values of the tile before; then its softmax."""
    O: gl.constexpr = products(64)
    stage, before = at % STAGES, (at - 1) % STAGES
    mbarrier.wait(k_full.index(stage), at // STAGES & 1)
    s = _scores(q0, q1, keys, stage, TILE)
    mbarrier.wait(v_full.index(before), (at - 1) // STAGES & 1)
    o0 = hopper.warpgroup_mma(p, values.index(before * 2), o0, is_async=True)
    o1 = hopper.warpgroup_mma(p, values.index(before * 2 + 1), o1, is_async=True)
    s = hopper.warpgroup_mma_wait(2, deps=[s])
    mbarrier.arrive(k_empty.index(stage), count=1)
    x, m, l, alpha = _softmax(s, m, l, base2, query_pos, j, seq_len, TILE, CAUSAL, MASKED)
    x = gl.convert_layout(x.to(keys.dtype), gl.DotOperandLayout(0, O, 2))
    # ptxas moves the wait ahead of the softmax, which then runs under nothing: 2.3 us a tile for 1.6. Not past a store.
    keep.store(l)
    o0, o1, p, x = hopper.warpgroup_mma_wait(0, deps=[o0, o1, p, x])
    mbarrier.arrive(v_empty.index(before), count=1)
    alpha = gl.expand_dims(gl.convert_layout(alpha, gl.SliceLayout(1, O)), 1)
    return x, m, l, o0 * alpha, o1 * alpha


@gluon.jit
def _rows(
    HALF: gl.constexpr, first, query_len, QUERIES_PER_KV: gl.constexpr, BLOCK_Q: gl.constexpr, LAYOUT: gl.constexpr
):
    """Query token, head within the group and whether it is real, of this half's rows, as primitives.q_block_rows."""
    r = HALF * 64 + gl.arange(0, 64, LAYOUT)
    token = first + r // QUERIES_PER_KV
    return token, r % QUERIES_PER_KV, (token < query_len) & (r < BLOCK_Q * QUERIES_PER_KV)


@gluon.jit
def _load_queries(ptr, row, head, live, strides, q0, q1, BLOCKED: gl.constexpr):
    lane = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(0, BLOCKED)), 0)
    ptrs = ptr + gl.expand_dims(row.to(gl.int64) * strides[0] + head.to(gl.int64) * strides[1], 1) + lane
    keep = gl.expand_dims(live, 1) & (lane < 64)
    q0.store(gl.load(ptrs, mask=keep, other=0.0))
    q1.store(gl.load(ptrs + 64, mask=keep, other=0.0))
    hopper.fence_async_shared()
    barrier()


@gluon.jit
def _clear_tail(
    HALF: gl.constexpr, values, stage, first_key, seq_len, v_clear, cleared, TILE: gl.constexpr, BLOCKED: gl.constexpr
):
    """Zeros in V's tile behind the sequence: its slots may hold NaN, and 0 * NaN would reach the output.

    Each half of the rows clears half of the lanes and waits for the other, for the cleared-th time.
    """
    key = gl.expand_dims(first_key + gl.arange(0, TILE, gl.SliceLayout(1, BLOCKED)), 1)
    lane = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(0, BLOCKED)), 0)
    tile = values.index(stage * 2 + HALF)
    tile.store(gl.where(key + lane * 0 < seq_len, tile.load(BLOCKED), 0.0).to(values.dtype))
    hopper.fence_async_shared()
    barrier()
    mbarrier.arrive(v_clear, count=1)
    mbarrier.wait(v_clear, cleared & 1)


@gluon.jit
def _store_halves(ptr, row, head, live, strides, o0, o1, O: gl.constexpr):
    lane = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(0, O)), 0)
    ptrs = ptr + gl.expand_dims(row.to(gl.int64) * strides[0] + head.to(gl.int64) * strides[1], 1) + lane
    keep = gl.expand_dims(live, 1) & (lane < 64)
    gl.store(ptrs, o0.to(ptr.dtype.element_ty), mask=keep)
    gl.store(ptrs + 64, o1.to(ptr.dtype.element_ty), mask=keep)


@gluon.jit
def compute(
    HALF: gl.constexpr, q_smem, keys, values, k_full, k_empty, v_full, v_empty, v_clear, total, ends, query_ptr,
    out_ptr, lse_ptr, acc_ptr, m_ptr, l_ptr, query_start_loc_ptr, seq_lens_ptr, base2,
    query_strides, out_strides, lse_strides, acc_strides, m_strides,
    NUM_KV_HEADS: gl.constexpr, QUERIES_PER_KV: gl.constexpr, BLOCK_Q: gl.constexpr, TILE: gl.constexpr,
    NUM_SEGMENTS: gl.constexpr, CAUSAL: gl.constexpr, SEQS: gl.constexpr, STAGES: gl.constexpr, LSE: gl.constexpr,
):  # fmt: skip
    """Four warps: half HALF of the rows of every item."""
    S: gl.constexpr = gl.SliceLayout(1, products(TILE))
    O: gl.constexpr = products(64)
    BLOCKED: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    keep = gl.allocate_shared_memory(gl.float32, [64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q0, q1 = q_smem.index(2 * HALF), q_smem.index(2 * HALF + 1)
    done = 0
    cleared = 0
    for number in range(0, gl.cdiv(total, gl.num_programs(0))):
        mine, kv_head, segment, _, query_start, query_len, first, seq_len, start, stop, masked, used = find_item(
            number, total, ends, query_start_loc_ptr, seq_lens_ptr,
            NUM_KV_HEADS, BLOCK_Q, TILE, NUM_SEGMENTS, CAUSAL, SEQS, 4,
        )  # fmt: skip
        if mine:
            head_0 = kv_head * QUERIES_PER_KV
            token, head, live = _rows(HALF, first, query_len, QUERIES_PER_KV, BLOCK_Q, gl.SliceLayout(1, BLOCKED))
            _load_queries(query_ptr, query_start + token, head_0 + head, live, query_strides, q0, q1, BLOCKED)
            token, head, live = _rows(HALF, first, query_len, QUERIES_PER_KV, BLOCK_Q, S)
            query_pos = seq_len - query_len + token
            m = gl.full([64], float("-inf"), gl.float32, S)
            l = gl.zeros([64], gl.float32, S)
            o0 = gl.zeros([64, 64], gl.float32, O)
            o1 = gl.zeros([64, 64], gl.float32, O)
            if stop > start:
                stage = done % STAGES
                mbarrier.wait(k_full.index(stage), done // STAGES & 1)
                s = hopper.warpgroup_mma_wait(0, deps=[_scores(q0, q1, keys, stage, TILE)])
                mbarrier.arrive(k_empty.index(stage), count=1)
                x, m, l, _alpha = _softmax(s, m, l, base2, query_pos, stop - 1, seq_len, TILE, CAUSAL, True)
                p = gl.convert_layout(x.to(keys.dtype), gl.DotOperandLayout(0, O, 2))
                if stop * TILE > seq_len:
                    mbarrier.wait(v_full.index(stage), done // STAGES & 1)
                    _clear_tail(HALF, values, stage, (stop - 1) * TILE, seq_len, v_clear, cleared, TILE, BLOCKED)
                    cleared += 1
                done += 1
                for i in range(1, gl.maximum(masked, 1)):
                    p, m, l, o0, o1 = _step(
                        done, stop - 1 - i, p, m, l, o0, o1, q0, q1, keys, values, k_full, k_empty, v_full, v_empty,
                        base2, query_pos, seq_len, keep, TILE, CAUSAL, True, STAGES,
                    )  # fmt: skip
                    done += 1
                for i in range(gl.maximum(masked, 1), stop - start):
                    p, m, l, o0, o1 = _step(
                        done, stop - 1 - i, p, m, l, o0, o1, q0, q1, keys, values, k_full, k_empty, v_full, v_empty,
                        base2, query_pos, seq_len, keep, TILE, CAUSAL, False, STAGES,
                    )  # fmt: skip
                    done += 1
                last = (done - 1) % STAGES
                mbarrier.wait(v_full.index(last), (done - 1) // STAGES & 1)
                o0 = hopper.warpgroup_mma(p, values.index(last * 2), o0, is_async=True)
                o1 = hopper.warpgroup_mma(p, values.index(last * 2 + 1), o1, is_async=True)
                o0, o1, p = hopper.warpgroup_mma_wait(0, deps=[o0, o1, p])
                mbarrier.arrive(v_empty.index(last), count=1)
            o_token, o_head, o_live = _rows(HALF, first, query_len, QUERIES_PER_KV, BLOCK_Q, gl.SliceLayout(1, O))
            row, o_row = query_start + token, query_start + o_token
            if used <= 1:
                inverse = gl.convert_layout(1.0 / gl.where(l > 0.0, l, 1.0), gl.SliceLayout(1, O))
                inverse = gl.expand_dims(inverse, 1)
                _store_halves(out_ptr, o_row, head_0 + o_head, o_live, out_strides, o0 * inverse, o1 * inverse, O)
                if LSE:
                    place = row.to(gl.int64) * lse_strides[0] + (head_0 + head) * lse_strides[1]
                    gl.store(lse_ptr + place, (m + gl.log2(l)) * LN2, mask=live)
            elif NUM_SEGMENTS > 1:
                part = segment.to(gl.int64)
                acc_part = acc_ptr + part * acc_strides[0]
                _store_halves(acc_part, o_row, head_0 + o_head, o_live, acc_strides[1:], o0, o1, O)
                place = part * m_strides[0] + row.to(gl.int64) * m_strides[1] + head_0 + head
                gl.store(m_ptr + place, m, mask=live)
                gl.store(l_ptr + place, l, mask=live)
