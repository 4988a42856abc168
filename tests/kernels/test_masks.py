"""`kv_tile_range` and `visible` describe the same mask, under every feature that bends it, and segments cut a range
without loss; exhaustive, small."""

import itertools

import helion.language as hl
import pytest
import torch
import triton
import triton.language as tl

import dsl_helion.binding
import dsl_helion.features
import dsl_helion.masks
import dsl_triton.features
import dsl_triton.masks
from common.spec import Features
from dsls import in_triton, slow_in_helion

TILE, KEYS, ROWS = 4, 32, 4
POSITIONS = [
    (context, rows, context + rows + beyond)
    for context, rows, beyond in itertools.product((-9, -5, -3, -1, 0, 1, 3, 4, 11, 16), (1, 2, 4), (0, 3, 8))
    if context + rows + beyond >= 0  # keys of the sequence; from a negative context on, fewer than queries
]
EMPTY = (-4, 4, 0)  # a sequence of four tokens and no key
Ranges = tuple[int, int, int, int, int, int]  # first_key, end_key, lo, full_lo, full_hi, hi

triton_row_operands, triton_range = dsl_triton.features.row_operands, dsl_triton.masks.kv_tile_range
triton_visible, segment_range = dsl_triton.masks.visible, dsl_triton.masks.segment_range
helion_row_operands, helion_range = dsl_helion.features.row_operands, dsl_helion.masks.kv_tile_range
helion_visible = dsl_helion.masks.visible


@triton.jit
def _triton_probe(out_ptr, mask_ptr, context_len, query_len, seq_len, seq, f, TILE: tl.constexpr, KEYS: tl.constexpr):
    row = tl.arange(0, 4)
    key = tl.arange(0, KEYS)
    seq = tl.cast(seq, tl.int32)
    context_len = tl.cast(context_len, tl.int32)
    r = triton_row_operands(f, seq, 0, row, row, row < query_len, context_len)
    first_key, end_key, lo, full_lo, full_hi, hi = triton_range(
        seq, context_len, context_len + query_len - 1, seq_len, f, TILE
    )
    tl.store(out_ptr + 0, first_key)
    tl.store(out_ptr + 1, end_key)
    tl.store(out_ptr + 2, lo)
    tl.store(out_ptr + 3, full_lo)
    tl.store(out_ptr + 4, full_hi)
    tl.store(out_ptr + 5, hi)
    seen = triton_visible(context_len + row, key, seq_len, f, r)
    tl.store(mask_ptr + row[:, None] * KEYS + key[None, :], seen.to(tl.int32))


def _helion_probe(cases: torch.Tensor, ranges: torch.Tensor, mask: torch.Tensor, f: dict) -> None:
    for i in hl.grid(cases.size(0)):
        context_len = cases[i, 0]
        query_len = cases[i, 1]
        seq_len = cases[i, 2]
        rows = hl.arange(4)
        keys = hl.arange(32)
        r = helion_row_operands(f, cases[i, 3], 0, rows, rows, rows < query_len, context_len)
        first_key, end_key, lo, full_lo, full_hi, hi = helion_range(
            cases[i, 3], context_len, context_len + query_len - 1, seq_len, f, 4
        )
        ranges[i, 0] = first_key
        ranges[i, 1] = end_key
        ranges[i, 2] = lo
        ranges[i, 3] = full_lo
        ranges[i, 4] = full_hi
        ranges[i, 5] = hi
        seen = helion_visible(context_len + rows, keys, seq_len, f, r)
        hl.store(mask, [i, rows[:, None], keys[None, :]], seen.to(torch.int32))


helion_probe = dsl_helion.binding.kernel(_helion_probe)


def probed(
    dsl, features: Features, positions: list[tuple[int, int, int]], seq: int = 0
) -> list[tuple[Ranges, torch.Tensor]]:
    """The six numbers of each (context, rows, keys of the sequence) and what its rows see, bool [rows, KEYS]. Every
    tile obeys its promise."""
    cases = torch.tensor([(*position, seq) for position in positions], dtype=torch.int32)
    ranges = torch.full((len(cases), 6), -1, dtype=torch.int32)
    mask = torch.zeros(len(cases), ROWS, KEYS, dtype=torch.int32)
    f = dsl.module("features").bundle(features)
    if dsl.name == "triton":
        for case, numbers, seen in zip(cases.tolist(), ranges, mask, strict=True):
            _triton_probe[(1,)](numbers, seen, *case, f, TILE=TILE, KEYS=KEYS)
    else:
        bound = helion_probe.bind((cases, ranges, mask, f))
        bound.compile_config(bound.config_spec.default_config())(cases, ranges, mask, f)
    found = [
        (tuple(numbers), seen[:rows])
        for (_, rows, _), numbers, seen in zip(positions, ranges.tolist(), mask.bool(), strict=True)
    ]
    for (context, rows, seq_len), (numbers, seen) in zip(positions, found, strict=True):
        obeys(numbers, seen, seq_len, features.tree_bias is not None, (context, rows, seq_len, seq))
    return found


