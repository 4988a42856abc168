"""`kv_tile_range` and `visible` agree under every feature that bends the mask; exhaustive, small."""

import itertools

import pytest
import torch
import triton
import triton.language as tl

from common.spec import Features
from dsl_triton.features import bundle, row_operands
from dsl_triton.masks import kv_tile_range, visible

TILE, KEYS, ROWS = 4, 32, 4


@triton.jit
def _probe(out_ptr, mask_ptr, context_len, query_len, seq_len, seq, f, TILE: tl.constexpr, KEYS: tl.constexpr):
    row = tl.arange(0, 4)
    key = tl.arange(0, KEYS)
    seq = tl.cast(seq, tl.int32)
    context_len = tl.cast(context_len, tl.int32)
    r = row_operands(f, seq, 0, row, row, row < query_len, context_len)
    first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
        seq, context_len, context_len + query_len - 1, seq_len, f, TILE
    )
    tl.store(out_ptr + 0, first_key)
    tl.store(out_ptr + 1, end_key)
    tl.store(out_ptr + 2, lo)
    tl.store(out_ptr + 3, full_lo)
    tl.store(out_ptr + 4, full_hi)
    tl.store(out_ptr + 5, hi)
    seen = visible(context_len + row, key, seq_len, f, r)
    tl.store(mask_ptr + row[:, None] * KEYS + key[None, :], seen.to(tl.int32))


def ranged(features: Features, context: int, rows: int, seq_len: int, seq: int = 0) -> tuple[list[int], torch.Tensor]:
    """The six numbers, and what the rows see, bool [rows, KEYS]. Every tile obeys its promise."""
    out, mask = torch.full((6,), -1, dtype=torch.int32), torch.zeros(ROWS, KEYS, dtype=torch.int32)
    _probe[(1,)](out, mask, context, rows, seq_len, seq, bundle(features), TILE=TILE, KEYS=KEYS)
    first_key, end_key, lo, full_lo, full_hi, hi = out.tolist()
    seen = mask[:rows].bool()
    some = [k for k in range(KEYS) if bool(seen[:, k].any())]
    assert some == list(range(first_key, end_key)), "V of a key that nobody sees would be read"
    assert end_key <= seq_len
    assert 0 <= lo <= full_lo <= full_hi <= hi
    assert lo * TILE <= first_key and end_key <= hi * TILE
    assert bool(seen[:, full_lo * TILE : full_hi * TILE].all())
    whole = [t for t in range(KEYS // TILE) if bool(seen[:, t * TILE : (t + 1) * TILE].all())]
    if features.tree_bias is None:
        assert whole == list(range(full_lo, full_hi)) or not whole, "a full tile would run in the masked loop"
    return out.tolist(), seen


POSITIONS = list(itertools.product((0, 1, 3, 4, 11, 16), (1, 2, 4), (0, 3)))


@pytest.mark.parametrize("lookback", [0, 1, 7])
@pytest.mark.parametrize("chunk", [1, 3, 4, 9, 2**31 - 1])
def test_a_chunk_prunes_what_lies_before_it_and_nothing_else(chunk: int, lookback: int) -> None:
    features = Features(chunk=chunk, chunk_lookback=lookback)
    for context, rows, beyond in POSITIONS:
        (first_key, end_key, *_), seen = ranged(features, context, rows, context + rows + beyond)
        q, k = torch.arange(context, context + rows)[:, None], torch.arange(KEYS)
        assert torch.equal(seen, (k <= q) & (q // chunk - k // chunk <= lookback))
        assert (first_key, end_key) == (max(0, (context // chunk - lookback) * chunk), context + rows)


@pytest.mark.parametrize("window", [None, 2], ids=["full", "window"])
def test_spans_open_what_a_mask_hides_and_end_with_the_sequence(window: int | None) -> None:
    spans = torch.tensor([[[0, 0], [2, 9], [10, 40]], [[5, 5], [1, 0], [0, 0]]], dtype=torch.int32)
    features = Features(spans=spans, sliding_window=window)
    for (context, rows, beyond), seq in itertools.product(POSITIONS, (0, 1)):
        seq_len = context + rows + beyond
        _, seen = ranged(features, context, rows, seq_len, seq)
        q, k = torch.arange(context, context + rows)[:, None], torch.arange(KEYS)
        want = (k <= q) & (q - k < (window or KEYS))
        for first, last in spans[seq].tolist():
            want |= (first < last) & (first <= q) & (q <= last) & (first <= k) & (k <= last) & (k < seq_len)
        assert torch.equal(seen, want)


@pytest.mark.parametrize("window", [None, 3], ids=["full", "window"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32])
def test_each_sequence_has_a_flag(dtype: torch.dtype, window: int | None) -> None:
    features = Features(causal_per_sequence=torch.tensor([True, False]).to(dtype), sliding_window=window)
    for (context, rows, beyond), seq in itertools.product(POSITIONS, (0, 1)):
        seq_len = context + rows + beyond
        _, seen = ranged(features, context, rows, seq_len, seq)
        q, k = torch.arange(context, context + rows)[:, None], torch.arange(KEYS)
        want = ((k <= q) if seq == 0 else (k < seq_len)) & (q - k < (window or KEYS)) & (k - q < (window or KEYS))
        assert torch.equal(seen, want)


@pytest.mark.parametrize("size", [1, 4, 7])
def test_no_full_tile_holds_a_key_that_a_tree_may_bias(size: int) -> None:
    for context, rows, _ in POSITIONS:
        (_, _, _, _, full_hi, _), _ = ranged(Features(tree_bias=torch.zeros(size, size)), context, rows, context + rows)
        assert full_hi * TILE <= context


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("keys", [0, 1, 3, 20])
def test_an_encoders_keys_are_all_seen_however_few_they_are(keys: int, rows: int) -> None:
    (first_key, end_key, *_), seen = ranged(Features(causal=False, cross=True), keys - rows, rows, keys)
    assert (first_key, end_key) == (0, keys) and torch.equal(seen, (torch.arange(KEYS) < keys).expand(rows, KEYS))
