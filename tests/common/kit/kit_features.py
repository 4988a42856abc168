"""A paged-attention callable of a stranger that has features, dense and in plain torch, and wrong ones made of it."""

import torch

SUPPORTS = {
    "causal", "alibi", "alibi_sqrt", "chunked_local", "prefix_lm", "causal_per_sequence", "tree_bias", "cross",
    "fp8_kv", "int8_kv", "fp8_out", "value_size", "lse",
}  # fmt: skip


class Features:
    """One sequence at a time; a wrong kernel overrides one method."""

    def last_of(self, span):
        return span[1]

    def flag(self, flags, seq):
        return bool(flags[seq])

    def tree(self, bias):
        return bias

    def scale(self, scale, blocks):
        """[keys or 1, heads, 1] of [1], [heads] or [pages, page, heads]."""
        return (scale[blocks].flatten(0, 1) if scale.dim() == 3 else scale[None])[..., None]

    def bias(self, slopes, sqrt, distance):
        if sqrt:
            return -slopes[:, None, None] * distance.clamp(min=0).sqrt()
        return -slopes[:, None, None] * distance

    def __call__(
        self, query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale, out, lse,
        causal=True, alibi_slopes=None, alibi_sqrt=False, chunk=None, chunk_lookback=0, spans=None,
        causal_per_sequence=None, tree_bias=None, key_scale=None, value_scale=None, out_scale=None,
    ):  # fmt: skip
        starts, caches = query_start_loc.tolist(), ((key_cache, key_scale), (value_cache, value_scale))
        for seq, seq_len in enumerate(seq_lens.tolist()):
            rows = slice(starts[seq], starts[seq + 1])
            if rows.start == rows.stop:
                continue
            blocks = block_table[seq, : -(-seq_len // key_cache.shape[1])].long()
            key, value = (
                cache[blocks].flatten(0, 1).float() * (1.0 if scale is None else self.scale(scale, blocks))
                for cache, scale in caches
            )
            group, x = query.shape[1] // key.shape[1], query[rows].float()
            key, value = (x[:seq_len].repeat_interleave(group, 1) for x in (key, value))
            q = torch.arange(seq_len - x.shape[0], seq_len)[:, None]
            k = torch.arange(seq_len)
            one_way = causal and (causal_per_sequence is None or self.flag(causal_per_sequence, seq))
            seen = (k <= q) if one_way else torch.ones(x.shape[0], seq_len, dtype=torch.bool)
            if chunk is not None:
                seen = seen & (q // chunk - k // chunk <= chunk_lookback)
            for span in [] if spans is None else spans[seq].tolist():
                if span[0] < span[1]:
                    last = self.last_of(span)
                    seen = seen | ((span[0] <= q) & (q <= last) & (span[0] <= k) & (k <= last))
            s = torch.einsum("qhd,khd->hqk", x, key) * softmax_scale
            if alibi_slopes is not None:
                s = s + self.bias(alibi_slopes, alibi_sqrt, (q - k).float())
            if tree_bias is not None:
                size = min(x.shape[0], tree_bias.shape[0])
                first = seq_len - x.shape[0]  # key of the first token; negative where there are fewer keys than tokens
                s[:, :size, max(first, 0) : max(first + size, 0)] += self.tree(tree_bias)[:size, max(-first, 0) : size]
            s = s.masked_fill(~seen, -torch.inf)
            lse[rows] = torch.logsumexp(s, -1).T
            found = torch.einsum("hqk,khd->qhd", torch.softmax(s, -1).nan_to_num(0.0), value) + 0.0  # not 0 * -v
            if out_scale is not None:
                most = torch.finfo(out.dtype).max
                found = (found / out_scale).clamp(-most, most)
            out[rows] = found.to(out.dtype)


def wrong(**methods):
    """The right one with other methods."""
    return type("Wrong", (Features,), methods)()


right = Features()
flags_of_32_bits_alone = wrong(flag=lambda self, flags, seq: flags.dtype == torch.bool or bool(flags[seq]))
tree_of_32_bits_alone = wrong(tree=lambda self, bias: bias if bias.dtype == torch.float32 else bias.float() * 0.5)
span_end_exclusive = wrong(last_of=lambda self, span: span[1] - 1)
scale_of_the_first_head = wrong(scale=lambda self, *given: right.scale(*given)[:, :1])
slope_of_the_next_head = wrong(bias=lambda self, slopes, *more: right.bias(slopes.roll(1), *more))


def silent(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, out, lse):
    """Declares ALiBi and has no parameter for slopes."""


silent.SUPPORTS = {"causal", "alibi"}
