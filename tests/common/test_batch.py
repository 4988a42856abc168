"""What a made batch promises: who owns which slot, how it lies in memory, and that writes outside are seen."""

import pytest
import torch

from common.batch import fill_values, make_batch, make_batches, owned_slots
from common.guards import GUARD_BYTES, Guards
from common.metadata import lens_of
from common.spec import AttentionShape, Features
from common.validation import validate

SHAPE = AttentionShape(num_query_heads=4, num_kv_heads=2, head_size=16, block_size=8, dtype=torch.float32)
LENS = [(1, 9), (3, 20), (0, 0), (16, 16), (1, 24)]
STYLES = ("nhd", "hnd", "stacked", "interleaved")
INPUTS = ("query", "key_cache", "value_cache", "block_table", "query_start_loc", "seq_lens")


def pages_of(batch, lens=LENS):
    block_size = batch.key_cache.shape[1]
    return [batch.block_table[i, : -(-seq_len // block_size)].tolist() for i, (_, seq_len) in enumerate(lens)]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_every_style_is_a_valid_batch(style, dtype):
    shape = AttentionShape(4, 2, 16, 8, dtype)
    batch = make_batch(LENS, shape, style=style)
    validate(batch, Features())
    assert batch.shape == shape
    assert lens_of(batch.query_start_loc, batch.seq_lens) == LENS


@pytest.mark.parametrize("style", STYLES)
def test_slots_that_nobody_owns_are_nan_and_all_others_are_not(style):
    batch = make_batch(LENS, SHAPE, style=style)
    owned = owned_slots(LENS, [batch.block_table], *batch.key_cache.shape[:2])
    assert int(owned.sum()) == sum(seq_len for _, seq_len in LENS)
    for cache in (batch.key_cache, batch.value_cache):
        assert bool(cache[owned].isfinite().all())
        assert bool(cache[~owned].isnan().all())


def test_the_four_styles_lie_differently_in_memory():
    caches = {style: make_batch(LENS, SHAPE, style=style) for style in STYLES}
    assert len({batch.key_cache.stride() for batch in caches.values()}) == 4
    apart = {
        name: (batch.value_cache.data_ptr() - batch.key_cache.data_ptr()) // 4
        for name, batch in caches.items()
        if name in ("stacked", "interleaved")
    }
    assert apart == {"stacked": 8 * 2 * 16, "interleaved": 16}  # one page, one row


def test_an_unknown_style_is_refused():
    with pytest.raises(ValueError, match="style: found 'dhn'"):
        make_batch(LENS, SHAPE, style="dhn")


def test_pages_are_disjoint_and_shuffled():
    pages = [page for row in pages_of(make_batch(LENS, SHAPE)) for page in row]
    assert len(set(pages)) == len(pages) == 10
    assert pages != sorted(pages)


def test_copies_have_pages_of_their_own_and_the_same_query():
    batches = make_batches(LENS, SHAPE, copies=3)
    pages = [page for batch in batches for row in pages_of(batch) for page in row]
    assert len(set(pages)) == len(pages) == 30
    assert len({batch.query.data_ptr() for batch in batches}) == 1


def test_shared_pages_are_whole_context_pages():
    lens = [(1, 33), (4, 20), (1, 8), (2, 40)]
    rows = pages_of(make_batch(lens, SHAPE, shared_pages=2), lens)
    assert rows[0][:2] == rows[1][:2] == rows[3][:2]  # 16 keys of context each
    private = [page for row, shared in zip(rows, (2, 2, 0, 2), strict=True) for page in row[shared:]]
    assert len(set(private)) == len(private)
    assert not set(private) & set(rows[0][:2])


def test_unused_table_entries_are_garbage_that_rotates():
    lens = [(1, 8)] * 4 + [(1, 16)]
    tails = make_batch(lens, SHAPE, extra_columns=2).block_table[:4, 1:]
    assert tails[:, 0].tolist() == [-1, 2**31 - 1, 0x7F7F7F7F, 0]
    assert bool((tails == tails[:, :1]).all())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("extra", [0, 3])
def test_the_table_is_as_wide_and_of_the_type_asked_for(dtype, extra):
    table = make_batch(LENS, SHAPE, table_dtype=dtype, extra_columns=extra).block_table
    assert (table.dtype, table.shape) == (dtype, (5, 3 + extra))


def test_padded_tokens_are_nan():
    batch = make_batch(LENS, SHAPE, pad_tokens=5)
    assert batch.num_tokens == 21 + 5 and int(batch.query_start_loc[-1]) == 21
    assert bool(batch.query[21:].isnan().all()) and bool(batch.query[:21].isfinite().all())


@pytest.mark.parametrize("lens", [[], [(0, 0)], [(0, 0), (0, 0)], [(0, 12)], [(2, 0)]], ids=str)
def test_batches_without_keys_or_queries_are_valid(lens):
    validate(make_batch(lens, SHAPE), Features())


def test_a_batch_is_a_function_of_its_seed():
    first, same, other = (make_batch(LENS, SHAPE, seed=seed) for seed in (3, 3, 4))
    for name in INPUTS:
        assert torch.equal(getattr(first, name).nan_to_num(9.0), getattr(same, name).nan_to_num(9.0))
    assert not torch.equal(first.query, other.query)
    assert not torch.equal(first.block_table, other.block_table)


def test_new_values_keep_the_buffers_and_the_owners():
    (batch,) = make_batches(LENS, SHAPE)
    owned = batch.key_cache.isfinite()
    before, address = batch.key_cache.clone(), batch.key_cache.data_ptr()
    fill_values([batch], seed=1)
    assert batch.key_cache.data_ptr() == address
    assert torch.equal(batch.key_cache.isfinite(), owned)
    assert not bool((batch.key_cache == before)[owned].any())


@pytest.mark.parametrize("style", STYLES)
def test_an_untouched_batch_violates_no_guard(style):
    guards = Guards()
    make_batch(LENS, SHAPE, style=style, guards=guards)
    assert guards.violated() == []


@pytest.mark.parametrize("name", ["query", "key_cache", "value_cache", "block_table_0", "query_start_loc", "seq_lens"])
@pytest.mark.parametrize("side", ["before", "behind"])
def test_a_write_outside_is_seen(name, side):
    guards = Guards()
    batch = make_batch(LENS, SHAPE, guards=guards)
    tensor = getattr(batch, name.removesuffix("_0"))
    offset = tensor.storage_offset() + (-1 if side == "before" else tensor.numel())
    torch.as_strided(tensor, (1,), (1,), offset).fill_(0)
    assert guards.violated() == [name]


def test_the_bands_are_as_wide_as_promised():
    guards = Guards()
    tensor = guards.full("x", (3,), torch.int32, 7)
    for edge in (-GUARD_BYTES // 4, 3 + GUARD_BYTES // 4 - 1):
        assert guards.violated() == []
        cell = torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() + edge)
        assert int(cell) == 0x7F7F7F7F
        cell.fill_(0)
        assert guards.violated() == ["x"]
        cell.fill_(0x7F7F7F7F)
