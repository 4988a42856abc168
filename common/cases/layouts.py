"""Ways to lay out the same batch in memory: slices, padding, offsets, page orders.

Each returns a batch of equal meaning, except `page_twice`, `own_first_page`, `huge_query` and `tiny_query`. Every
function takes (batch, guards) and allocates from `guards`, so that a write outside is seen.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from common.oracle.integrity import Guards
from common.spec import PagedBatch
from common.spec.metadata import cdiv
from common.spec.quantise import fill_where, negate

Arrange = Callable[[PagedBatch, Guards], PagedBatch]
GARBAGE = 2**31 - 1  # a page id past every pool
MOST_FAR = 2**25


def _used(batch: PagedBatch) -> list[int]:
    """The number of block-table entries that each sequence uses."""
    return [cdiv(seq_len, batch.shape.block_size) for seq_len in batch.seq_lens.tolist()]


def _renumber(batch: PagedBatch, new_id: torch.Tensor) -> PagedBatch:
    """Move physical page p to new_id[p] in place, and update the block table. Each page must belong to one row only."""
    old_id = torch.argsort(new_id).to(batch.device)
    for cache in (batch.key_cache, batch.value_cache):
        cache.copy_(cache[old_id])
    for seq, used in enumerate(_used(batch)):
        row = batch.block_table[seq, :used]
        row.copy_(new_id.to(batch.device)[row.long()])
    return batch


def _order(batch: PagedBatch, first: list[int]) -> torch.Tensor:
    """New ids: the pages of `first` get 0, 1, 2, ... in that order; all others follow."""
    chosen = set(first)
    rest = [page for page in range(batch.key_cache.shape[0]) if page not in chosen]
    return torch.argsort(torch.tensor(first + rest))


def _pages(batch: PagedBatch) -> list[int]:
    """The used pages, sequence by sequence."""
    return [page for seq, used in enumerate(_used(batch)) for page in batch.block_table[seq, :used].tolist()]


def reversed_pages(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Make page ids descend along every sequence."""
    return _renumber(batch, _order(batch, _pages(batch)[::-1]))


