"""The host integers that choices depend on, and the grid of points by which all choices of a capacity are compiled
ahead.

A choice depends on exact counts of sequences, tokens and decodes (`decided_by`): rounding them up costs segments and
with them speed. Keys grow in every step, so they are rounded up to `KEYS`, steps of 1.19, and the keys of all sequences
to eighths of num_seqs * longest: a choice, and all that is kept of a call, then outlives a step. The grid has powers of
two; all of its points within a capacity are compiled before the first request.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator

from common.spec import AttentionShape
from common.spec.metadata import SHORT_QUERY, BatchStats, cdiv, power_of_two

TILE = 64  # keys of a decode's smallest tile on most GPUs
# 1, 2, 3, 4, 6, 8, 12, 16, 24 ...: powers of two, and 1.5 times those
GRID = tuple(sorted({1 << i for i in range(32)} | {3 << i for i in range(30)}))
# four steps a doubling: 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16 ...
KEYS = tuple(sorted(set(GRID) | {5 << i for i in range(29)} | {7 << i for i in range(29)}))
EIGHTHS = 8  # resolution of mean length over longest length


def few_keys(n: int) -> int:
    """The smallest of KEYS that is at least n."""
    return KEYS[bisect_left(KEYS, n)]


def eighths(num_seqs: int, keys: int, total_seq_len: int) -> int:
    """1 to 8: the mean sequence's keys in eighths of `keys`, rounded up."""
    found = -(-EIGHTHS * total_seq_len // (num_seqs * keys or 1))  # no cdiv, min and max: 0.3 us of every call
    return EIGHTHS if found > EIGHTHS else 1 if found < 1 else found


def in_all(num_seqs: int, keys: int, of_eight: int) -> int:
    """Keys of all sequences, when the mean has so many eighths; rounded down, so that `eighths` gives the same number
    back."""
    return max(num_seqs * keys * of_eight // EIGHTHS, 1)


def decided_by(stats: BatchStats) -> BatchStats:
    """The stats that a choice depends on: exact counts, keys rounded up to KEYS, all keys in eighths of num_seqs *
    longest and at least as many as query tokens; an empty batch has as many sequences as tokens."""
    seqs, longest = max(stats.num_seqs, 1), max(stats.max_query_len, 1)
    keys = few_keys(max(stats.max_seq_len, longest))
    total = in_all(seqs, keys, eighths(seqs, keys, max(stats.total_seq_len, stats.num_tokens)))
    decodes = seqs if longest == 1 else min(stats.num_decodes, seqs)
    return BatchStats(seqs, max(stats.num_tokens, 1), decodes, longest, keys, total)


def rounded(n: int) -> int:
    """The smallest of GRID that is at least n."""
    return GRID[bisect_left(GRID, n)]


def on_grid(num_seqs: int, num_decodes: int, max_query_len: int, max_seq_len: int) -> BatchStats:
    """Stats rounded up to the grid: powers of two.

    Beside prompts, decodes are none, half of the sequences, or all but one; none only where there is none: a single one
    over a long context is what the launch of short queries waits for. Short queries are all read alike. Tokens and keys
    follow from the four: every sequence that is no decode is as long as the longest.
    """
    seqs, longest = power_of_two(num_seqs), power_of_two(max_query_len)
    found = _decodes(seqs, longest)
    decodes = next((n for n in found if n >= num_decodes), found[-1])
    tokens, keys = decodes + (seqs - decodes) * longest, max(power_of_two(max_seq_len), longest)
    return BatchStats(seqs, tokens, decodes, longest, keys, seqs * keys)


def _decodes(seqs: int, longest: int) -> tuple[int, ...]:
    """Of so many sequences, in rising order."""
    if longest <= 1:
        return (seqs,)
    return (0,) if longest <= SHORT_QUERY else tuple(dict.fromkeys((0, seqs // 2, seqs - 1)))


def few_rows(shape: AttentionShape, stats: BatchStats) -> bool:
    """Whether all query tokens of a sequence fit into one Q Block of 16 rows (or one per token, for a ratio above
    16)."""
    return stats.max_query_len * shape.queries_per_kv <= max(16, shape.queries_per_kv)


def seen(stats: BatchStats, sees: int) -> BatchStats:
    """Stats without the keys that no query sees, each query seeing at most `sees` (`Features.sees`), on the grid.

    Segments, runs and reductions are for keys that programs visit: with a window, a choice for all keys would split
    what nobody sees.
    """
    most = sees + stats.max_query_len - 1 + TILE - 1  # the first visible key may lie inside a tile
    if most >= stats.max_seq_len:
        return stats
    beyond = few_keys(few_keys(stats.max_query_len) + 1)  # so that a batch with context differs from one without
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
    """Stats from shapes and hints, keys rounded up to KEYS. A hint that contradicts the shapes is corrected; None is
    filled in.

    most_keys: what a row of the block table can hold. The longest query has at least the mean length; of the other
    sequences as many are decodes as the token count allows. Without total_seq_len every sequence is as long as the
    longest (`hinted_eighths`). A wrong hint only costs time.
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
    """What the hint total_seq_len tells a choice: eighths of num_seqs * max_seq_len; None where one of the two is
    unknown.

    Kept calls are found by it, so that the next step, whose total is larger, finds them too.
    """
    if total_seq_len is None:
        return None
    if max_seq_len is None:
        return None
    longest = max_seq_len if max_query_len is None or max_query_len < max_seq_len else max_query_len
    return eighths(num_seqs, KEYS[bisect_left(KEYS, longest, 0, len(KEYS) - 1)], total_seq_len)


def reachable_stats(max_tokens: int, max_seqs: int, max_seq_len: int) -> Iterator[BatchStats]:
    """Every point of the grid on which `hinted_stats` of a batch of this capacity can lie."""
    for seqs in _powers(1, max_seqs):
        for longest in _powers(1, max_tokens):
            for decodes in _decodes(seqs, longest):
                for keys in _powers(longest, max_seq_len):
                    yield on_grid(seqs, decodes, longest, keys)


def _powers(least: int, most: int) -> Iterator[int]:
    """Powers of two from one to the other rounded up, the first at least."""
    return (1 << i for i in range(least.bit_length() - 1, max(power_of_two(most), least).bit_length()))


INVARIANT = on_grid(8, 7, 2048, 8192)  # the batch that a batch-invariant choice is made for
