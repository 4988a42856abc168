"""Every value of a batch, checked on its device with one wait at the end."""

from __future__ import annotations

import torch

from common.spec import Features, PagedBatch, SpecError
from common.spec.feature_rules import value_conditions


def check_values(batch: PagedBatch, features: Features) -> None:
    """Raise SpecError for the first entry of lengths, block_table or a feature's tensor that is out of place.

    The batch is otherwise well formed (`validate(values=False)`). Waits for the device once.
    """
    found = _conditions(batch, features)
    if not found:
        return
    verdicts = torch.stack([_first(bad, value) for _, bad, value, _ in found]).tolist()
    for (name, _, _, allowed), (is_bad, index, value) in zip(found, verdicts, strict=True):
        if is_bad:
            width = batch.block_table.shape[1]
            row = int(index) // width if name == "block_table" else int(index)
            integer = name in ("query_start_loc", "seq_lens", "block_table", "spans")
            raise SpecError(f"{name}[{row}]", int(value) if integer else value, allowed)


def _first(bad: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """float64 [3]: whether any is bad, the first index, the value there. Integers up to 2^53 stay exact."""
    bad, value = bad.flatten(), value.flatten()
    index = bad.to(torch.int32).argmax()
    return torch.stack([bad.any().double(), index.double(), value[index].double()])


def _conditions(batch: PagedBatch, features: Features) -> list[tuple[str, torch.Tensor, torch.Tensor, str]]:
    """(argument, bad entries, all entries, allowed), none of them empty, in the order in which they are judged."""
    starts, lens, table = batch.query_start_loc, batch.seq_lens, batch.block_table
    num_blocks, block_size = batch.by_token()[0].shape[:2]
    width = table.shape[1]
    index = torch.arange(starts.numel(), device=starts.device)
    before = torch.cat([starts[:1] * 0, starts[:-1]])
    bad = (starts < before) | ((index == 0) & (starts != 0)) | (starts > batch.num_tokens)
    allowed = f"0 first, then never less than the entry before, at most the {batch.num_tokens} rows of query"
    found = [("query_start_loc", bad, starts, allowed)]
    if batch.num_seqs:
        query_lens = starts[1:] - starts[:-1]
        pages = (lens - 1) // block_size + 1  # 2^31 - 1 + (block_size - 1) would be negative
        bad = (False if features.cross else (lens != 0) & (lens < query_lens)) | (lens < 0) | (pages > width)
        allowed = f"0, or at least the query length and at most {width} pages of {block_size}"
        found.append(("seq_lens", bad, lens, allowed))
        used = torch.arange(width, device=table.device).unsqueeze(0) < pages.unsqueeze(1)
        if table.numel():
            bad = used & ((table < 0) | (table >= num_blocks))
            found.append(("block_table", bad, table, f"page ids from 0 to {num_blocks - 1}"))
    return found + [tuple(condition) for condition in value_conditions(features)]
