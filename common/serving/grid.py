"""The host integers that choices are made from, and the grid of few points by which a capacity is compiled ahead.

A choice follows from exact counts of sequences, tokens and decodes (`decided_by`): rounded up, 11 sequences of 8 KV
heads and 4 tokens lose a segment of three and with it half of their speed. Keys, which grow in every step, are rounded
up to `KEYS`, steps of 1.19, and those of all sequences together to eighths of as many as the longest: a choice and all
that is kept of a call outlive a step. The grid has powers of two and one and a half times those: all of its points that
a capacity can reach are asked and compiled before the first request.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Iterator

from common.spec import AttentionShape
from common.spec.metadata import BatchStats, cdiv, power_of_two

TILE = 64  # keys of a decode's smallest tile on most GPUs; with a tile less than there are one segment takes two
# 1, 2, 3, 4, 6, 8, 12, 16, 24 ...: powers of two and one and a half times
GRID = tuple(sorted({1 << i for i in range(32)} | {3 << i for i in range(30)}))
# four a doubling: 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16 ...
KEYS = tuple(sorted(set(GRID) | {5 << i for i in range(29)} | {7 << i for i in range(29)}))
EIGHTHS = 8  # of the longest sequence's keys, in which a choice is told how many the mean one has


def few_keys(n: int) -> int:
    """The smallest of KEYS that is at least n."""
    return KEYS[bisect_left(KEYS, n)]


def eighths(num_seqs: int, keys: int, total_seq_len: int) -> int:
    """1 to 8: how many eighths of `keys` the mean sequence has, rounded up."""
    found = -(-EIGHTHS * total_seq_len // (num_seqs * keys or 1))  # no cdiv, min and max: 0.3 us of every call
    return EIGHTHS if found > EIGHTHS else 1 if found < 1 else found


def in_all(num_seqs: int, keys: int, of_eight: int) -> int:
    """Keys of all sequences together, of so many eighths; down, so that as many eighths follow from it."""
    return max(num_seqs * keys * of_eight // EIGHTHS, 1)


def decided_by(stats: BatchStats) -> BatchStats:
    """What a choice is made from: counts as they are, keys on KEYS, all keys together in eighths of as many as the
    longest has and at least as many as query tokens; as many sequences as tokens where there are none."""
    seqs, longest = max(stats.num_seqs, 1), max(stats.max_query_len, 1)
    keys = few_keys(max(stats.max_seq_len, longest))
    total = in_all(seqs, keys, eighths(seqs, keys, max(stats.total_seq_len, stats.num_tokens)))
    decodes = seqs if longest == 1 else min(stats.num_decodes, seqs)
    return BatchStats(seqs, max(stats.num_tokens, 1), decodes, longest, keys, total)


def rounded(n: int) -> int:
    """The smallest of GRID that is at least n."""
    return GRID[bisect_left(GRID, n)]


def on_grid(num_seqs: int, num_decodes: int, max_query_len: int, max_seq_len: int) -> BatchStats:
    """Stats rounded up to the grid that trees are asked on.

    Decodes are a power of two of them, or all but one; none only where there is none: a single one over a long context
    is what the launch of short queries waits for. Tokens and keys follow from the four: every sequence that is no
    decode as long as the longest.
    """
    seqs, longest = rounded(num_seqs), power_of_two(max_query_len)
    decodes = seqs if longest <= 1 else min(power_of_two(num_decodes) if num_decodes > 0 else 0, seqs - 1)
    tokens, keys = decodes + (seqs - decodes) * longest, max(rounded(max_seq_len), longest)
    return BatchStats(seqs, tokens, decodes, longest, keys, seqs * keys)


def few_rows(shape: AttentionShape, stats: BatchStats) -> bool:
    """Do all query tokens of a sequence fit into one Q Block of 16 rows (or into one per token, above that ratio)?"""
    return stats.max_query_len * shape.queries_per_kv <= max(16, shape.queries_per_kv)


def seen(stats: BatchStats, sees: int) -> BatchStats:
    """Stats with no more keys than the query tokens of a sequence see, each at most `sees` (`Features.sees`), on the
    grid.

    Segments, runs and reductions are for keys that programs walk: 128 decodes over 8192 keys with a window of 1024 are
    chosen for as over 1536, 127 us for 143 (compare.static.estimate). So are copies, and decodes beside prompts: two of
    159 tokens over 44,651 keys with that window took an H200 40 us in segments of what nobody sees, 32 in one launch.
    """
    most = sees + stats.max_query_len - 1 + TILE - 1  # they begin inside a tile
    if most >= stats.max_seq_len:
        return stats
    beyond = few_keys(few_keys(stats.max_query_len) + 1)  # so that who has a context is told from who has none
    keys = min(stats.max_seq_len, max(rounded(most), beyond))
    return dataclasses.replace(stats, max_seq_len=keys, total_seq_len=min(stats.total_seq_len, stats.num_seqs * keys))


def hinted_stats(
    num_seqs: int,
    num_tokens: int,
    most_keys: int,
    max_query_len: int | None,
    max_seq_len: int | None,
    num_decodes: int | None,
    total_seq_len: int | None = None,
) -> BatchStats:
    """Stats from shapes and hints, keys on KEYS; a hint that shapes refute is corrected, None is filled in from shapes.

    most_keys: what a row of the block table can hold. The longest query has at least the mean; of the others as many
    are decodes as the token count allows. Every sequence is as long as the longest where nobody says what all have
    together (`hinted_eighths`). A hint is never trusted with more than time.
    """
    told = hinted_eighths(num_seqs, max_query_len, max_seq_len, total_seq_len)
    mean = cdiv(num_tokens, num_seqs) if num_seqs else 0
    longest = num_tokens if max_query_len is None else max_query_len
    if max_query_len is None and num_tokens <= num_seqs:
        longest = 1
    longest = max(1, mean, min(longest, num_tokens))
    keys = most_keys if max_seq_len is None else max(1, min(max_seq_len, most_keys))
    if num_decodes is None:
        prompts = cdiv(max(num_tokens - num_seqs, 0), longest - 1) if longest > 1 else 0
        num_decodes = num_seqs - prompts
    decodes = max(0, min(num_decodes, num_seqs))
    keys = few_keys(max(keys, longest))
    total = in_all(max(num_seqs, 1), keys, told or EIGHTHS)
    return decided_by(BatchStats(num_seqs, num_tokens, decodes, longest, keys, total))


def hinted_eighths(
    num_seqs: int, max_query_len: int | None, max_seq_len: int | None, total_seq_len: int | None
) -> int | None:
    """All that the hint total_seq_len tells a choice: eighths of the keys that max_seq_len says, None where one of the
    two is unknown. What is kept of a call is found by it, so that a step more, which adds to the total, finds it too.
    """
    if total_seq_len is None:
        return None
    if max_seq_len is None:
        return None
    longest = max_seq_len if max_query_len is None or max_query_len < max_seq_len else max_query_len
    return eighths(num_seqs, KEYS[bisect_left(KEYS, longest, 0, len(KEYS) - 1)], total_seq_len)


def reachable_stats(max_tokens: int, max_seqs: int, max_seq_len: int) -> Iterator[BatchStats]:
    """Every point of the grid on which `hinted_stats` of a batch of this capacity can lie."""
    for seqs in _grid(max_seqs, rounded):
        for longest in _grid(max_tokens, power_of_two):
            for decodes in (0, *_grid(seqs - 1, power_of_two)) if longest > 1 and seqs > 1 else (0,):
                for keys in _grid(max_seq_len, rounded):
                    yield on_grid(seqs, decodes, longest, keys)


def _grid(most: int, step: Callable[[int], int]) -> Iterator[int]:
    """1 .. step(most) on the grid."""
    at = 1
    while True:
        yield at
        if at >= most:
            return
        at = step(at + 1)


INVARIANT = on_grid(8, 7, 2048, 8192)  # what a batch-invariant choice is made for, whatever the batch
