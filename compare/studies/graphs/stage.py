"""Tensors of one capacity that any batch is put into: what a serving engine captures its graphs on.

Several page sets, one table each, over one pool of pages: a graph holds a launch on every set, and a read of a large
buffer before each replay (`timing`) leaves none of them in a cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from common.spec import AttentionShape, PagedBatch, SpecError, metadata
from common.spec.metadata import BatchStats, Lens, cdiv


@dataclass(frozen=True)
class Size:
    """What the tensors hold: sequences, keys of each, query tokens of all."""

    seqs: int = 256
    keys: int = 131072
    tokens: int = 8192 + 256  # of prompts, and a decode of every sequence: 16q1s2k_16q512s1536 has 8208

    def holds(self, lens: Lens) -> bool:
        stats = BatchStats.of(lens)
        return stats.num_seqs <= self.seqs and stats.max_seq_len <= self.keys and stats.num_tokens <= self.tokens


class Stage:
    """query, pool, tables, query_start_loc, seq_lens and out at fixed addresses; `fill` makes them another batch."""

    def __init__(self, size: Size, shape: AttentionShape, sets: int, pages: int, device: torch.device) -> None:
        """pages: of the pool; a batch needs no more of them, and its sets overlap only where all together do."""
        self.size, self.shape, self.sets, self.device = size, shape, sets, device
        generator = torch.Generator(device).manual_seed(0)

        def normal(*sizes: int) -> torch.Tensor:
            return torch.randn(*sizes, generator=generator, dtype=shape.dtype, device=device)

        self.query = normal(size.tokens, shape.num_query_heads, shape.head_size)
        pool = (pages, shape.block_size, shape.num_kv_heads, shape.head_size)
        self.key_cache, self.value_cache = normal(*pool), normal(*pool)
        ints = {"dtype": torch.int32, "device": device}
        self.tables = torch.zeros(sets, size.seqs, cdiv(size.keys, shape.block_size), **ints)
        self.query_start_loc, self.seq_lens = torch.zeros(size.seqs + 1, **ints), torch.zeros(size.seqs, **ints)
        self.out = torch.empty_like(self.query)
        self._order = torch.randperm(pages, generator=torch.Generator().manual_seed(0)).to(device)
        self.lens: Lens = ()

    def fill(self, lens: Lens) -> None:
        """Make the tensors this batch; sequences behind it are empty. Raises SpecError where it does not fit."""
        page = self.shape.block_size
        need = torch.tensor([cdiv(seq_len, page) for _, seq_len in lens], dtype=torch.int64)
        total, pages = int(need.sum()), self._order.numel()
        if not self.size.holds(lens) or total > pages:
            raise SpecError("lens", f"{BatchStats.of(lens)}, {total} pages", f"at most {self.size}, {pages} pages")
        empty = [(0, 0)] * (self.size.seqs - len(lens))
        self.query_start_loc.copy_(metadata.query_start_loc([*lens, *empty]))
        self.seq_lens.copy_(metadata.seq_lens([*lens, *empty]))
        seq = torch.repeat_interleave(torch.arange(len(lens)), need).to(self.device)
        first = torch.repeat_interleave(need.cumsum(0) - need, need)
        column = (torch.arange(total) - first).to(self.device)
        for number in range(self.sets):
            at = (number * total + torch.arange(total, device=self.device)) % pages
            self.tables[number, seq, column] = self._order[at].int()
        self.lens = tuple(lens)

    def batch(self, number: int, seqs: int, tokens: int, stats: BatchStats) -> PagedBatch:
        """Page set `number` as a batch of the first `seqs` sequences and `tokens` tokens, with these hints."""
        return PagedBatch(
            query=self.query[:tokens],
            key_cache=self.key_cache,
            value_cache=self.value_cache,
            block_table=self.tables[number, :seqs],
            query_start_loc=self.query_start_loc[: seqs + 1],
            seq_lens=self.seq_lens[:seqs],
            softmax_scale=self.shape.head_size**-0.5,
            stats=stats,
        )

    def full(self) -> list[PagedBatch]:
        """Every set at the capacity, whatever it holds now; hints say the capacity."""
        size = self.size
        stats = BatchStats(size.seqs, size.tokens, 0, size.tokens, size.keys, size.seqs * size.keys)
        return [self.batch(number, size.seqs, size.tokens, stats) for number in range(self.sets)]

    def exact(self) -> list[PagedBatch]:
        """Every set as just the batch that it holds now."""
        stats = BatchStats.of(self.lens)
        return [self.batch(number, stats.num_seqs, stats.num_tokens, stats) for number in range(self.sets)]

    def decodes(self, seqs: int) -> list[PagedBatch]:
        """Every set as a decode of `seqs` sequences of up to the capacity's keys."""
        stats = BatchStats(seqs, seqs, seqs, 1, self.size.keys, seqs * self.size.keys)
        return [self.batch(number, seqs, seqs, stats) for number in range(self.sets)]
