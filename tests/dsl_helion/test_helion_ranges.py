"""`kv_tile_range` and `visible` describe the same mask; exhaustive, small, a launch per feature set."""

import itertools

import helion.language as hl
import pytest
import torch

from common.spec import Features
from dsl_helion.binding import kernel
from dsl_helion.features import bundle, row_operands
from dsl_helion.masks import kv_tile_range, visible

TILE, ROWS, KEYS = 4, 4, 32
CASES = [
    (context, context + rows - 1, context + rows + beyond)
    for context, rows, beyond in itertools.product((0, 1, 3, 4, 11, 16), (1, 2, 4), (0, 3))
] + [(-4, -1, 0)]


def _probe(cases: torch.Tensor, ranges: torch.Tensor, mask: torch.Tensor, f: dict) -> None:
    for i in hl.grid(cases.size(0)):
        first_pos = cases[i, 0]
        seq_len = cases[i, 2]
        first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(i, first_pos, cases[i, 1], seq_len, f, 4)
        ranges[i, 0] = first_key
        ranges[i, 1] = end_key
        ranges[i, 2] = lo
        ranges[i, 3] = full_lo
        ranges[i, 4] = full_hi
        ranges[i, 5] = hi
        rows = hl.arange(4)
        keys = hl.arange(32)
        seq = hl.full([], 0, dtype=torch.int32)
        r = row_operands(f, seq, 0, rows, rows, rows >= 0, first_pos)
        seen = visible(first_pos + rows, keys, seq_len, f, r)
        hl.store(mask, [i, rows[:, None], keys[None, :]], seen.to(torch.int32))


probe = kernel(_probe)


WINDOWS = [
    Features(causal=causal, sliding_window=window) for causal in (True, False) for window in (None, 1, 3, 4, 9, 40)
]
CHUNKS = [Features(chunk=chunk, chunk_lookback=back) for chunk, back in ((1, 0), (4, 0), (5, 0), (3, 2))]


@pytest.mark.parametrize(
    "features",
    WINDOWS + CHUNKS,
    ids=lambda f: f"{f.causal}-window-{f.sliding_window}-chunk-{f.chunk}-{f.chunk_lookback}",
)
def test_tiles_hold_every_visible_key_and_full_tiles_only_visible_ones(features: Features) -> None:
    cases = torch.tensor(CASES, dtype=torch.int32)
    ranges = torch.full((len(CASES), 6), -1, dtype=torch.int32)
    mask = torch.zeros(len(CASES), ROWS, KEYS, dtype=torch.int32)
    args = (cases, ranges, mask, bundle(features))
    bound = probe.bind(args)
    bound.compile_config(bound.config_spec.default_config())(*args)
    for (first, last, seq_len), found, seen in zip(CASES, ranges.tolist(), mask.bool(), strict=True):
        first_key, end_key, lo, full_lo, full_hi, hi = found
        seen = seen[: last - first + 1]
        some = [k for k in range(KEYS) if bool(seen[:, k].any())]
        assert some == list(range(first_key, end_key)), (first, last, seq_len)
        assert lo <= full_lo <= full_hi <= hi
        assert not some or (lo * TILE <= first_key and end_key <= hi * TILE)
        assert bool(seen[:, full_lo * TILE : full_hi * TILE].all())
        whole = [t for t in range(KEYS // TILE) if bool(seen[:, t * TILE : (t + 1) * TILE].all())]
        assert whole == list(range(full_lo, full_hi)) or not whole, "a full tile would run in the masked loop"
