"""A naive Triton kernel as strangers write their first: one program a query token and head, a loop over tiles of keys.

One that is right, and three with one bug each. No line of Diptych's is imported.
"""

import triton
import triton.language as tl

SUPPORTS = {"causal", "sliding_window", "softcap", "lse"}
TILE = 32  # keys


@triton.jit
def attention(
    query, key, value, table, starts, lengths, out, lse, q_stride, k_stride, v_stride, o_stride, l_stride, table_stride,
    num_seqs, scale, window, softcap, group, kv_heads, size, page, LANES: tl.constexpr, TILE: tl.constexpr,
    MODULO: tl.constexpr, CAPPED: tl.constexpr, WITH_LSE: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0), tl.program_id(1)
    seq = 0
    while tl.load(starts + seq + 1) <= token:
        seq += 1
    begin, end, length = tl.load(starts + seq), tl.load(starts + seq + 1), tl.load(lengths + seq)
    position = length - (end - begin) + token - begin
    kv_head = head % kv_heads if MODULO else head // group
    lane, slot = tl.arange(0, LANES), tl.arange(0, TILE)
    inside = lane < size
    q = tl.load(query + token.to(tl.int64) * q_stride[0] + head * q_stride[1] + lane, mask=inside, other=0.0)
    q = q.to(tl.float32) * scale
    m, l, acc = -float("inf"), 0.0, tl.zeros([LANES], tl.float32)
    for first in range(tl.maximum(position - window + 1, 0) // TILE * TILE, position + 1, TILE):
        keys = first + slot
        seen = (keys <= position) & (keys > position - window)
        pages = tl.load(table + seq.to(tl.int64) * table_stride + keys // page, mask=seen, other=0).to(tl.int64)
        k_row = pages * k_stride[0] + (keys % page) * k_stride[1] + kv_head * k_stride[2]
        v_row = pages * v_stride[0] + (keys % page) * v_stride[1] + kv_head * v_stride[2]
        both = seen[:, None] & inside[None, :]
        k = tl.load(key + k_row[:, None] + lane[None, :], mask=both, other=0.0).to(tl.float32)
        v = tl.load(value + v_row[:, None] + lane[None, :], mask=both, other=0.0).to(tl.float32)
        s = tl.sum(q[None, :] * k, 1)
        if CAPPED:
            s = softcap * (1.0 - 2.0 / (tl.exp(2.0 * s / softcap) + 1.0))
        s = tl.where(seen, s, -float("inf"))
        top = tl.maximum(m, tl.max(s, 0))
        p, fade = tl.exp(s - top), tl.exp(m - top)
        l = l * fade + tl.sum(p, 0)
        acc = acc * fade + tl.sum(p[:, None] * v, 0)
        m = top
    row = tl.where(l > 0.0, acc / tl.where(l > 0.0, l, 1.0), 0.0)
    tl.store(out + token.to(tl.int64) * o_stride[0] + head * o_stride[1] + lane, row, mask=inside)
    if WITH_LSE:
        tl.store(lse + token * l_stride[0] + head * l_stride[1], m + tl.log(l))


class Naive:
    """A wrong kernel overrides one field or method."""

    modulo = False

    def window(self, width):
        return width

    def softcap(self, cap):
        return cap

    def __call__(
        self, query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale,
        sliding_window=None, softcap=None, out=None, lse=None,
    ):  # fmt: skip
        tokens, (heads, kv_heads, size) = int(query_start_loc[-1]), (query.shape[1], *key_cache.shape[2:])
        if tokens == 0:
            return
        with_lse = lse is not None
        lse = out if lse is None else lse
        window = 2**31 - 1 if sliding_window is None else self.window(sliding_window)
        softcap = self.softcap(softcap)
        attention[(tokens, heads)](
            query, key_cache, value_cache, block_table, query_start_loc, seq_lens, out, lse, query.stride()[:2],
            key_cache.stride()[:3], value_cache.stride()[:3], out.stride()[:2], lse.stride()[:2],
            block_table.stride(0), seq_lens.numel(), softmax_scale, window, softcap or 0.0, heads // kv_heads, kv_heads,
            size, key_cache.shape[1], triton.next_power_of_2(size), TILE, self.modulo,
            softcap is not None, with_lse,
        )  # fmt: skip


class KvHeadByModulo(Naive):
    modulo = True


class WindowOneWider(Naive):
    def window(self, width):
        return width + 1


class NoSoftcap(Naive):
    def softcap(self, cap):
        return None


right = Naive()
kv_head_by_modulo, window_one_wider, no_softcap = KvHeadByModulo(), WindowOneWider(), NoSoftcap()
