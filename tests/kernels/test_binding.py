"""The host side of a Helion launch: which gather form a cache allows; a kernel is bound once and never tuned."""

import pytest
import torch
from helion.runtime.kernel import BoundKernel, Kernel

from calls import assert_right, judged
from common.cases.batch import make_batch
from common.oracle.integrity import Guards
from common.spec import AttentionShape, Features
from common.spec.kernel import Capacity
from dsl_helion import binding, parallel_softmax, q_block
from far_caches import apart

LENS = [(1, 20), (3, 9)]


@pytest.mark.parametrize("style", ["nhd", "hnd", "stacked", "interleaved"])
def test_every_cache_style_has_a_flat_view(style: str) -> None:
    batch = make_batch(LENS, AttentionShape(4, 2, 16, 24, torch.float16), style=style)
    gather, page_rows = binding.gather_form("flat", batch, 16)
    assert gather == "flat"
    rows = binding.cache_view(batch.key_cache, gather, page_rows)
    for page, slot in ((0, 0), (2, 23), (batch.key_cache.shape[0] - 1, 7)):
        flat, paged = rows[page * page_rows + slot], batch.key_cache[page, slot]
        assert flat.data_ptr() == paged.data_ptr() and torch.equal(flat.nan_to_num(), paged.nan_to_num())


def test_the_flat_view_ends_where_the_cache_ends() -> None:
    guards = Guards()
    batch = make_batch(LENS, AttentionShape(4, 2, 16, 16, torch.float16), style="stacked", guards=guards)
    view = binding.cache_view(batch.value_cache, *binding.gather_form("flat", batch, 16))
    last = batch.value_cache[-1, -1, -1, -1:]
    assert view[-1, -1, -1:].data_ptr() == last.data_ptr()


def test_caches_of_different_lanes_share_a_flat_index() -> None:
    batch = make_batch(LENS, AttentionShape(4, 2, 16, 24, torch.float16, value_size=40))
    form = binding.gather_form("flat", batch, 16)
    assert form == ("flat", 24)
    for cache in (batch.key_cache, batch.value_cache):
        assert binding.cache_view(cache, *form)[2 * 24 + 23].data_ptr() == cache[2, 23].data_ptr()


@pytest.mark.parametrize(
    ("style", "head_size", "value_size", "dtype", "expected"),
    [
        ("interleaved", 192, 200, torch.float8_e4m3fn, "2idx"),
        ("interleaved", 96, 200, torch.float8_e5m2, "2idx"),
        ("interleaved", 72, 64, torch.float8_e4m3fn, "2idx"),
        ("interleaved", 200, 200, torch.float8_e4m3fn, "flat"),
        ("interleaved", 192, 200, torch.float16, "flat"),
        ("hnd", 104, 104, torch.float8_e4m3fn, "flat"),
        ("nhd", 192, 200, torch.float8_e4m3fn, "flat"),
    ],
)
def test_only_rows_that_begin_at_whole_words_are_flat(style, head_size, value_size, dtype, expected) -> None:
    """K of 192 bytes may be read 16 at a time, which slots of 392 bytes forbid; V of 200 at most 8 at a time anyway."""
    batch = make_batch(LENS, AttentionShape(2, 1, head_size, 24, torch.float16, value_size, dtype), style=style)
    assert binding.gather_form("flat", batch, 16)[0] == expected


@pytest.mark.parametrize(("lane", "expected"), [(0, "flat"), (1, "2idx"), (4, "2idx"), (8, "flat")])
def test_lanes_behind_each_row_keep_it_at_whole_words_or_it_is_not_flat(lane: int, expected: str) -> None:
    batch = make_batch(LENS, AttentionShape(2, 1, 32, 16, torch.float16))
    blocks, slots, _, lanes = batch.key_cache.shape
    rows = torch.zeros(blocks, slots, 1, lanes + lane, dtype=torch.float16)
    assert binding.gather_form("flat", batch.replace(key_cache=rows[..., :lanes]), 16)[0] == expected


@pytest.mark.parametrize(("style", "expected"), [("nhd", "flat"), ("interleaved", "flat"), ("by page", "2idx")])
def test_a_flat_index_has_32_bits(style: str, expected: str) -> None:
    """2^27 - 1 pages of 16 slots, without memory: beside V's pages there are twice as many rows."""
    shape = AttentionShape(2, 1, 8, 16, torch.float16)
    blocks, lanes = 2**27 - 1, 16 if style == "interleaved" else 8
    if style == "by page":
        cache = torch.empty(blocks, 2, 16, 1, 8, dtype=shape.dtype, device="meta")[:, 0]
    else:
        cache = torch.empty(blocks, 16, 1, lanes, dtype=shape.dtype, device="meta")[..., :8]
    batch = make_batch(LENS, shape).replace(key_cache=cache, value_cache=cache)
    assert binding.gather_form("flat", batch, 16)[0] == expected


def _padded(batch, slot: int):
    """The batch with K in a cache whose pages are a slot and a bit apart."""
    blocks, slots, heads, lanes = batch.key_cache.shape
    page = slots * heads * lanes + slot
    wide = torch.zeros(blocks * page, dtype=batch.key_cache.dtype)
    view = wide.as_strided((blocks, slots, heads, lanes), (page, heads * lanes, lanes, 1))
    return batch.replace(key_cache=view.copy_(batch.key_cache))


