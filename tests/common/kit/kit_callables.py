"""Seven paged-attention callables as strangers write them: one right, six wrong, five in ways that were shipped.

Plain torch, float32 sums. No line of Diptych's is imported.
"""

import torch

SUPPORTS = {"causal", "non_causal", "sliding_window", "softcap", "sinks", "lse"}


class Attention:
    """Online softmax over tiles; a wrong kernel overrides one method."""

    tile = 512

    def last_key(self, seq_len):
        return seq_len

    def pages(self, pages):
        return pages

    def window(self, width):
        return width

    def accumulator(self, acc):
        return acc

    def merge(self, parts):
        return parts

    def natural(self, lse):
        return lse

    def __call__(
        self, query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale,
        causal=True, sliding_window=None, softcap=None, sinks=None, out=None, lse=None,
    ):  # fmt: skip
        starts = query_start_loc.tolist()
        for seq, seq_len in enumerate(seq_lens.tolist()):
            rows = slice(starts[seq], starts[seq + 1])
            if rows.start == rows.stop:
                continue
            tables = self.pages(block_table[seq, : -(-seq_len // key_cache.shape[1])].long())
            key, value = (cache[tables].flatten(0, 1)[:seq_len] for cache in (key_cache, value_cache))
            mask = self.mask(rows.stop - rows.start, seq_len, causal, sliding_window)
            logits = (query[rows].float() * softmax_scale, softcap)
            m, total, acc = self.rows(*logits, key, value, mask, sinks)
            out[rows] = (acc / torch.where(total > 0.0, total, 1.0)[..., None]).transpose(0, 1).to(out.dtype)
            if lse is not None:
                lse[rows] = self.natural(m + torch.log(total)).transpose(0, 1)
        return out

    def mask(self, query_len, seq_len, causal, sliding_window):
        key = torch.arange(seq_len)
        distance = torch.arange(seq_len - query_len, seq_len)[:, None] - key
        seen = (key < self.last_key(seq_len)).expand_as(distance)
        if causal:
            seen = seen & (distance >= 0)
        if sliding_window is not None:
            seen = seen & (distance.abs() < self.window(sliding_window))
        return seen

    def rows(self, query, softcap, key, value, mask, sinks):
        """m, sum [heads, rows] and accumulator [heads, rows, size], float32."""
        group, parts = query.shape[1] // key.shape[1], []
        for first in range(0, key.shape[0], self.tile):
            tile = slice(first, first + self.tile)
            k, v = (x[tile].repeat_interleave(group, 1) for x in (key, value))
            v = v.masked_fill(~mask[:, tile].any(0)[:, None, None], 0.0)  # 0 * NaN of a key that nobody sees
            s = torch.einsum("qhd,khd->hqk", query, k.float())
            s = s if softcap is None else softcap * torch.tanh(s / softcap)
            s = s.masked_fill(~mask[:, tile], -torch.inf)
            m = s.amax(-1)
            p = torch.exp(s - torch.where(m.isinf(), 0.0, m)[..., None])
            parts.append((m, p.sum(-1), torch.einsum("hqk,khd->hqd", p.to(v.dtype).float(), v.float())))
        sink = torch.full((query.shape[1],), -torch.inf) if sinks is None else sinks
        sink, acc = sink[:, None].expand(-1, query.shape[0]), torch.zeros(*query.shape[1::-1], value.shape[-1])
        parts.insert(0, (sink, torch.where(sink.isinf(), 0.0, 1.0), acc))
        top = torch.stack([m for m, _, _ in parts]).amax(0)
        total = torch.zeros_like(top)
        for m, part, weighted in self.merge(parts):
            weight = torch.exp(m - torch.where(top.isinf(), 0.0, top))
            total, acc = total + weight * part, self.accumulator(acc + weight[..., None] * weighted)
        return top, total, acc


def wrong(**methods):
    """The right one with other methods."""
    return type("Wrong", (Attention,), methods)()


class StaleWorkspace(Attention):
    """Partial results live in scratch that is never cleared, and the merge goes through all that was ever used."""

    def __init__(self):
        self.scratch = {}

    def merge(self, parts):
        kept = self.scratch.setdefault(tuple(parts[0][2].shape), [])
        kept[: len(parts)] = parts
        return kept


class NanOfARowInEveryRow(Attention):
    """A decision for a whole tile, as whether its maximum rose, from rows of which one is NaN."""

    def merge(self, parts):
        hit = any(bool(m.isnan().any()) for m, _, _ in parts)
        return [(m, total, acc * torch.nan) for m, total, acc in parts] if hit else parts


class AccumulatorInBf16(Attention):
    tile = 64  # of few tiles the rounding stays within what P in bf16 may cost

    def accumulator(self, acc):
        return acc.bfloat16().float()


class DithersInItsLse(Attention):
    """The LSE of every second call has another last bit; the outputs never."""

    calls = 0

    def natural(self, lse):
        self.calls += 1
        return torch.nextafter(lse, torch.tensor(torch.inf)) if self.calls % 2 == 0 else lse


right = Attention()
dithers_in_its_lse = DithersInItsLse()
last_key_dropped = wrong(last_key=lambda self, seq_len: seq_len - (seq_len > 4096))
page_id_in_16_bits = wrong(pages=lambda self, pages: pages & 0xFFFF)
window_one_too_wide = wrong(window=lambda self, width: width + 1)
stale_workspace = StaleWorkspace()
accumulator_in_bf16 = AccumulatorInBf16()
nan_of_a_row_in_every_row = NanOfARowInEveryRow()