def obeys(numbers: Ranges, seen: torch.Tensor, seq_len: int, biased: bool, case: tuple[int, ...]) -> None:
    first_key, end_key, lo, full_lo, full_hi, hi = numbers
    some = [k for k in range(KEYS) if bool(seen[:, k].any())]
    assert some == list(range(first_key, end_key)), f"{case}: V of a key that nobody sees would be read"
    assert end_key <= seq_len, case
    assert 0 <= lo <= full_lo <= full_hi <= hi, case
    assert lo * TILE <= first_key and end_key <= hi * TILE, case
    assert bool(seen[:, full_lo * TILE : full_hi * TILE].all()), case
    whole = [t for t in range(KEYS // TILE) if bool(seen[:, t * TILE : (t + 1) * TILE].all())]
    if not biased:
        assert whole == list(range(full_lo, full_hi)) or not whole, f"{case}: a full tile would run in the masked loop"


def by_definition(features: Features, context: int, rows: int, seq_len: int, seq: int) -> torch.Tensor:
    q, k = torch.arange(context, context + rows)[:, None], torch.arange(KEYS)
    of_sequences, window = features.causal_per_sequence, features.sliding_window or KEYS
    causal = features.causal if of_sequences is None else bool(of_sequences[seq])
    seen = ((k <= q) if causal else (k < seq_len)) & (q - k < window) & (k - q < window)
    if features.chunk is not None:
        seen &= q // features.chunk - k // features.chunk <= features.chunk_lookback
    for first, last in [] if features.spans is None else features.spans[seq].tolist():
        seen |= (first < last) & (first <= q) & (q <= last) & (first <= k) & (k <= last) & (k < seq_len)
    return seen


def judge(dsl, features: Features, seqs: tuple[int, ...] = (0,)) -> list[tuple[Ranges, torch.Tensor]]:
    """What is seen is the definition's, of every position in each of the sequences."""
    every = []
    for seq in seqs:
        every += (found := probed(dsl, features, POSITIONS, seq))
        for position, (_, seen) in zip(POSITIONS, found, strict=True):
            assert torch.equal(seen, by_definition(features, *position, seq)), (*position, seq)
    return every


@pytest.mark.parametrize(
    ("causal", "window"),
    [*((True, window) for window in (None, 1, 3, 4, 9, 40)), (False, None), (False, 3), (False, 9)],
)
def test_tiles_hold_every_visible_key_and_full_tiles_only_visible_ones(dsl, causal: bool, window: int | None) -> None:
    features = Features(causal=causal, sliding_window=window)
    judge(dsl, features)
    probed(dsl, features, [EMPTY])


def test_a_sequence_without_keys_has_an_empty_range(dsl) -> None:
    ((numbers, seen),) = probed(dsl, Features(), [EMPTY])
    assert numbers == (0, 0, 0, 0, 0, 0) and not seen.any()


CHUNKS = [*itertools.product((1, 4, 2**31 - 1), (0, 1)), (9, 7), (5, 0), (3, 2)]


@pytest.mark.parametrize(("chunk", "lookback"), CHUNKS)
def test_a_chunk_prunes_what_lies_before_it_and_nothing_else(dsl, chunk: int, lookback: int) -> None:
    found = judge(dsl, Features(chunk=chunk, chunk_lookback=lookback))
    for (context, rows, _), ((first_key, end_key, *_), _) in zip(POSITIONS, found, strict=True):
        assert (first_key, end_key) == (max(0, (context // chunk - lookback) * chunk), max(0, context + rows))


@pytest.mark.parametrize("window", [slow_in_helion(None), 2], ids=["full", "window"])
def test_spans_open_what_a_mask_hides_and_end_with_the_sequence(dsl, window: int | None) -> None:
    endless = [[0, 0], [3, 2**31 - 1], [1, 1]]
    spans = torch.tensor([[[0, 0], [2, 9], [10, 40]], [[5, 5], [1, 0], [0, 0]], endless], dtype=torch.int32)
    judge(dsl, Features(spans=spans, sliding_window=window), (0, 1, 2))


@pytest.mark.parametrize(
    ("dtype", "window"),
    [(torch.bool, None), *map(slow_in_helion, [(torch.bool, 3), (torch.int32, None), (torch.int32, 3)])],
    ids=str,
)
def test_each_sequence_has_a_flag(dsl, dtype: torch.dtype, window: int | None) -> None:
    flags = torch.tensor([True, False]).to(dtype)
    judge(dsl, Features(causal_per_sequence=flags, sliding_window=window), (0, 1))


@pytest.mark.parametrize("size", [1, 4, 7])
def test_no_full_tile_holds_a_key_that_a_tree_may_bias(dsl, size: int) -> None:
    positions = [(context, rows, context + rows) for context, rows, _ in POSITIONS if context + rows >= 0]
    found = probed(dsl, Features(tree_bias=torch.zeros(size, size)), positions)
    for (context, _, _), ((_, _, _, _, full_hi, _), _) in zip(positions, found, strict=True):
        assert full_hi * TILE <= max(0, context)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("keys", [0, 1, 3, 20])
def test_an_encoders_keys_are_all_seen_however_few_they_are(dsl, keys: int, rows: int) -> None:
    ((numbers, seen),) = probed(dsl, Features(causal=False, cross=True), [(keys - rows, rows, keys)])
    assert numbers[:2] == (0, keys) and torch.equal(seen, (torch.arange(KEYS) < keys).expand(rows, KEYS))


@triton.jit
def _segment_probe(out_ptr, segment, lo, full_lo, full_hi, hi, f, NUM_SEGMENTS: tl.constexpr):
    start, full_start, full_stop, stop, used = segment_range(segment, lo, full_lo, full_hi, hi, f, NUM_SEGMENTS)
    tl.store(out_ptr + 0, start)
    tl.store(out_ptr + 1, full_start)
    tl.store(out_ptr + 2, full_stop)
    tl.store(out_ptr + 3, stop)
    tl.store(out_ptr + 4, used)


@in_triton
@pytest.mark.parametrize("num_segments", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("window", [None, 5], ids=["no-window", "window"])
def test_segments_cut_a_range_without_loss_or_overlap(dsl, num_segments: int, window: int | None) -> None:
    f = dsl.module("features").bundle(Features(sliding_window=window))
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
