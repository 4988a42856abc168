"""`kv_tile_range` and `visible` describe the same mask, and segments cut a range without loss; exhaustive, small."""

import itertools

import pytest
import torch
import triton
import triton.language as tl

from common.spec import Features
from dsl_triton.features import bundle, row_operands
from dsl_triton.masks import kv_tile_range, segment_range, visible

TILE = 4


@triton.jit
def _range_probe(out_ptr, mask_ptr, first_pos, last_pos, seq_len, f, TILE_SIZE: tl.constexpr, KEYS: tl.constexpr):
    first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(0, first_pos, last_pos, seq_len, f, TILE_SIZE)
    tl.store(out_ptr + 0, first_key)
    tl.store(out_ptr + 1, end_key)
    tl.store(out_ptr + 2, lo)
    tl.store(out_ptr + 3, full_lo)
    tl.store(out_ptr + 4, full_hi)
    tl.store(out_ptr + 5, hi)
    row = tl.arange(0, 4)
    key = tl.arange(0, KEYS)
    r = row_operands(f, tl.cast(0, tl.int32), 0, row, row, row >= 0, first_pos)
    seen = visible(first_pos + row, key, seq_len, f, r)
    tl.store(mask_ptr + row[:, None] * KEYS + key[None, :], seen.to(tl.int32))


@triton.jit
def _segment_probe(out_ptr, segment, lo, full_lo, full_hi, hi, f, NUM_SEGMENTS: tl.constexpr):
    start, full_start, full_stop, stop, used = segment_range(segment, lo, full_lo, full_hi, hi, f, NUM_SEGMENTS)
    tl.store(out_ptr + 0, start)
    tl.store(out_ptr + 1, full_start)
    tl.store(out_ptr + 2, full_stop)
    tl.store(out_ptr + 3, stop)
    tl.store(out_ptr + 4, used)


@pytest.mark.parametrize("window", [None, 1, 3, 4, 9, 40], ids=lambda w: f"window-{w}")
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "non-causal"])
def test_tiles_hold_every_visible_key_and_full_tiles_only_visible_ones(causal: bool, window: int | None) -> None:
    f = bundle(Features(causal=causal, sliding_window=window))
    keys = 32
    for context, rows, beyond in itertools.product((0, 1, 3, 4, 11, 16), (1, 2, 4), (0, 3)):
        seq_len = context + rows + beyond
        out = torch.full((6,), -1, dtype=torch.int32)
        mask = torch.zeros(4, keys, dtype=torch.int32)
        _range_probe[(1,)](out, mask, context, context + rows - 1, seq_len, f, TILE_SIZE=TILE, KEYS=keys)
        first_key, end_key, lo, full_lo, full_hi, hi = out.tolist()
        seen = mask[:rows].bool()
        some = [k for k in range(keys) if bool(seen[:, k].any())]
        assert some == list(range(first_key, end_key))
        assert lo <= full_lo <= full_hi <= hi
        assert lo * TILE <= first_key and end_key <= hi * TILE
        assert bool(seen[:, full_lo * TILE : full_hi * TILE].all())
        whole = [t for t in range(keys // TILE) if bool(seen[:, t * TILE : (t + 1) * TILE].all())]
        assert whole == list(range(full_lo, full_hi)) or not whole, "a full tile would run in the masked loop"


def test_a_sequence_without_keys_has_an_empty_range() -> None:
    out, mask = torch.full((6,), -1, dtype=torch.int32), torch.ones(4, 8, dtype=torch.int32)
    _range_probe[(1,)](out, mask, -4, -1, 0, bundle(Features()), TILE_SIZE=TILE, KEYS=8)
    first_key, end_key, lo, full_lo, full_hi, hi = out.tolist()
    assert (end_key, hi) == (0, 0) and lo == full_lo == full_hi == 0 and first_key == 0
    assert not mask.any()


@pytest.mark.parametrize("num_segments", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("window", [None, 5], ids=["no-window", "window"])
def test_segments_cut_a_range_without_loss_or_overlap(num_segments: int, window: int | None) -> None:
    f = bundle(Features(sliding_window=window))
    for lo, length in itertools.product((0, 2), (0, 1, 2, 6, 7, 16, 33)):
        hi = lo + length
        full_lo, full_hi = (min(lo + 1, hi), max(hi - 1, min(lo + 1, hi))) if window else (0, max(hi - 1, 0))
        got = []
        for segment in range(num_segments):
            out = torch.full((5,), -1, dtype=torch.int32)
            _segment_probe[(1,)](out, segment, lo, full_lo, full_hi, hi, f, NUM_SEGMENTS=num_segments)
            start, full_start, full_stop, stop, used = out.tolist()
            assert start <= full_start <= full_stop <= stop
            assert all(full_lo <= t < full_hi for t in range(full_start, full_stop))
            assert (start < stop) == (segment < used)
            got += range(start, stop)
        assert got == list(range(lo, hi))
