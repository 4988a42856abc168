"""The host integers that a choice depends on, and the grid of points for which a warm-up compiles.

A choice uses exact counts of sequences, tokens and decodes (`decided_by`): rounding them up would cost segments, and
with them speed. Numbers of keys are rounded, because they grow in every step and a choice should outlive a step: the
longest sequence up to `KEYS`, the sum of all to eighths of num_seqs * longest. The grid (`on_grid`) has powers of two.
"""

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator

from common.spec import AttentionShape
from common.spec.metadata import EVERY_KEY, SHORT_QUERY, BatchStats, cdiv, power_of_two

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
    """The mean number of keys of a sequence in eighths of `keys`, rounded up: 1 to 8."""
    found = -(-EIGHTHS * total_seq_len // (num_seqs * keys or 1))  # inlined: cdiv, min and max would cost 0.3 us a call
    return EIGHTHS if found > EIGHTHS else 1 if found < 1 else found


def in_all(num_seqs: int, keys: int, of_eight: int) -> int:
    """The keys of all sequences for a mean of `of_eight` eighths: the inverse of `eighths`, rounded down."""
    return max(num_seqs * keys * of_eight // EIGHTHS, 1)


def decided_by(stats: BatchStats, sees: int = EVERY_KEY) -> BatchStats:
    """Round the stats to what a choice depends on. sees: `Features.sees`: keys that no query sees do not count.

    Counts stay exact. The longest sequence is rounded up to KEYS, the keys of all to eighths of num_seqs * longest, and
    are at least the query tokens. An empty batch counts as one sequence of one token.
    """
    seqs, longest = max(stats.num_seqs, 1), max(stats.max_query_len, 1)
    keys = few_keys(max(stats.max_seq_len, longest))
    total = in_all(seqs, keys, eighths(seqs, keys, max(stats.total_seq_len, stats.num_tokens)))
    decodes = seqs if longest == 1 else min(stats.num_decodes, seqs)
    return seen(BatchStats(seqs, max(stats.num_tokens, 1), decodes, longest, keys, total), sees)


def rounded(n: int) -> int:
    """The smallest of GRID that is at least n."""
    return GRID[bisect_left(GRID, n)]


def upto(most: int) -> list[int]:
    """The powers of two below `most`, and `most` itself."""
    return [1 << i for i in range((most - 1).bit_length())] + [most]


def on_grid(num_seqs: int, num_decodes: int, max_query_len: int, max_seq_len: int) -> BatchStats:
    """Round stats up to a point of the grid: powers of two.

    With longer queries the decodes are rounded up to none, half of the sequences, or all but one, because even a single
    decode over a long context takes a launch for short queries. All other sequences count as having the longest query.
    """
    seqs, longest = power_of_two(num_seqs), power_of_two(max_query_len)
    found = _decodes(seqs, longest)
    decodes = next((n for n in found if n >= num_decodes), found[-1])
    tokens, keys = decodes + (seqs - decodes) * longest, max(power_of_two(max_seq_len), longest)
    return BatchStats(seqs, tokens, decodes, longest, keys, seqs * keys)


def _decodes(seqs: int, longest: int) -> tuple[int, ...]:
    """The numbers of decodes on the grid, in rising order."""
    if longest <= 1:
        return (seqs,)
    return (0,) if longest <= SHORT_QUERY else tuple(dict.fromkeys((0, seqs // 2, seqs - 1)))


def few_rows(shape: AttentionShape, stats: BatchStats) -> bool:
    """Whether the query tokens of each sequence fit into one Q Block: 16 rows, or one token of a larger group."""
    return stats.max_query_len * shape.queries_per_kv <= max(16, shape.queries_per_kv)


def seen(stats: BatchStats, sees: int) -> BatchStats:
    """Reduce the number of keys to those that a query can see, rounded to the grid. sees: `Features.sees`.

    With a sliding window most keys are never visited, so a choice for all of them would make too many segments.
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
    """Make the stats of a call from its shapes and hints. A wrong hint costs time only.

    most_keys: what a row of the block table can hold. A hint that contradicts the shapes is corrected. Where a hint is
    None, the longest query has at least the mean length, as many other sequences are decodes as the token count allows,
    and every sequence is as long as the longest.
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
    """The hint total_seq_len in eighths of num_seqs * max_seq_len; None where one of the two is unknown.

    It is part of a call's signature; rounded, so that the next step, with a few more keys, has the same signature.
    """
    if total_seq_len is None or max_seq_len is None:
        return None
    longest = max_seq_len if max_query_len is None or max_query_len < max_seq_len else max_query_len
    return eighths(num_seqs, KEYS[bisect_left(KEYS, longest, 0, len(KEYS) - 1)], total_seq_len)


def reachable_stats(max_tokens: int, max_seqs: int, max_seq_len: int) -> Iterator[BatchStats]:
    """Yield every point of the grid that a batch of this capacity can be rounded to."""
    for seqs in _powers(1, max_seqs):
        for longest in _powers(1, max_tokens):
            for decodes in _decodes(seqs, longest):
                for keys in _powers(longest, max_seq_len):
                    yield on_grid(seqs, decodes, longest, keys)


def _powers(least: int, most: int) -> Iterator[int]:
    """The powers of two from `least` to `most` rounded up; at least the first."""
    return (1 << i for i in range(least.bit_length() - 1, max(power_of_two(most), least).bit_length()))


INVARIANT = on_grid(8, 7, 2048, 8192)  # the batch that a batch-invariant choice is made for
