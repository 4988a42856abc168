"""The reference against batches worked by hand, against torch's SDPA in float64, and against itself rearranged."""

import math
from dataclasses import fields, replace

import pytest
import torch

from common.cases.batch import make_batch
from common.oracle.reference import Expected, reference
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features, Layout
from common.spec.precision import Precision

FP32 = AttentionShape(1, 1, 8, 8, torch.float32)
LENS = [(1, 70), (5, 40), (3, 0), (0, 20), (30, 30)]
SHAPE = AttentionShape(6, 2, 32, 16, torch.float16)
FEATURES = {
    "causal": Features(),
    "non-causal": Features(causal=False),
    "window": Features(sliding_window=7),
    "two-sided window": Features(causal=False, sliding_window=7),
    "softcap": Features(softcap=1.5),
    "sinks": Features(sinks=torch.tensor([1.0, -2.0, 3.0, -math.inf, 0.0, 5.0])),
    "all": Features(sliding_window=9, softcap=2.0, sinks=torch.arange(6.0)),
}
every_feature = pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())


def batch_by_hand(query_len: int, logits: list[float], values: list[float], style: str = "nhd"):
    """One sequence of one head: the logit of key j is `logits[j]` for every query, its V `values[j]` in every lane."""
    batch = make_batch([(query_len, len(logits))], FP32, style=style)
    pages = batch.block_table[0].long()
    for j, (logit, value) in enumerate(zip(logits, values, strict=True)):
        row = torch.zeros(8)
        row[3] = logit / batch.softmax_scale
        batch.key_cache[pages[j // 8], j % 8, 0] = row
        batch.value_cache[pages[j // 8], j % 8, 0] = value
    batch.query[:] = 0.0
    batch.query[:, :, 3] = 1.0
    return batch


def weights(*of: float) -> list[float]:
    """Logits whose softmax is proportional to `of`."""
    return [math.log(w) for w in of]


def lane(expected: Expected) -> list[float]:
    assert torch.equal(expected.out, expected.out[..., :1].expand_as(expected.out))
    return expected.out[:, 0, 0].tolist()


def test_one_query_weighs_its_keys():
    expected = reference(batch_by_hand(1, weights(1, 2, 3), [6, 12, 18]), Features())
    assert lane(expected) == pytest.approx([(1 * 6 + 2 * 12 + 3 * 18) / 6])
    assert float(expected.lse) == pytest.approx(math.log(6))
    assert expected.num_visible.tolist() == [3]


def test_sink_takes_its_share_and_no_value():
    expected = reference(batch_by_hand(1, weights(1, 2), [3, 6]), Features(sinks=torch.tensor([math.log(2)])))
    assert lane(expected) == pytest.approx([(3 + 12) / 5])
    assert float(expected.lse) == pytest.approx(math.log(5))


def test_budget_terms_by_hand():
    expected = reference(batch_by_hand(1, weights(1, 3), [-4, 2]), Features())
    first = {name: getattr(expected, name).flatten()[0].item() for name in ("weighted", "weighted_rms", "visible")}
    assert first == pytest.approx({"weighted": 2.5, "weighted_rms": math.sqrt(1 + 2.25), "visible": 6.0})
    assert expected.visible_rms.flatten()[0].item() == pytest.approx(math.sqrt(20))
    assert float(expected.denominator) == pytest.approx(1 + 1 / 3)
    assert float(expected.logit_size) == pytest.approx(math.log(3))


def test_empty_sequences_and_padding():
    expected = reference(make_batch(LENS, SHAPE, pad_tokens=4), FEATURES["sinks"])
    nothing = slice(6, 9)
    assert torch.equal(expected.out[nothing], torch.zeros(3, 6, 32, dtype=torch.float64))
    sinks = FEATURES["sinks"].sinks.double()
    assert torch.equal(expected.lse[nothing], sinks.expand(3, -1))  # e^sink is all there is; of -inf nothing is
    assert torch.equal(expected.denominator[nothing].isinf(), (sinks == -math.inf).expand(3, -1))
    assert expected.num_tokens == 39
    assert bool(expected.out[39:].isnan().all())
    assert bool(expected.out[:39].isfinite().all())


def dense(batch, seq: int, cache: torch.Tensor) -> torch.Tensor:
    """One sequence's K or V, float64 [num_query_heads, seq_len, head_size], slot by slot."""
    seq_len, page = int(batch.seq_lens[seq]), cache.shape[1]
    rows = [cache[int(batch.block_table[seq, j // page]), j % page] for j in range(seq_len)]
    return torch.stack(rows).double().repeat_interleave(batch.shape.queries_per_kv, 1).transpose(0, 1)


def sdpa(batch, features: Features, seq: int) -> torch.Tensor:
    """torch's attention in float64 on dense K and V; the sink is one more key of value 0, its logit a bias."""
    begin, end = batch.query_start_loc[seq : seq + 2].tolist()
    seq_len = int(batch.seq_lens[seq])
    query = batch.query[begin:end].double().transpose(0, 1)
    position = torch.arange(seq_len - (end - begin), seq_len)[:, None]
    key = torch.arange(seq_len)[None]
    bias = torch.zeros(query.shape[0], end - begin, seq_len + 1, dtype=torch.float64)
    hidden = torch.zeros(end - begin, seq_len, dtype=torch.bool)
    if features.causal:
        hidden |= key > position
    if features.sliding_window:
        hidden |= (position - key).abs() >= features.sliding_window
    bias[..., :-1].masked_fill_(hidden, -math.inf)
    bias[..., -1] = -math.inf if features.sinks is None else features.sinks.double()[:, None]
    empty = torch.zeros(query.shape[0], 1, query.shape[2], dtype=torch.float64)
    k = torch.cat([dense(batch, seq, batch.key_cache), empty], 1)
    v = torch.cat([dense(batch, seq, batch.value_cache), empty], 1)
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(query, k, v, attn_mask=bias, scale=batch.softmax_scale).transpose(0, 1)


@pytest.mark.parametrize("style", ["nhd", "hnd", "stacked", "interleaved"])
@pytest.mark.parametrize("name", [name for name, f in FEATURES.items() if f.softcap is None])
def test_agrees_with_sdpa_in_float64(name, style):
    batch = make_batch(LENS, SHAPE, style=style)
    expected = reference(batch, FEATURES[name])
    for seq in (0, 1, 4):
        begin, end = batch.query_start_loc[seq : seq + 2].tolist()
        torch.testing.assert_close(expected.out[begin:end], sdpa(batch, FEATURES[name], seq), rtol=1e-12, atol=1e-13)


def assert_same(a: Expected, b: Expected) -> None:
    for field in fields(Expected):
        if field.name not in ("num_tokens", "unsaid"):
            mine, other = getattr(a, field.name), getattr(b, field.name)
            torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-13, equal_nan=True, msg=field.name)


@every_feature
@pytest.mark.parametrize("chunk_bytes", [1, 20_000])
def test_chunks_do_not_matter(features, chunk_bytes):
    batch = make_batch(LENS, SHAPE, pad_tokens=2)
    assert_same(reference(batch, features), reference(batch, features, chunk_bytes=chunk_bytes))


@pytest.mark.parametrize("cache", ["key_cache", "value_cache"])
def test_a_nan_reaches_the_rows_that_see_it_and_no_other(cache):
    batch = make_batch([(20, 20), (3, 30)], SHAPE)
    getattr(batch, cache)[batch.block_table[0, 0].long(), 11] = math.nan
    rows = reference(batch, Features(sliding_window=4)).out.isnan().flatten(1).any(1).nonzero().flatten()
    assert rows.tolist() == [11, 12, 13, 14]


def test_an_x_packed_cache_of_the_same_values_gives_the_same_result():
    paged = make_batch(LENS, SHAPE)
    key = paged.key_cache.unflatten(-1, (-1, 8)).permute(0, 2, 3, 1, 4).contiguous()
    value = paged.value_cache.permute(0, 2, 3, 1).contiguous()
    packed = paged.replace(key_cache=key, value_cache=value, layout=Layout.X_PACKED)
    one, other = reference(paged, FEATURES["all"]), reference(packed, FEATURES["all"])
    for field in fields(Expected):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert a == b if field.name in ("num_tokens", "unsaid") else torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0))


def test_what_a_bad_value_owes_and_where_nothing_is_said():
    """V of one key in a lane of KV head 0; the fourth of five rows gives it almost no weight, the others do not see
    it or do."""
    batch = make_batch([(5, 30), (1, 9)], replace(SHAPE, dtype=torch.float32))
    group = SHAPE.queries_per_kv
    page, slot = int(batch.block_table[0, 27 // SHAPE.block_size]), 27 % SHAPE.block_size
    batch.value_cache[page, slot, 0, 3] = math.inf
    key = batch.key_cache[page, slot, 0]
    batch.query[3, :group] = -40.0 * key / key.norm() / batch.softmax_scale
    expected = reference(batch, Features())
    lane, unsaid = expected.out[:5, :group, 3], expected.unsaid[:5, :group, 3]
    assert lane.isnan().all(1).tolist() == [False, False, True, False, True]
    assert unsaid.all(1).tolist() == [True, True, False, True, False]
    assert not expected.unsaid[:, group:].any() and not expected.unsaid[5:].any()
    assert int(expected.unsaid.sum()) == 3 * group and int(expected.out.isnan().sum()) == 2 * group
    for value in (math.nan, 0.5):
        out = expected.out.float()
        out[0, 0, 3] = value
        assert check(out, None, batch, Features(), Precision(), expected).ok == (value != value)
