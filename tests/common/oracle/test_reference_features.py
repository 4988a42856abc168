"""The reference on every feature, against the definitions written out: one row, head and key at a time, in Python."""

import math

import pytest
import torch

from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.oracle.visibility import Sight
from common.spec import AttentionShape, Features
from common.spec.paged_batch import FP8

SHAPE = AttentionShape(4, 2, 8, 8, torch.float32)
LENS = [(3, 21), (1, 9), (9, 9), (0, 0), (2, 0), (6, 4), (7, 1)]  # the last two begin before their first key
SLOPES = torch.tensor([0.5, 0.25, 0.125, 2.0])
NOWHERE = (0, 0)


def spans(*of_sequences):
    """int32 [num_seqs, 2, 2], padded with zeros."""
    padded = [[*pairs, *[NOWHERE] * (2 - len(pairs))] for pairs in of_sequences]
    return torch.tensor(padded + [[NOWHERE] * 2] * (len(LENS) - len(padded)), dtype=torch.int32)


def tree(size):
    """A chain of `size` tokens with two branches at its end: the last token does not see the one before."""
    bias = torch.linspace(-1, 1, size * size).view(size, size)
    bias[-1, -2] = -math.inf
    return bias


def flags(*values):
    """int32 [num_seqs]: those of the first five, then one of either kind."""
    return torch.tensor([*values, 0, 1], dtype=torch.int32)


FEATURES = {
    "plain": Features(),
    "alibi": Features(alibi_slopes=SLOPES),
    "alibi-sinks": Features(alibi_slopes=SLOPES, sinks=torch.tensor([0.0, 1.0, -1.0, 3.0])),
    "sinks": Features(sinks=torch.tensor([0.0, 1.0, -math.inf, 3.0])),
    "non-causal": Features(False),
    "non-causal-window-sinks": Features(False, 3, sinks=torch.tensor([0.0, 1.0, -math.inf, 3.0])),
    "alibi-non-causal": Features(False, alibi_slopes=SLOPES),
    "alibi-sqrt": Features(alibi_slopes=SLOPES, alibi_sqrt=True),
    "alibi-sqrt-non-causal-softcap": Features(False, softcap=2.0, alibi_slopes=SLOPES, alibi_sqrt=True),
    "chunk": Features(chunk=4),
    "chunk-lookback": Features(chunk=4, chunk_lookback=2),
    "chunk-beyond": Features(chunk=40),
    "spans": Features(spans=spans([(2, 6), (17, 20)], [(3, 8)], [(0, 8)])),
    "spans-window": Features(sliding_window=3, spans=spans([(1, 19)], [(8, 8)], [(2, 4), (5, 7)])),
    "spans-past-the-end": Features(spans=spans([(18, 40)], [(2, 2)])),
    "spans-chunk": Features(chunk=4, spans=spans([(2, 19)], [(1, 8)])),
    "per-sequence": Features(causal_per_sequence=flags(0, 1, 0, 0, 0)),
    "per-sequence-bool-window": Features(sliding_window=4, causal_per_sequence=flags(0, 1, 0, 0, 0).bool()),
    "per-sequence-spans": Features(causal_per_sequence=flags(0, 1, 1, 0, 0), spans=spans([(1, 2)], [], [(3, 6)])),
    "cross": Features(False, cross=True),
    "tree": Features(tree_bias=tree(9)),
    "tree-smaller-than-the-query": Features(tree_bias=tree(2)),
    "tree-alibi-window-softcap": Features(True, 5, 3.0, alibi_slopes=SLOPES, tree_bias=tree(3)),
    "out-scale": Features(out_scale=torch.tensor([0.125])),
}  # fmt: skip


def sees(features, seq, query_len, seq_len, q, k) -> bool:
    """The mask of background's definitions, one pair at a time; q and k are positions."""
    causal = features.causal
    if features.causal_per_sequence is not None:
        causal = bool(features.causal_per_sequence[seq])
    base = k <= q if causal else k < seq_len
    if features.chunk is not None:
        base = base and q // features.chunk - k // features.chunk <= features.chunk_lookback
    if features.sliding_window is not None:
        base = base and abs(q - k) < features.sliding_window
    if features.spans is not None:
        for a, b in features.spans[seq].tolist():
            base = base or (a < b and a <= q <= b and a <= k <= b)
    if features.tree_bias is not None:
        i, j = q - (seq_len - query_len), k - (seq_len - query_len)
        if i < len(features.tree_bias) and 0 <= j < len(features.tree_bias):
            base = base and float(features.tree_bias[i, j]) > -math.inf
    return base


def bias(features, head, query_len, seq_len, q, k) -> float:
    added = 0.0
    if features.alibi_slopes is not None:
        slope = float(features.alibi_slopes[head])
        added += -slope * math.sqrt(max(q - k, 0)) if features.alibi_sqrt else slope * (k - q)
    if features.tree_bias is not None:
        i, j = q - (seq_len - query_len), k - (seq_len - query_len)
        if i < len(features.tree_bias) and 0 <= j < len(features.tree_bias):
            added += float(features.tree_bias[i, j])
    return added


