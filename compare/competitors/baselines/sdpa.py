"""torch's scaled_dot_product_attention on pages: gathered to contiguous K and V inside the timed call.

What a user without a paged kernel would write. The host knows the lengths (as an engine does): `prepare` keeps them, so
that the call itself waits for nothing.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F

from common.spec import Features, PagedBatch
from common.spec.kernel import Precision, launches
from common.spec.metadata import lens_of
from compare.competitors.baselines import bare_files

RELEASE = ("torch", "2.11.0", "", "BSD-3-Clause", "CUDA", 0)
# Not full_graph: the lengths shape the work.
SUPPORTS = frozenset({"causal", "non_causal", "sliding_window", "head_size_512"})
ASKS = frozenset({"fp8_kv", "fp8_query"})  # torch is asked, and refuses in its own words
CONTRACT = Precision()


DEFAULT = None  # torch picks the backend
workspace = bare_files.no_scratch


@dataclass(frozen=True)
class Plan:
    """The lengths, and for a batch of decodes alone: which of the padded keys exist, bool [num_seqs, 1, 1, keys]."""

    lens: tuple[tuple[int, int], ...]
    valid: torch.Tensor | None

    @property
    def starts(self) -> list[int]:
        return [*accumulate((query_len for query_len, _ in self.lens), initial=0)]


Dense = list[tuple[torch.Tensor, torch.Tensor]]  # K and V, [1 or num_seqs, num_kv_heads, keys, head_size]


def make_plan(batch: PagedBatch, features: Features) -> Plan:
    """Reads the lengths from the device."""
    lens = tuple(lens_of(batch.query_start_loc, batch.seq_lens))
    if not lens or any(query_len != 1 or seq_len == 0 for query_len, seq_len in lens):
        return Plan(lens, None)
    page = batch.key_cache.shape[1]
    keys = -(-max(seq_len for _, seq_len in lens) // page) * page
    position = torch.arange(keys, device=batch.device)
    lengths = batch.seq_lens.long()[:, None]
    valid = position < lengths
    if features.sliding_window is not None:
        valid &= position >= lengths - features.sliding_window
    return Plan(lens, valid[:, None, None, :])


def gather(batch: PagedBatch, plan: Plan) -> Dense:
    """Contiguous K and V: one padded pair for a batch of decodes, a pair per sequence otherwise.

    Padding becomes zero: a slot that nobody owns may hold NaN, and NaN survives a weight of zero.
    """
    page = batch.key_cache.shape[1]
    if plan.valid is not None:
        columns = plan.valid.shape[-1] // page
        exists = plan.valid.view(len(plan.lens), columns, page)
        pages = batch.block_table[:, :columns].long().masked_fill(~exists.any(-1), 0)
        pair = [cache[pages].masked_fill_(~exists[..., None, None], 0.0) for cache in _caches(batch)]
        return [tuple(x.flatten(1, 2).transpose(1, 2) for x in pair)]
    dense = []
    for seq, (_, seq_len) in enumerate(plan.lens):
        pages = batch.block_table[seq, : -(-seq_len // page)].long()
        pair = [cache[pages].flatten(0, 1)[:seq_len].transpose(0, 1)[None] for cache in _caches(batch)]
        dense.append((pair[0], pair[1]))
    return dense


def _caches(batch: PagedBatch) -> tuple[torch.Tensor, torch.Tensor]:
    return batch.key_cache, batch.value_cache


def attend(batch: PagedBatch, features: Features, out: torch.Tensor, plan: Plan, dense: Dense) -> None:
    """Attention over dense K and V into `out`."""
    if plan.valid is not None:
        key, value = dense[0]
        num_seqs, kv_heads = key.shape[:2]
        # the query heads of a KV head as rows of one query: no K or V is repeated
        query = batch.query[:num_seqs].unflatten(1, (kv_heads, -1))
        found = F.scaled_dot_product_attention(query, key, value, plan.valid, scale=batch.softmax_scale)
        out[:num_seqs] = found.flatten(1, 2)
        return
    for seq, (begin, (query_len, seq_len)) in enumerate(zip(plan.starts, plan.lens, strict=False)):
        if query_len == 0:
            continue
        rows = slice(begin, begin + query_len)
        if seq_len == 0:
            out[rows] = 0.0
        else:
            out[rows] = _sequence(batch.query[rows], *dense[seq], features, batch.softmax_scale)


def _sequence(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, features: Features, scale: float
) -> torch.Tensor:
    """[query_len, num_query_heads, head_size] of one sequence."""
    query_len, heads, _ = query.shape
    seq_len, kv_heads = key.shape[2], key.shape[1]
    query = query.transpose(0, 1)[None]
    if features.causal and features.sliding_window is None and query_len == seq_len:
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
    else:  # a mask and enable_gqa together would leave only the slow backend
        key, value = (x.repeat_interleave(heads // kv_heads, 1) for x in (key, value))
        mask = _mask(query_len, seq_len, features, query.device)
        found = F.scaled_dot_product_attention(query, key, value, mask, scale=scale)
    return found[0].transpose(0, 1)


def _mask(query_len: int, seq_len: int, features: Features, device: torch.device) -> torch.Tensor:
    """bool [query_len, seq_len], True where a key is visible."""
    row = torch.arange(seq_len - query_len, seq_len, device=device)[:, None]
    key = torch.arange(seq_len, device=device)[None, :]
    seen = key <= row if features.causal else torch.ones(query_len, seq_len, dtype=torch.bool, device=device)
    if features.sliding_window is not None:
        seen = seen & (key > row - features.sliding_window) & (key < row + features.sliding_window)
    return seen


def prepare(batch: PagedBatch, features: Features, config: None, workspace: Plan | None) -> Plan:
    """The host's knowledge of the lengths; the same for every set of values."""
    return workspace or make_plan(batch, features)


@launches("baseline/sdpa", SUPPORTS | ASKS)
def launch(batch, features, out, config, workspace, lse) -> None:
    """Gather, then attend. Allocates. Without a plan the lengths are read from the device, which waits for it.

    Raises UnsupportedFeature with torch's words for a cache of 8 bits: asked with one page, before anything is copied.
    """
    if batch.shape.quantised:
        with bare_files.own_words("baseline/sdpa", batch):
            key, value = (cache[:1].transpose(1, 2) for cache in _caches(batch))
            F.scaled_dot_product_attention(batch.query[:1].transpose(0, 1)[None], key, value, enable_gqa=True)
    plan = workspace or make_plan(batch, features)
    attend(batch, features, out, plan, gather(batch, plan))