@pytest.mark.parametrize(
    ("asked", "page_size", "head_size", "tile_size", "slot", "expected"),
    [
        ("page", 16, 32, 32, 0, "page"),
        ("page", 24, 32, 32, 0, "flat"),
        ("page", 16, 24, 32, 0, "flat"),
        ("page", 64, 32, 32, 0, "flat"),
        ("page", 24, 32, 32, 8, "2idx"),
        ("flat", 16, 32, 32, 8, "2idx"),
        ("2idx", 16, 32, 32, 0, "2idx"),
    ],
    ids=["page", "page-24", "head-24", "tile-in-page", "page-24-padded", "padded", "2idx"],
)
def test_a_form_that_does_not_apply_gives_way(asked, page_size, head_size, tile_size, slot, expected) -> None:
    batch = make_batch(LENS, AttentionShape(4, 2, head_size, page_size, torch.float16))
    batch = _padded(batch, slot) if slot else batch
    assert binding.gather_form(asked, batch, tile_size)[0] == expected


@pytest.mark.parametrize("asked", [pytest.param("page", marks=pytest.mark.slow), "flat"])
@pytest.mark.slow
def test_kv_heads_beyond_32_bits_of_elements_take_another_form(asked: str) -> None:
    """Four times 2^29 elements lie between the first and the last of five heads: 2idx alone multiplies in 64 bits."""
    batch = make_batch([(2, 20)], AttentionShape(5, 5, 16, 16, torch.float16))
    far = [apart(cache, 256, 16, 2**29) for cache in (batch.key_cache, batch.value_cache)]
    moved = batch.replace(key_cache=far[0], value_cache=far[1])
    assert binding.gather_form(asked, moved, 16) == ("2idx", 0) and binding.gather_form(asked, batch, 16)[0] == asked
    outs = [torch.empty_like(batch.query) for _ in range(2)]
    for one, out in zip((moved, batch), outs, strict=True):
        q_block.launch(one, Features(), out, q_block.Config(tile_size=16, gather=asked), None)
    assert torch.equal(*outs)


def test_code_is_generated_once_and_never_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another batch is no other code; the same sizes again do not even ask Helion."""
    generated, bound = [], []
    to_triton_code, bind = BoundKernel.to_triton_code, Kernel.bind
    monkeypatch.setattr(BoundKernel, "autotune", lambda *_: pytest.fail("a launch searched"))
    monkeypatch.setattr(
        BoundKernel, "to_triton_code", lambda self, *a, **k: (generated.append(1), to_triton_code(self, *a, **k))[1]
    )
    monkeypatch.setattr(Kernel, "bind", lambda self, args: (bound.append(1), bind(self, args))[1])
    shape = AttentionShape(2, 2, 16, 8, torch.float16)
    config = q_block.Config(tile_size=16, num_warps=2)
    for lens in ([(1, 9), (2, 5)], [(1, 30), (4, 4), (1, 2)], [(1, 9), (2, 5)]):
        batch = make_batch(lens, shape)
        q_block.launch(batch, Features(), torch.empty_like(batch.query), config, None)
    assert (len(generated), len(bound)) == (1, 2)


def test_a_tensor_passed_twice_is_another_kernel() -> None:
    """K that is V: Helion compiles for the alias, and the launch after it must not use that code."""
    batch = make_batch([(1, 9)], AttentionShape(2, 2, 16, 8, torch.float16))
    config = q_block.Config(tile_size=16, gather="page")
    for values in (batch.key_cache, batch.value_cache, batch.key_cache):
        case = batch.replace(value_cache=values)
        out = torch.empty_like(batch.query)
        q_block.launch(case, Features(), out, config, None)
        assert_right(out, None, case, Features(), q_block.CONTRACT, structured=True)


def test_a_cache_without_blocks_is_a_view_without_rows():
    cache = torch.empty(0, 16, 2, 24).as_strided((0, 16, 2, 24), (48, 4800, 24, 1))  # slot-major: pages lie together
    assert binding.cache_view(cache, "flat", 1).shape == (0, 2, 24)


@pytest.mark.slow
def test_numbers_of_segments_share_what_helion_generated() -> None:
    """A server meets a dozen of them; code is apart for one segment, and for reductions over 8, 16, 32 ... places."""
    batch = make_batch([(1, 90), (2, 40)], AttentionShape(4, 2, 16, 16, torch.float32))
    generated = []
    for segments in (2, 3, 5, 8):
        judged(parallel_softmax, batch, Features(), parallel_softmax.Config(tile_size=16, num_segments=segments))
        generated.append(binding.counts["generated"])
    assert generated[0] == generated[-1]


@pytest.mark.parametrize(
    ("page", "tile", "lanes", "applies"),
    [(64, 64, 64, True), (64, 128, 64, False), (64, 128, 128, True), (32, 128, 64, True), (128, 128, 128, False)],
)
def test_pages_as_wide_as_tracing_has_tiles_make_no_larger_tile(
    page: int, tile: int, lanes: int, applies: bool
) -> None:
    assert binding.page_form_applies(AttentionShape(4, 2, lanes, page), tile) == applies


def test_a_tile_that_tracing_made_a_constant_is_refused(monkeypatch) -> None:
    """From a view as a page of 64 keys by 64 lanes Helion concludes that the tile has 64, whatever the config says."""
    monkeypatch.setattr(binding, "longest_page", lambda shape, tile_size: binding.TRACED)
    batch = make_batch([(1, 256)], AttentionShape(2, 1, 64, 64, torch.float16))
    config = parallel_softmax.Config(block_m=16, tile_size=128, num_segments=2, gather="page")
    workspace = parallel_softmax.workspace(batch.shape, Capacity.of(batch), config)
    with pytest.raises(RuntimeError, match="block size 1: Helion traced 64, the config has 128"):
        parallel_softmax.launch(batch, Features(), torch.empty_like(batch.query), config, workspace)
