"""The same sequences in other batches: alone, with others, at other places, in reverse.

A sequence's result depends on its own tokens only. Under `batch_invariant` its bits do too.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from common.spec import Features, PagedBatch
from common.spec.metadata import BatchStats, Lens, lens_of, query_start_loc

NEIGHBOURS = (0, 1, 7, 8, 31)  # other sequences in the batch


def in_company(batch: PagedBatch, features: Features, order: list[int]) -> tuple[PagedBatch, Features, Tensor]:
    """Some sequences of a batch in this order, over the same pages, and the row of the whole batch for each of their
    rows."""
    lens, starts = lens_of(batch.query_start_loc, batch.seq_lens), batch.query_start_loc.tolist()
    rows = torch.cat([torch.arange(starts[seq], starts[seq + 1]) for seq in order])
    return *_part(batch, features, order, rows, [lens[seq] for seq in order]), rows


def decode_step(batch: PagedBatch, features: Features) -> tuple[PagedBatch, Features]:
    """The same sequences with the last token of each alone."""
    lens, starts = lens_of(batch.query_start_loc, batch.seq_lens), batch.query_start_loc.tolist()
    rows = torch.tensor([starts[seq + 1] - 1 for seq, (query_len, _) in enumerate(lens) if query_len], dtype=torch.long)
    return _part(batch, features, list(range(len(lens))), rows, [(min(query_len, 1), n) for query_len, n in lens])


def _part(
    batch: PagedBatch, features: Features, order: list[int], rows: Tensor, chosen: Lens
) -> tuple[PagedBatch, Features]:
    """These sequences of a batch over the same pages, with these rows of its tokens and these lengths."""
    pick = torch.tensor(order)
    new = {} if batch.key is None else {"key": batch.key[rows].clone(), "value": batch.value[rows].clone()}
    part = batch.replace(
        query=batch.query[rows].clone(), block_table=batch.block_table[pick].clone(),
        query_start_loc=query_start_loc(chosen), seq_lens=batch.seq_lens[pick].clone(), stats=BatchStats.of(chosen),
        **new,
    )  # fmt: skip
    names = ("spans", "causal_per_sequence")
    own = {name: tensor[pick].clone() for name in names if (tensor := getattr(features, name)) is not None}
    return part, replace(features, **own)


def orders(lens: list[tuple[int, int]]) -> Iterator[tuple[str, list[int]]]:
    """(description, sequences): the longest sequence that has tokens, among 0 to 31 others, first, last or between; and
    all sequences in reverse."""
    count = len(lens)
    target = max((seq for seq in range(count) if lens[seq][0]), key=lambda seq: lens[seq][1], default=None)
    if target is None:
        return
    others = [seq for seq in range(count) if seq != target]
    for turn, number in enumerate(number for number in NEIGHBOURS if number <= len(others)):
        near = others[:number] if turn % 2 else others[len(others) - number :]
        place = (0, number, number // 2)[turn % 3]
        words = f"beside {number} others" if number else "alone"
        yield f"the longest sequence {words}", [*near[:place], target, *near[place:]]
    yield "all sequences in reverse", list(range(count))[::-1]