def page_runs(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Four pages of a sequence are consecutive, and its next four lie before them."""
    used = [row[:count].tolist() for row, count in zip(batch.block_table, _used(batch), strict=True)]
    runs = [pages[at : at + 4] for pages in used for at in range(0, len(pages), 4)]
    return _renumber(batch, _order(batch, [page for run in runs[::-1] for page in run]))


def _rename(batch: PagedBatch, ids: torch.Tensor) -> PagedBatch:
    """The batch whose used pages, sequence by sequence, have these ids."""
    for row, count, own in zip(batch.block_table, _used(batch), ids.split(_used(batch)), strict=True):
        row[:count] = own.to(row.dtype)
    return batch


def last_pages(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Give the used pages the highest ids of the pool. Only they are moved, so that a pool of gigabytes is not
    copied."""
    pages, num_blocks = _pages(batch), batch.key_cache.shape[0]
    wanted = torch.arange(num_blocks - len(pages), num_blocks, device=batch.device)
    used = torch.tensor(pages, dtype=torch.long, device=batch.device)
    for cache in (batch.key_cache, batch.value_cache):
        values = cache[used]
        fill_where(cache, used, float("nan"))
        cache[wanted] = values
    return _rename(batch, wanted)


def far_pages(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Give the used pages ids from 2^20 on, or from the one before which a cache would take MOST_FAR bytes. A page
    begins a token behind the one before, so a million pages take the room of a million tokens; the used ones do not
    overlap. For brief cases, which write to no cache."""
    pages, page, caches = _pages(batch), batch.shape.block_size, ("key_cache", "value_cache")
    first = min(2**20, MOST_FAR // max(getattr(batch, name)[0, 0].nbytes for name in caches))
    found = {}
    for name in caches:
        used = getattr(batch, name)[pages].flatten(0, 1)
        rows = _room(f"{name}_far", (first + len(used), *used.shape[1:]), used.dtype, guards)
        rows[first:] = used
        found[name] = rows.unfold(0, page, 1).movedim(-1, 1)
    return _rename(batch.replace(**found), first + page * torch.arange(len(pages)))


def page_twice(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Make the first sequence read its first page again as its second; the replaced page then has no owner."""
    orphan = int(batch.block_table[0, 1])
    batch.block_table[0, 1] = batch.block_table[0, 0]
    for cache in (batch.key_cache, batch.value_cache):
        fill_where(cache, torch.tensor([orphan], device=batch.device), float("nan"))
    return batch


def own_first_page(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Give the third sequence a first page of its own, with what the one before it had, negated: a prefix that the
    first, second and last share is not everyone's."""
    used = set(_pages(batch))
    page, own = int(batch.block_table[2, 0]), next(p for p in range(batch.key_cache.shape[0]) if p not in used)
    for cache in (batch.key_cache, batch.value_cache):
        cache[own] = cache[page]
        negate(cache[own])
    batch.block_table[2, 0] = own
    return batch


def table_columns(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Make the block table a range of columns of a wider one."""
    rows, width = batch.block_table.shape
    wide = guards.full("block_table_wide", (rows, width + 7), batch.block_table.dtype, GARBAGE)
    wide[:, 2 : 2 + width] = batch.block_table
    return batch.replace(block_table=wide[:, 2 : 2 + width])


def table_rows(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Make the block table every second row of a taller one."""
    rows, width = batch.block_table.shape
    tall = guards.full("block_table_tall", (2 * rows, width), batch.block_table.dtype, GARBAGE)
    tall[::2] = batch.block_table
    return batch.replace(block_table=tall[::2])


def fused_query(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Make the query the first part of a fused QKV projection's rows, and the step's new K and V the others; these are
    NaN where none are given, or V's heads are of another size."""
    tokens, heads, size = batch.query.shape
    kv = batch.shape.num_kv_heads
    fused = guards.full("qkv", (tokens, heads + 2 * kv, size), batch.query.dtype, float("nan"))
    query, key, value = fused.split((heads, kv, kv), 1)
    query.copy_(batch.query)
    if batch.key is None or batch.value.shape != value.shape:
        return batch.replace(query=query)
    return batch.replace(query=query, key=key.copy_(batch.key), value=value.copy_(batch.value))


def padded_query(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Put eight lanes of NaN after every head of the query."""
    tokens, heads, size = batch.query.shape
    padded = guards.full("query_padded", (tokens, heads, size + 8), batch.query.dtype, float("nan"))
    padded[..., :size] = batch.query
    return batch.replace(query=padded[..., :size])


def _room(name: str, shape: tuple[int, ...], dtype: torch.dtype, guards: Guards, behind: int = 0) -> torch.Tensor:
    """A contiguous tensor of NaN, `behind` elements past an aligned address."""
    flat = guards.empty(name, (math.prod(shape) + behind,), dtype)
    fill_where(flat, torch.ones_like(flat, dtype=torch.bool), float("nan"))
    return flat[behind:].view(shape)


def _odd(tensor: torch.Tensor, name: str, guards: Guards) -> torch.Tensor:
    """The same values with odd strides, one element past an aligned address."""
    *outer, heads, size = tensor.shape
    return _room(name, (*outer, heads, size + 1), tensor.dtype, guards, 1)[..., :size].copy_(tensor)


def _view(tensor: torch.Tensor, style: str, name: str, guards: Guards) -> torch.Tensor:
    """An uninitialised tensor like `tensor` in one of STRIDES."""
    first, *outer, heads, size = tensor.shape
    dtype = tensor.dtype
    if style == "lanes":
        return _room(name, (first, *outer, heads, size + 8), dtype, guards)[..., :size]
    if style == "heads":
        return _room(name, (first, *outer, heads + 3, size), dtype, guards)[..., :heads, :]
    if style == "sparse":
        return _room(name, (2 * first, *outer, heads, size), dtype, guards)[::2]
    if style == "offset":
        return _room(name, tuple(tensor.shape), dtype, guards, 8)
    *rest, rows = (first, *outer)  # heads before slots, or before tokens
    return _room(name, (*rest, heads, rows, size), dtype, guards).transpose(-3, -2)


STRIDES = ("lanes", "heads", "sparse", "offset", "transposed", "odd")


def strided(tensor: torch.Tensor, style: str, name: str, guards: Guards) -> torch.Tensor:
    """The same values [..., heads, size] in another place, between garbage.

    style: lanes: eight after every head; heads: three after every row; sparse: every second page or token; offset:
    contiguous, eight elements further on; transposed: heads outside slots or tokens; odd: as `unaligned`.
    """
    name = f"{name}_{style}"
    return _odd(tensor, name, guards) if style == "odd" else _view(tensor, style, name, guards).copy_(tensor)


def unaligned(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Put query and caches one element past a 16-byte boundary and make all their strides odd multiples of odd
    numbers."""
    names = ("query", "key_cache", "value_cache")
    return batch.replace(**{name: _odd(getattr(batch, name), f"{name}_odd", guards) for name in names})


def small_hints(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Make the host integers claim a decode step of one key; the device tensors stay right."""
    seqs = batch.num_seqs
    claimed = {"num_decodes": seqs, "max_query_len": 1, "max_seq_len": 1, "total_seq_len": seqs, "prompt_seq_len": 0}
    return batch.replace(stats=replace(batch.stats, **claimed))


def large_hints(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Make the host integers claim prompts alone, of the longest context of a capture."""
    keys = 2**17 * batch.num_seqs
    claimed = {"num_decodes": 0, "max_query_len": 4096, "max_seq_len": 2**17}
    return batch.replace(stats=replace(batch.stats, **claimed, total_seq_len=keys, prompt_seq_len=keys))


def stale_tail(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Make every row of the block table name pages of the next sequence after its used part, as after a page was
    freed."""
    rows = [row[:used].clone() for row, used in zip(batch.block_table, _used(batch), strict=True)]
    for seq, used in enumerate(_used(batch)):
        other = rows[(seq + 1) % len(rows)]
        tail = batch.block_table[seq, used:]
        if other.numel():
            tail.copy_(other.repeat(-(-tail.numel() // other.numel()))[: tail.numel()])
    return batch


def _rows_apart(batch: PagedBatch, factor: float) -> PagedBatch:
    """Scale each head's query to 2^-11 of the one before; every fifth lane of a head is 2^-9 of its neighbours."""
    _, heads, lanes = batch.query.shape
    by_head = torch.exp2(-11.0 * torch.arange(heads)).view(1, heads, 1)
    by_lane = torch.where(torch.arange(lanes) % 5 == 0, 2.0**-9, 1.0)
    batch.query.mul_((factor * by_head * by_lane).to(batch.query))
    return batch.replace(softmax_scale=batch.softmax_scale / factor)


def huge_query(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Rows of the query from 1e30 downwards, with a softmax scale that makes logits of them; not for fp16."""
    return _rows_apart(batch, 2.0**100)


def tiny_query(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Rows of the query from 1e-30 downwards, with a softmax scale that makes logits of them."""
    return _rows_apart(batch, 2.0**-60)


def far_rows(like: torch.Tensor, name: str, guards: Guards) -> torch.Tensor:
    """Uninitialised rows of the shape of `like`; the last begins 2^31 elements or more after the first."""
    tokens, heads, size = like.shape
    step = cdiv(2**31, max(1, tokens - 1)) // 8 * 8 + 8
    return guards.empty(name, (tokens, step), like.dtype)[:, : heads * size].unflatten(1, (heads, size))


def far_query(batch: PagedBatch, guards: Guards) -> PagedBatch:
    """Put the query's last token 2^31 elements after the first; `outputs` lays `out` out alike."""
    return batch.replace(query=far_rows(batch.query, "query_apart", guards).copy_(batch.query))
