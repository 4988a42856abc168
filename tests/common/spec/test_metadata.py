"""Lengths and Q Blocks, each against the obvious loop."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.spec.metadata import (
    BatchStats,
    cumulative_q_blocks,
    find_sequence,
    lens_of,
    num_q_blocks,
    q_block_starts,
    query_start_loc,
    seq_lens,
)

LENS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 100)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=12
)
RAGGED = [(1, 7), (0, 0), (17, 40), (16, 16), (0, 5), (1, 1)]
deterministic = settings(derandomize=True, deadline=None, max_examples=200)


def test_starts_and_lengths():
    assert query_start_loc(RAGGED).tolist() == [0, 1, 1, 18, 34, 34, 35]
    assert seq_lens(RAGGED).tolist() == [7, 0, 40, 16, 5, 1]
    assert query_start_loc(RAGGED).dtype == seq_lens(RAGGED).dtype == torch.int32


def test_an_empty_batch_has_one_start():
    assert query_start_loc([]).tolist() == [0]
    assert seq_lens([]).numel() == 0


@deterministic
@given(LENS)
def test_lengths_survive_the_round_trip(lens):
    assert lens_of(query_start_loc(lens), seq_lens(lens)) == lens


def test_stats():
    stats = BatchStats.of(RAGGED)
    assert stats == BatchStats(6, 35, num_decodes=2, max_query_len=17, max_seq_len=40, total_seq_len=69)
    assert BatchStats.of([]) == BatchStats(0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(("block_q", "wanted"), [(1, [0, 1, 1, 18, 34, 34, 35]), (16, [0, 1, 1, 3, 4, 4, 5])])
def test_cumulative_q_blocks(block_q, wanted):
    assert cumulative_q_blocks(RAGGED, block_q) == wanted


@deterministic
@given(LENS, st.integers(1, 20))
def test_the_bound_on_q_blocks_holds(lens, block_q):
    tokens = sum(query_len for query_len, _ in lens)
    assert cumulative_q_blocks(lens, block_q)[-1] <= num_q_blocks(tokens, len(lens), block_q)


@deterministic
@given(LENS.filter(len), st.integers(1, 20))
def test_every_q_block_finds_its_sequence(lens, block_q):
    """A naive walk over all sequences and their Q Blocks meets each (sequence, block) that the search yields."""
    starts = query_start_loc(lens)
    first = q_block_starts(starts, block_q).tolist()
    for seq, (query_len, _) in enumerate(lens):
        needed = -(-query_len // block_q)
        assert first[seq] + needed <= first[seq + 1]  # never fewer than it needs
        for q_block in range(first[seq], first[seq + 1]):
            assert find_sequence(starts, q_block, block_q) == seq
        assert first[seq + 1] - first[seq] - needed <= 1  # at most one surplus


@deterministic
@given(LENS.filter(len), st.integers(1, 20))
def test_q_blocks_cover_every_token_once(lens, block_q):
    starts = query_start_loc(lens)
    first, begin = q_block_starts(starts, block_q).tolist(), starts.tolist()
    seen = []
    for q_block in range(num_q_blocks(begin[-1], len(lens), block_q)):
        seq = find_sequence(starts, q_block, block_q)
        at = begin[seq] + (q_block - first[seq]) * block_q
        seen += range(at, min(at + block_q, begin[seq + 1]))
    assert seen == list(range(begin[-1]))
