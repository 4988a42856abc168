"""Lengths, and the bound on Q Blocks."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.spec.metadata import (
    BatchStats,
    lens_of,
    num_q_blocks,
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
    assert stats == BatchStats(
        6,
        35,
        num_decodes=2,
        max_query_len=17,
        max_seq_len=40,
        total_seq_len=69,
        prompt_seq_len=sum(seq for query, seq in RAGGED if query != 1),
    )
    assert BatchStats.of([]) == BatchStats(0, 0, 0, 0, 0, 0, 0)


@deterministic
@given(LENS, st.integers(1, 20))
def test_the_bound_on_q_blocks_holds(lens, block_q):
    tokens = sum(query_len for query_len, _ in lens)
    needed = sum(-(-query_len // block_q) for query_len, _ in lens)
    assert needed <= num_q_blocks(tokens, len(lens), block_q)
