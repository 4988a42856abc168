"""A paged-attention callable in plain torch with bugs that small tidy batches never show, one by one or all at once."""

import torch

SUPPORTS = {"causal", "sliding_window", "softcap", "sinks", "alibi", "fp8_query", "lse"}
BUGS = (
    "scale_of_the_head_size",  # softmax_scale is not read
    "value_in_strides_of_key",  # where K and V are of one size
    "whole_softcap",  # rounded to an integer
    "slopes_of_the_paper",  # whatever is passed
    "window_ends_at_4096",
    "keys_end_at_8192",
    "rows_end_at_256",  # of one sequence
    "sequences_end_at_256",
    "heads_end_at_64",
    "ratio_10_is_8",  # from 9 to 11
    "keys_kept_by_address",
    "table_kept_by_address",
    "cap_before_the_query_scale",
)


def _slopes(heads):
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)


class Franken:
    """The right kernel with some of BUGS."""

    def __init__(self, *bugs):
        self.bugs, self.keys, self.tables = set(bugs), {}, {}

    def has(self, bug, where=True):
        return bug in self.bugs and bool(where)

    def kept(self, bug, memory, tensor):
        """The tensor; or what it was when it was first met at its address."""
        if not self.has(bug):
            return tensor
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        return memory.setdefault(place, tensor.clone())

    def heads(self, query_heads, kv_heads):
        group = query_heads // kv_heads
        group = 8 if self.has("ratio_10_is_8", 9 <= group <= 11) else group
        found = (torch.arange(query_heads) // group).clamp(max=kv_heads - 1)
        return found.masked_fill(torch.arange(query_heads) >= 64, 0) if self.has("heads_end_at_64") else found

    def values(self, key_cache, value_cache):
        if self.has("value_in_strides_of_key", key_cache.shape == value_cache.shape):
            last = sum((n - 1) * s for n, s in zip(key_cache.shape, key_cache.stride(), strict=True))
            if value_cache.storage_offset() + last < value_cache.untyped_storage().nbytes() // value_cache.itemsize:
                return value_cache.as_strided(key_cache.shape, key_cache.stride(), value_cache.storage_offset())
        return value_cache

    def logits(self, q, k, scale, cap, query_scale):
        """[heads, rows, keys]."""
        logits = torch.einsum("qhd,khd->hqk", q, k) * scale
        factor = 1.0 if query_scale is None else query_scale
        if cap is None:
            return logits * factor
        cap = max(1.0, float(round(cap))) if self.has("whole_softcap") else cap
        if self.has("cap_before_the_query_scale"):
            return cap * torch.tanh(logits / cap) * factor
        return cap * torch.tanh(logits * factor / cap)

    def seen(self, rows, length, window):
        q, k = torch.arange(length - rows, length)[:, None], torch.arange(length)
        seen = k <= q
        if window is not None:
            seen = seen & (k > q - (min(window, 4096) if self.has("window_ends_at_4096") else window))
        return seen & (k < 8192) if self.has("keys_end_at_8192") else seen

    def __call__(
        self, query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale, out, lse=None,
        sliding_window=None, softcap=None, sinks=None, alibi_slopes=None, query_scale=None, key_scale=None,
        value_scale=None,
    ):  # fmt: skip
        scale = query.shape[2] ** -0.5 if self.has("scale_of_the_head_size") else softmax_scale
        heads = self.heads(query.shape[1], key_cache.shape[2])
        keys = self.kept("keys_kept_by_address", self.keys, key_cache)
        table = self.kept("table_kept_by_address", self.tables, block_table)
        values, starts = self.values(key_cache, value_cache), query_start_loc.tolist()
        for seq, length in enumerate(seq_lens.tolist()):
            begin, end = starts[seq : seq + 2]
            if begin == end:
                continue
            if self.has("sequences_end_at_256", seq >= 256):
                out[begin:end] = lse[begin:end] = 0
                continue
            pages = table[seq, : -(-length // key_cache.shape[1])].long()
            k, v = (c[pages].flatten(0, 1)[:length].float()[:, heads] for c in (keys, values))
            of_k, of_v = (
                1.0 if s is None else s.expand(key_cache.shape[2])[heads, None] for s in (key_scale, value_scale)
            )
            s = self.logits(query[begin:end].float(), k * of_k, scale, softcap, query_scale)
            if alibi_slopes is not None:
                slopes = _slopes(len(heads)) if self.has("slopes_of_the_paper") else alibi_slopes
                distance = torch.arange(length) - torch.arange(length - (end - begin), length)[:, None]
                s = s + slopes[:, None, None] * distance
            seen = self.seen(end - begin, length, sliding_window)
            s = s.masked_fill(~seen, -torch.inf)
            top = s.amax(-1, keepdim=True) if length else s.new_zeros(*s.shape[:2], 1)
            top = top if sinks is None else torch.maximum(top, sinks.float()[:, None, None])
            top = top.masked_fill(top == -torch.inf, 0.0)
            p = torch.exp(s - top)
            total = p.sum(-1) + (0.0 if sinks is None else torch.exp(sinks.float()[:, None, None] - top)[..., 0])
            v = v.masked_fill(~seen.any(0)[:, None, None], 0.0)
            rows = torch.einsum("hqk,khd->qhd", p, v * of_v) / total.masked_fill(total == 0, 1.0).T[..., None]
            out[begin:end] = rows.masked_fill(~seen.any(1)[:, None, None], 0.0).to(out.dtype)
            if lse is not None:
                lse[begin:end] = (top[..., 0] + total.log()).T
            if self.has("rows_end_at_256", end - begin > 256):
                out[begin + 256 : end] = 0


right = Franken()
franken = Franken(*BUGS)
for _bug in BUGS:
    globals()[_bug] = Franken(_bug)
