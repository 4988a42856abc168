"""The host integers that a choice depends on, and the grid of points for which a warm-up compiles.

A choice uses exact counts of sequences, tokens and decodes (`decided_by`): rounding them up would cost segments, and
with them speed. Numbers of keys are rounded, because they grow in every step and a choice should outlive a step: the
longest sequence up to `KEYS`, the sum of all to eighths of num_seqs * longest, and where decodes are beside prompts the
means of both up to `KEYS`. The grid (`on_grid`) has powers of two.
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
    """The smallest of KEYS that is at least n; the largest for more, which a wrong hint may be."""
    return KEYS[bisect_left(KEYS, n, 0, len(KEYS) - 1)]


def eighths(num_seqs: int, keys: int, total_seq_len: int) -> int:
    """The mean number of keys of a sequence in eighths of `keys`, rounded up: 1 to 8."""
    found = -(-EIGHTHS * total_seq_len // (num_seqs * keys or 1))  # inlined: cdiv, min and max would cost 0.3 us a call
    return EIGHTHS if found > EIGHTHS else 1 if found < 1 else found


def in_all(num_seqs: int, keys: int, of_eight: int) -> int:
    """The keys of all sequences for a mean of `of_eight` eighths: the inverse of `eighths`, rounded down."""
    return max(num_seqs * keys * of_eight // EIGHTHS, 1)


def means(num_seqs: int, num_decodes: int, max_query_len: int, total: int, of_prompts: int) -> tuple[int, int] | None:
    """The mean numbers of keys of decodes and of prompts, rounded up to KEYS, from the keys of all sequences and of
    prompts; None where no decode is beside a prompt."""
    prompts, of_prompts = num_seqs - num_decodes, max(0, min(of_prompts, total))
    if max_query_len <= SHORT_QUERY or num_decodes <= 0 or prompts <= 0:
        return None
    return few_keys(max(cdiv(total - of_prompts, num_decodes), 1)), few_keys(max(cdiv(of_prompts, prompts), 1))


def mixed(stats: BatchStats, of_decodes: int, of_prompts: int) -> BatchStats:
    """The stats with these mean numbers of keys of decodes and of prompts, which are at most those of the longest."""
    keys = stats.max_seq_len
    told = min(of_prompts, keys) * stats.prompts
    return dataclasses.replace(
        stats, total_seq_len=min(of_decodes, keys) * stats.num_decodes + told, prompt_seq_len=told
    )


def decided_by(stats: BatchStats, sees: int = EVERY_KEY) -> BatchStats:
    """Round the stats to what a choice depends on. sees: `Features.sees`: keys that no query sees do not count.

    Counts stay exact. The longest sequence is rounded up to KEYS. The keys of all are rounded to eighths of
    num_seqs * longest, and are at least the query tokens; prompt_seq_len is then None. Decodes beside prompts have
    `means` instead. An empty batch counts as one sequence of one token.
    """
    seqs, longest, tokens = max(stats.num_seqs, 1), max(stats.max_query_len, 1), max(stats.num_tokens, 1)
    keys, total = few_keys(max(stats.max_seq_len, longest)), max(stats.total_seq_len, tokens)
    decodes = seqs if longest == 1 else min(stats.num_decodes, seqs)
    made = BatchStats(seqs, tokens, decodes, longest, keys, in_all(seqs, keys, eighths(seqs, keys, total)))
    of_prompts = min(max(stats.keys_of_prompts, tokens - decodes), keys * made.prompts)
    if apart := means(seqs, decodes, longest, max(total, of_prompts + decodes), of_prompts):
        made = mixed(made, *apart)
    return seen(made, sees)


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
    of_prompts = min(stats.keys_of_prompts, stats.prompts * keys)
    total = of_prompts + min(stats.keys_of_decodes, stats.num_decodes * keys)
    told = None if stats.prompt_seq_len is None else of_prompts
    return dataclasses.replace(stats, max_seq_len=keys, total_seq_len=total, prompt_seq_len=told)


def hinted_stats(
    num_seqs: int,
    num_tokens: int,
    most_keys: int,
    max_query_len: int | None,
    max_seq_len: int | None,
    num_decodes: int | None,
    total_seq_len: int | None = None,
    prompt_seq_len: int | None = None,
) -> BatchStats:
    """Make the stats of a call from its shapes and hints. A wrong hint costs time only.

    most_keys: what a row of the block table can hold. A hint that contradicts the shapes is corrected. Where a hint is
    None, the longest query has at least the mean length, as many other sequences are decodes as the token count allows,
    and every sequence is as long as the longest.
    """
    hints = max_query_len, max_seq_len, num_decodes, total_seq_len, prompt_seq_len
    told = hinted_keys(num_seqs, *hints)
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
    apart = isinstance(told, tuple)
    total = in_all(max(num_seqs, 1), keys, EIGHTHS if apart else told or EIGHTHS)
    stats = BatchStats(num_seqs, num_tokens, decodes, longest, keys, total)
    return decided_by(mixed(stats, *told) if apart and 0 < decodes < num_seqs else stats)


def hinted_keys(
    num_seqs: int,
    max_query_len: int | None,
    max_seq_len: int | None,
    num_decodes: int | None,
    total_seq_len: int | None,
    prompt_seq_len: int | None,
) -> int | tuple[int, int] | None:
    """The hint total_seq_len: as `means` where the hints tell decodes from prompts, else in eighths of
    num_seqs * max_seq_len; None where it or max_seq_len is unknown.

    It is part of a call's signature; rounded, so that the next step, with a few more keys, has the same signature.
    """
    if total_seq_len is None or max_seq_len is None:
        return None
    unknown = max_query_len is None or num_decodes is None or prompt_seq_len is None
    if not unknown and (apart := means(num_seqs, num_decodes, max_query_len, total_seq_len, prompt_seq_len)):
        return apart
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
