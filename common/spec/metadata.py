"""What a scheduler knows of a batch: lengths, number of decodes, Q Blocks, and the sequence of a Q Block.

Everything derives from a list of `(query_len, seq_len)` pairs, or from two device tensors built from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

Lens = Sequence[tuple[int, int]]  # one (query_len, seq_len) per sequence

SHORT_QUERY = 16  # query tokens up to which reading keys, not the products, takes the time
ANY_QUERY = 2**30  # no query is longer
EVERY_KEY = 2**31  # no sequence is longer


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n; 1 for less."""
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True)
class BatchStats:
    """Host integers of one batch. They choose kernels and configs; a wrong one costs time, never correctness."""

    num_seqs: int
    num_tokens: int
    num_decodes: int  # sequences with exactly one query token
    max_query_len: int
    max_seq_len: int
    total_seq_len: int
    prompt_seq_len: int | None = None  # keys of the other sequences; None: these are as long as decodes on the mean

    @classmethod
    def of(cls, lens: Lens) -> BatchStats:
        queries = [query_len for query_len, _ in lens]
        seqs = [seq_len for _, seq_len in lens]
        prompts = sum(seq_len for query_len, seq_len in lens if query_len != 1)
        longest = max(queries, default=0), max(seqs, default=0)
        return cls(len(lens), sum(queries), queries.count(1), *longest, sum(seqs), prompts)

    @property
    def prompts(self) -> int:
        """Sequences that are no decodes."""
        return self.num_seqs - self.num_decodes

    @property
    def keys_of_prompts(self) -> int:
        """Keys of the sequences that are no decodes; their share of all keys where nobody said."""
        if self.prompt_seq_len is None:
            return self.total_seq_len * self.prompts // max(self.num_seqs, 1)
        return self.prompt_seq_len

    @property
    def keys_of_decodes(self) -> int:
        """Keys of the decodes."""
        return self.total_seq_len - self.keys_of_prompts


def query_start_loc(lens: Lens) -> torch.Tensor:
    """int32 [num_seqs + 1]: where each sequence's query tokens start; the last entry is their number."""
    return torch.tensor([0, *accumulate(query_len for query_len, _ in lens)], dtype=torch.int32)


def seq_lens(lens: Lens) -> torch.Tensor:
    """int32 [num_seqs]."""
    return torch.tensor([seq_len for _, seq_len in lens], dtype=torch.int32)


def lens_of(starts: torch.Tensor, lengths: torch.Tensor) -> list[tuple[int, int]]:
    """The inverse of the two above, on the host: [(query_len, seq_len), ...]."""
    begin = starts.tolist()
    return [(begin[i + 1] - begin[i], seq_len) for i, seq_len in enumerate(lengths.tolist())]


def num_q_blocks(num_tokens: int, num_seqs: int, block_q: int) -> int:
    """An upper bound on the Q Blocks of any batch of this size; independent of lengths, so a captured grid stays
    valid."""
    return num_tokens // block_q + num_seqs