def scale_of(scale, page, slot, head) -> float:
    if scale is None:
        return 1.0
    if scale.dim() == 3:
        return float(scale[page, slot, head])
    return float(scale[head if len(scale) > 1 else 0])


def by_hand(batch, features, lens):
    """out [tokens, heads, value size] and lse [tokens, heads], float64."""
    shape = batch.shape
    out = torch.zeros(sum(q for q, _ in lens), shape.num_query_heads, shape.value_lanes, dtype=torch.float64)
    lse = torch.full(out.shape[:2], -math.inf, dtype=torch.float64)
    token = 0
    scale = batch.softmax_scale * (1.0 if features.query_scale is None else float(features.query_scale))
    for seq, (query_len, seq_len) in enumerate(lens):
        for row in range(query_len):
            q = seq_len - query_len + row
            seen = [k for k in range(seq_len) if sees(features, seq, query_len, seq_len, q, k)]
            for head in range(shape.num_query_heads):
                kv, logits, values = head // shape.queries_per_kv, [], []
                for k in seen:
                    page, slot = int(batch.block_table[seq, k // shape.block_size]), k % shape.block_size
                    key = batch.key_cache[page, slot, kv].double() * scale_of(features.key_scale, page, slot, kv)
                    x = scale * float(batch.query[token, head].double() @ key)
                    x = x if features.softcap is None else features.softcap * math.tanh(x / features.softcap)
                    logits.append(x + bias(features, head, query_len, seq_len, q, k))
                    row_of_v = batch.value_cache[page, slot, kv].double()
                    values.append(row_of_v * scale_of(features.value_scale, page, slot, kv))
                sink = [] if features.sinks is None else [float(features.sinks[head])]
                lse[token, head] = torch.tensor(logits + sink, dtype=torch.float64).logsumexp(0)
                p = (torch.tensor(logits, dtype=torch.float64) - lse[token, head]).exp()
                out[token, head] = p @ torch.stack(values) if seen else 0.0
            token += 1
    return out / (1.0 if features.out_scale is None else float(features.out_scale)), lse


def agree(batch, features, lens):
    expected, (out, lse) = reference(batch, features), by_hand(batch, features, lens)
    live = slice(0, expected.num_tokens)
    torch.testing.assert_close(expected.out[live], out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(expected.lse[live], lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("chunk_bytes", [1 << 30, 4000])
def test_features_are_what_their_definitions_say(name, chunk_bytes):
    batch = make_batch(LENS, SHAPE)
    agree(batch, FEATURES[name], LENS)
    parts, whole = reference(batch, FEATURES[name], chunk_bytes=chunk_bytes), reference(batch, FEATURES[name])
    torch.testing.assert_close(parts.out, whole.out, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert torch.equal(parts.num_visible, whole.num_visible)


def test_values_may_have_another_size():
    lens = [(3, 21), (1, 9)]
    agree(make_batch(lens, AttentionShape(4, 2, 16, 8, torch.float32, 8)), Features(), lens)
    agree(make_batch(lens, AttentionShape(4, 2, 8, 8, torch.float32, 24)), Features(), lens)


def quantised(kv_dtype, form, dtype=torch.bfloat16):
    """A batch over a quantised cache and its scales: one number, one per head, or one per token and head."""
    batch = make_batch(LENS, AttentionShape(4, 2, 8, 8, dtype, None, kv_dtype))
    sizes = {"one": (1,), "heads": (2,), "tokens": tuple(batch.key_cache.shape[:3])}[form]
    generator = torch.Generator().manual_seed(3)
    scales = [torch.rand(sizes, generator=generator) + 0.01 for _ in range(2)]
    return batch, Features(key_scale=scales[0], value_scale=scales[1])


@pytest.mark.parametrize("form", ["one", "heads", "tokens"])
@pytest.mark.parametrize("kv_dtype", [*FP8, torch.int8], ids=str)
def test_stored_elements_are_worth_what_their_scale_says(kv_dtype, form):
    batch, features = quantised(kv_dtype, form)
    agree(batch, features, LENS)


def test_a_quantised_query_has_a_scale_too():
    batch, features = quantised(torch.float8_e4m3fn, "one", torch.float8_e4m3fn)
    agree(batch, Features(key_scale=features.key_scale, query_scale=torch.tensor([0.25])), LENS)


@pytest.mark.parametrize("name", FEATURES)
def test_the_range_of_keys_covers_all_that_are_seen(name):
    features = FEATURES[name]
    for seq, (query_len, seq_len) in enumerate(LENS):
        sight = Sight.of(features, seq, query_len, seq_len)
        if seq_len == 0:
            assert sight.key_range(-query_len, -1) == (0, 0)
            continue
        for first in range(seq_len - query_len, seq_len):
            for last in range(first, seq_len):
                begin, end = sight.key_range(first, last)
                positions = torch.arange(first, last + 1)
                seen = sight.visible(positions, torch.arange(seq_len)).any(0).nonzero().flatten()
                assert not len(seen) or (begin <= int(seen[0]) and int(seen[-1]) < end)
                if sight.exact_range:
                    assert list(range(begin, end)) == seen.tolist()
