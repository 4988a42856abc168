"""What a made batch promises: who owns which slot, how it lies in memory, and that writes outside are seen."""

import pytest
import torch

from common.cases.batch import fill_values, make_batch, make_batches, owned_slots
from common.oracle.integrity import GUARD_BYTES, Guards
from common.spec import AttentionShape, Features, Layout
from common.spec.metadata import lens_of
from common.spec.validation import validate

SHAPE = AttentionShape(num_query_heads=4, num_kv_heads=2, head_size=16, block_size=8, dtype=torch.float32)
LENS = [(1, 9), (3, 20), (0, 0), (16, 16), (1, 24)]
STYLES = ("nhd", "hnd", "stacked", "interleaved")
INPUTS = ("query", "key_cache", "value_cache", "block_table", "query_start_loc", "seq_lens")


def pages_of(batch, lens=LENS):
    block_size = batch.key_cache.shape[1]
    return [batch.block_table[i, : -(-seq_len // block_size)].tolist() for i, (_, seq_len) in enumerate(lens)]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_every_style_is_a_valid_batch_between_guards(style, dtype):
    shape, guards = AttentionShape(4, 2, 16, 8, dtype), Guards()
    batch = make_batch(LENS, shape, style=style, guards=guards)
    validate(batch, Features())
    assert batch.shape == shape and guards.violated() == []
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


@pytest.mark.parametrize(("style", "layout"), [("dhn", Layout.PAGED), ("hnd", Layout.X_PACKED)], ids=str)
def test_an_unknown_style_and_one_beside_x_packed_are_refused(style, layout):
    with pytest.raises(ValueError, match=f"style: found '{style}'"):
        make_batch(LENS, SHAPE, style=style, layout=layout)


def test_pages_are_shuffled_and_copies_have_pages_of_their_own_and_the_same_query():
    batches = make_batches(LENS, SHAPE, copies=3)
    pages = [page for batch in batches for row in pages_of(batch) for page in row]
    assert len(set(pages)) == len(pages) == 30 and pages[:10] != sorted(pages[:10])
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


@pytest.mark.parametrize(
    "name", ["query", "key_cache", "value_cache", "block_table_0", "query_start_loc", "seq_lens", "key", "value"]
)
@pytest.mark.parametrize("side", ["before", "behind"])
def test_a_write_outside_is_seen(name, side):
    guards = Guards()
    batch = make_batch(LENS, SHAPE, new_kv=True, guards=guards)
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


def new_tokens_of(batch, lens):
    """(row of query, page, slot) of every new token that has a key, one by one."""
    row, block_size = 0, batch.shape.block_size
    for seq, (query_len, seq_len) in enumerate(lens):
        for position in range(seq_len - query_len, seq_len):
            if seq_len:
                yield row, int(batch.block_table[seq, position // block_size]), position % block_size
            row += 1


LAYOUTS = pytest.mark.parametrize("layout", Layout, ids=lambda layout: layout.value)
WITH_A_BLIND_ONE = [(1, 9), (3, 20), (2, 0), (0, 0), (16, 16), (8, 24)]


@LAYOUTS
def test_new_keys_and_values_are_what_the_pages_hold(layout):
    for batch in make_batches(WITH_A_BLIND_ONE, SHAPE, copies=2, pad_tokens=3, new_kv=True, layout=layout):
        validate(batch, Features())
        there = list(new_tokens_of(batch, WITH_A_BLIND_ONE))
        assert len(there) == 28
        for new, cache in zip((batch.key, batch.value), batch.by_token(), strict=True):
            assert new.is_contiguous() and new.shape == (33, 2, 16)
            for row, page, slot in there:
                assert torch.equal(new[row], cache[page, slot].flatten(1))
            nobody = torch.ones(33, dtype=torch.bool)
            nobody[[row for row, _, _ in there]] = False
            assert int(nobody.sum()) == 5 and bool(new[nobody].isnan().all())


def test_new_tokens_follow_new_values():
    batch = make_batch(LENS, SHAPE, new_kv=True)
    before, address = batch.key.clone(), batch.key.data_ptr()
    fill_values([batch], seed=1)
    assert batch.key.data_ptr() == address and not bool((batch.key == before).any())
    row, page, slot = next(new_tokens_of(batch, LENS))
    assert torch.equal(batch.value[row], batch.value_cache[page, slot])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_an_x_packed_cache_has_its_shapes_and_no_value_outside_its_slots(dtype):
    shape, x = AttentionShape(4, 2, 40, 24, dtype), 16 // dtype.itemsize
    batch = make_batch(LENS, shape, layout=Layout.X_PACKED)
    validate(batch, Features())
    blocks = batch.key_cache.shape[0]
    assert batch.shape == shape
    assert batch.key_cache.shape == (blocks, 2, 40 // x, 24, x) and batch.value_cache.shape == (blocks, 2, 40, 24)
    owned = owned_slots(LENS, [batch.block_table], blocks, 24)
    for cache in batch.by_token():
        assert bool(cache[owned].isfinite().all()) and bool(cache[~owned].isnan().all())


def test_lane_d_of_an_x_packed_key_is_lane_d_of_the_key():
    batch = make_batch([(1, 16)], SHAPE, layout=Layout.X_PACKED, spare_pages=0)
    key, value = batch.by_token()
    for page, head, lane, slot in ((0, 1, 13, 3), (1, 0, 6, 7)):  # x is 4
        packed = batch.key_cache[page, head, lane // 4, slot, lane % 4]
        assert key[page, slot, head].flatten()[lane] == packed
        assert value[page, slot, head, lane] == batch.value_cache[page, head, lane, slot]
