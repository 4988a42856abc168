"""`kv_tile_range` and `visible` agree under every feature that bends the mask; a launch per feature set."""

import itertools

import helion.language as hl
import pytest
import torch

from common.spec import Features
from dsl_helion.binding import kernel
from dsl_helion.features import bundle, row_operands
from dsl_helion.masks import kv_tile_range, visible

TILE, KEYS, ROWS = 4, 32, 4
SPANS = torch.tensor([[[0, 0], [2, 9], [10, 40]], [[5, 5], [1, 0], [0, 0]]], dtype=torch.int32)
FLAGS = torch.tensor([1, 0], dtype=torch.int32)


def _probe(cases: torch.Tensor, ranges: torch.Tensor, mask: torch.Tensor, f: dict) -> None:
    for i in hl.grid(cases.size(0)):
        context_len = cases[i, 0]
        query_len = cases[i, 1]
        seq_len = cases[i, 2]
        rows = hl.arange(4)
        keys = hl.arange(32)
        r = row_operands(f, cases[i, 3], 0, rows, rows, rows < query_len, context_len)
        first_key, end_key, lo, full_lo, full_hi, hi = kv_tile_range(
            cases[i, 3], context_len, context_len + query_len - 1, seq_len, f, 4
        )
        ranges[i, 0] = first_key
        ranges[i, 1] = end_key
        ranges[i, 2] = lo
        ranges[i, 3] = full_lo
        ranges[i, 4] = full_hi
        ranges[i, 5] = hi
        seen = visible(context_len + rows, keys, seq_len, f, r)
        hl.store(mask, [i, rows[:, None], keys[None, :]], seen.to(torch.int32))


probe = kernel(_probe)


def probed(cases: list[tuple[int, int, int, int]], features: Features) -> list[tuple[list[int], torch.Tensor]]:
    """The six numbers of each case and what its rows see, bool [rows, KEYS]; every tile obeys its promise."""
    table, count = torch.tensor(cases, dtype=torch.int32), len(cases)
    ranges = torch.full((count, 6), -1, dtype=torch.int32)
    mask = torch.zeros(count, ROWS, KEYS, dtype=torch.int32)
    args = (table, ranges, mask, bundle(features))
    bound = probe.bind(args)
    bound.compile_config(bound.config_spec.default_config())(*args)
    found = []
    for (_, rows, seq_len, _), numbers, seen in zip(cases, ranges.tolist(), mask.bool(), strict=True):
        first_key, end_key, lo, full_lo, full_hi, hi = numbers
        seen = seen[:rows]
        keys = [k for k in range(KEYS) if bool(seen[:, k].any())]
        assert keys == list(range(first_key, end_key)), "V of a key that nobody sees would be read"
        assert end_key <= seq_len
        assert 0 <= lo <= full_lo <= full_hi <= hi and lo * TILE <= first_key and end_key <= hi * TILE
        assert bool(seen[:, full_lo * TILE : full_hi * TILE].all())
        whole = [t for t in range(KEYS // TILE) if bool(seen[:, t * TILE : (t + 1) * TILE].all())]
        if features.tree_bias is None:
            assert whole == list(range(full_lo, full_hi)) or not whole, "a full tile would run in the masked loop"
        found.append((numbers, seen))
    return found


CASES = [
    (context, rows, context + rows + beyond, seq)
    for context, rows, beyond, seq in itertools.product((0, 1, 4, 11, 16), (1, 4), (0, 3), (0, 1))
]


def judge(features: Features) -> None:
    window = features.sliding_window or KEYS
    for (context, rows, seq_len, seq), (_, seen) in zip(CASES, probed(CASES, features), strict=True):
        q, k = torch.arange(context, context + rows)[:, None], torch.arange(KEYS)
        causal = features.causal_per_sequence is None or bool(features.causal_per_sequence[seq])
        want = ((k <= q) if causal else (k < seq_len)) & (q - k < window) & (k - q < window)
        for first, last in [] if features.spans is None else features.spans[seq].tolist():
            want |= (first < last) & (first <= q) & (q <= last) & (first <= k) & (k <= last) & (k < seq_len)
        assert torch.equal(seen, want), (context, rows, seq_len, seq)


@pytest.mark.parametrize("window", [None, 2], ids=["full", "window"])
def test_spans_open_what_a_mask_hides_and_end_with_the_sequence(window: int | None) -> None:
    judge(Features(spans=SPANS, sliding_window=window))


@pytest.mark.parametrize("window", [None, 3], ids=["full", "window"])
def test_each_sequence_has_a_flag(window: int | None) -> None:
    judge(Features(causal_per_sequence=FLAGS if window else FLAGS.bool(), sliding_window=window))


def test_no_full_tile_holds_a_key_that_a_tree_may_bias() -> None:
    cases = [(context, rows, context + rows, 0) for context, rows, _, _ in CASES]
    for (context, *_), ((*_, full_hi, _), _) in zip(
        cases, probed(cases, Features(tree_bias=torch.zeros(4, 4))), strict=True
    ):
        assert full_hi * TILE <= context


def test_an_encoders_keys_are_all_seen_however_few_they_are() -> None:
    cases = [(keys - rows, rows, keys, 0) for keys, rows in itertools.product((0, 1, 3, 20), (1, 4))]
    for (_, rows, keys, _), (numbers, seen) in zip(
        cases, probed(cases, Features(causal=False, cross=True)), strict=True
    ):
        assert numbers[:2] == [0, keys] and torch.equal(seen, (torch.arange(KEYS) < keys).expand(rows, KEYS))
