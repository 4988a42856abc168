"""Batches of one capacity's shapes, as a captured graph meets them; shared by the tests of both DSLs' static grids."""

import random

import torch

from common.cases.batch import make_batch
from common.spec import AttentionShape, PagedBatch


def at_capacity(lens: list, shape: AttentionShape, tokens: int, seqs: int, keys: int, **options) -> PagedBatch:
    """`lens` in tensors for `tokens` query tokens, `seqs` sequences and `keys` keys each: the rest are empty ones."""
    pages = max((-(-seq_len // shape.block_size) for _, seq_len in lens), default=0)
    return make_batch(
        [*lens, *[(0, 0)] * (seqs - len(lens))],
        shape,
        pad_tokens=tokens - sum(query_len for query_len, _ in lens),
        extra_columns=-(-keys // shape.block_size) - pages,
        **options,
    )


def random_lens(generator: random.Random, tokens: int, seqs: int, keys: int) -> list[tuple[int, int]]:
    """Decodes, prompts and chunks within the capacity; now and then nothing at all."""
    lens, left = [], tokens
    for _ in range(generator.randrange(seqs + 1)):
        longest = min(left, keys)
        if longest < 1:
            break
        query_len = generator.choice((1, 1, 1, generator.randint(1, min(16, longest)), generator.randint(1, longest)))
        lens.append((query_len, generator.randint(query_len, keys)))
        left -= query_len
    return lens


def refill(static: PagedBatch, batch: PagedBatch) -> None:
    """`batch`, of the same capacity, into the tensors of `static`; pages that it does not have become NaN."""
    for name in ("key_cache", "value_cache"):
        getattr(static, name).fill_(float("nan"))
        getattr(static, name)[: getattr(batch, name).shape[0]].copy_(getattr(batch, name))
    for name in ("query", "block_table", "query_start_loc", "seq_lens"):
        getattr(static, name).copy_(getattr(batch, name))


def poisoned(workspace) -> None:
    """Scratch that nobody has written yet, at its worst."""
    copied = (workspace.copy.key, workspace.copy.value) if workspace.copy else ()
    for tensor in (workspace.acc, workspace.m, workspace.l, *copied):
        tensor.fill_(float("nan"))
    workspace.plan.fill_(2**30)
    workspace.counters.fill_(2**30)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: NaN equals itself."""
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
