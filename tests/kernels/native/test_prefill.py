"""native.sm90_prefill without an sm_90: what it refuses, where its boxes lie, its segments, and that it compiles."""

import dataclasses

import pytest
import torch
from triton.experimental.gluon import language as gl

from common.cases.ask import PLAIN, Ask
from common.cases.batch import make_batch
from common.gpus import resolve
from common.spec import AttentionShape, UnsupportedFeature, step_plan
from common.spec.kernel import Capacity
from common.spec.metadata import EVERY_KEY, BatchStats
from common.spec.step_plan import COUNTERS
from compare.competitors import registry
from compilations import compilation
from dsl_triton import parallel_softmax
from dsl_triton.native import sm90_config, sm90_load, sm90_wide
from dsl_triton.native import sm90_prefill as native
from dsl_triton.native.sm90_boxes import (
    OUT_LANES,
    box_shape,
    even_lanes,
    fits_box,
    panel_lanes,
    rest_lanes,
    sum_lanes,
    tile_lanes,
)

H200 = resolve("h200")
LLAMA = AttentionShape()
E4M3 = torch.float8_e4m3fn
KERNEL_ID = "triton/native.sm90_prefill"


def launch(shape, ask=PLAIN):
    batch = make_batch([(40, 60)], shape)
    config = native.DEFAULT
    workspace = native.workspace(shape, Capacity.of(batch), config)
    native.launch(batch, ask.features(batch, 0), torch.empty_like(batch.query), config, workspace)


@pytest.mark.parametrize(
    ("shape", "ask", "named"),
    [
        (AttentionShape(8, 2, 264, 16, torch.bfloat16), PLAIN, "head_size 264"),
        (AttentionShape(8, 2, 128, 16, torch.float32), PLAIN, "dtype torch.float32"),
        (AttentionShape(8, 2, 192, 16, torch.bfloat16, None, E4M3), PLAIN, "head_size 192 over torch.float8_e4m3fn"),
        (AttentionShape(8, 2, 72, 16, torch.bfloat16, None, E4M3), PLAIN, r"strides \[\(2304, 144, 72, 1\)"),
        (AttentionShape(8, 2, 128, 16, torch.bfloat16, None, E4M3), Ask(scales="tokens"), "scales per token"),
        (AttentionShape(8, 2, 128, 16, torch.bfloat16, None, torch.int8), Ask(scales="tokens"), "int8_kv"),
        (AttentionShape(8, 2, 128, 16, torch.bfloat16), PLAIN, "device of a CPU"),
    ],
    ids=["head", "dtype", "fp8-head", "fp8-rows", "fp8-scales", "int8", "device"],
)
def test_what_it_does_not_do_is_refused_by_name_before_any_launch(shape, ask, named, monkeypatch):
    if "device" not in named:  # as on the GPU: only the shape is wrong
        monkeypatch.setattr("triton.knobs.runtime.interpret", False)
    with pytest.raises(UnsupportedFeature, match=named):
        launch(shape, ask)


@pytest.mark.parametrize(("head_size", "kv_dtype"), [(128, None), (96, None), (128, E4M3), (64, E4M3)])
@pytest.mark.parametrize("style", ["nhd", "hnd", "stacked", "interleaved"])
def test_a_box_begins_where_the_keys_are(style, head_size, kv_dtype):
    shape = AttentionShape(8, 2, head_size, 16, torch.bfloat16, None, kv_dtype)
    batch = make_batch([(40, 60)], shape, style=style)
    for cache in (batch.key_cache, batch.value_cache):
        descriptor, page_rows = native._boxes(cache, 16)
        rows, heads, lanes = descriptor.shape
        bytes_wide = descriptor.block_shape[2] * cache.element_size()
        assert (
            bytes_wide == descriptor.layout.swizzle_byte_width == min(128, cache.element_size() * tile_lanes(head_size))
        )
        assert (heads, lanes) == (2, head_size)  # what a box has behind them TMA fills with zeros, and does not store
        for page, slot, head in ((0, 0, 0), (1, 3, 1), (cache.shape[0] - 1, 15, 1)):
            at = page * page_rows + slot, head, 0
            offset = sum(place * step for place, step in zip(at, descriptor.strides, strict=True))
            assert offset == page * cache.stride(0) + slot * cache.stride(1) + head * cache.stride(2) and at[0] < rows


@pytest.mark.parametrize("style", ["nhd", "hnd", "overlapping"])
def test_boxes_end_with_the_last_slot_of_the_last_page(style):
    """TMA reads zeros behind the end."""
    rows = torch.arange(64 * 2 * 32, dtype=torch.bfloat16).view(64, 2, 32)
    cache = {
        "nhd": rows.view(4, 16, 2, 32),
        "hnd": rows.view(4, 2, 16, 32).transpose(1, 2),
        "overlapping": rows.unfold(0, 16, 1).movedim(-1, 1),  # a page begins a token behind the one before
    }[style]
    descriptor, _ = native._boxes(cache, 16)
    last_slot = (cache.shape[0] - 1) * cache.stride(0) + 15 * cache.stride(1)
    assert (descriptor.shape[0] - 1) * descriptor.strides[0] == last_slot


@pytest.mark.parametrize("kv_dtype", [None, E4M3])
def test_a_cache_without_pages_has_boxes(kv_dtype):
    cache = torch.empty((0, 16, 2, 64), dtype=kv_dtype or torch.bfloat16)
    descriptor, _ = native._boxes(cache, 16)
    assert descriptor.shape == [16, 2, 64] and descriptor.base.numel() == 16 * 2 * 64


@pytest.mark.parametrize(("head_size", "lanes"), [(8, 64), (64, 64), (72, 128), (96, 128), (136, 256), (256, 256)])
@pytest.mark.parametrize(("dtype", "least"), [(gl.bfloat16, 16), (gl.float8e4nv, 32)], ids=["16-bits", "8-bits"])
def test_a_tile_has_panels_for_all_lanes_and_products_skip_the_others(dtype, least, head_size, lanes):
    """A step of a tensor core sums 32 bytes of each row."""
    assert tile_lanes(head_size) == lanes and lanes % panel_lanes(dtype, head_size) == 0
    step = even_lanes(dtype, head_size)
    ends = [at + step for at in range(0, head_size, step)]
    assert step % least == 0 and lanes % step == 0 and head_size <= ends[-1] < head_size + least and ends[-1] <= lanes


@pytest.mark.parametrize(
    ("head_size", "lanes"),
    [
        (48, 64), (64, 64), (72, 80), (80, 80), (96, 96), (112, 128), (136, 144), (160, 160), (192, 192), (200, 256),
        (256, 256),
    ],
)  # fmt: skip
def test_sums_of_values_take_few_lanes_that_no_head_has(head_size, lanes):
    first, rest = sum_lanes(head_size), rest_lanes(head_size)
    assert first + rest == lanes and first % 64 == 0 and rest <= first  # the second product begins with a panel
    assert (first == OUT_LANES and rest > 0) == (head_size > OUT_LANES)  # as store_beside stores them
    assert all(part & (part - 1) == 0 for part in (first, rest))


@pytest.mark.parametrize("boxes", [1, 2, 4, 8], ids="{}-a-panel".format)
@pytest.mark.parametrize("head_size", range(320, 513, 64))
def test_each_box_of_a_chunk_has_one_loader_and_no_product_reads_another(head_size, boxes):
    first, rest = sum_lanes(head_size // 2), rest_lanes(head_size // 2)
    read = [sm90_wide.lanes_of(head_size, c) for c in range(sm90_wide.chunks_of(head_size))] + [first, rest]
    assert len(read) == sm90_wide.chunks_of_tile(head_size) <= sm90_wide.CHUNKS.value
    for c, lanes in enumerate(read):
        panels = sm90_wide.panels_of_chunk(head_size, c)
        own = [sm90_wide.own_boxes(loader, boxes, panels) for loader in range(sm90_wide.LOADERS.value)]
        assert sum(own) == boxes * panels and 64 * panels >= lanes > 64 * (panels - 1)
        assert not any(own[sm90_wide.announcing(boxes) :])


@pytest.mark.parametrize("ratio", [*range(1, 17), 20, 24, 32, 64, 71])
def test_what_arrives_at_once_lies_where_the_rows_of_a_q_block_are_computed(ratio):
    """Row r of 128 is head r % group of token r // group, of which a half's 64 lie panel by panel."""
    shape = AttentionShape(ratio, 1, 128, 16, torch.bfloat16)
    block_q, group = native.tokens_of_block(shape), ratio // native.head_groups(shape)
    tokens, heads = box_shape(group)
    n, arrived = 64 // (tokens * heads), {}
    assert tokens * heads >= 8  # rows of a tensor core's tile in shared memory
    for i in range(2 * n):
        half = i // n
        for r in range(tokens * heads):
            if fits_box(group):  # as sm90_load.load_queries asks TMA
                row = (half * (block_q // 2) + r // heads) * group + r % heads
            else:  # as sm90_load._copy_rows counts
                row = i * tokens + r
            arrived[half, i % n * tokens * heads + r] = row
    assert arrived == {(half, r): half * 64 + r for half in range(2) for r in range(64)}
    assert group * native.head_groups(shape) == ratio and 128 - group < block_q * group <= 128


@pytest.mark.parametrize(
    ("ratio", "tokens"), [(3, 42), (4, 32), (5, 25), (6, 21), (7, 18), (9, 14), (11, 11), (12, 10), (16, 8)]
)
def test_a_q_block_has_few_empty_rows(ratio, tokens):
    assert native.tokens_of_block(AttentionShape(ratio, 1, 128, 16, torch.bfloat16)) == tokens


@pytest.mark.parametrize(
    ("change", "boxed"),
    [
        (lambda x: x, True),
        (lambda x: torch.stack([x, x], 1).flatten(1, 2)[:, ::2], True),  # every second head of wider rows
        (lambda x: x.transpose(0, 1).contiguous().transpose(0, 1), True),  # head by head
        (lambda x: torch.cat([x, x[..., :8]], -1)[..., :128], True),
        (lambda x: torch.cat([x, x[..., :4]], -1)[..., :128], False),
        (lambda x: torch.cat([x.flatten(), x[0, 0, :1]])[1:].view_as(x), False),
        (lambda x: x[:1].expand(x.shape), False),
    ],
    ids=["plain", "of-more-heads", "by-heads", "padded", "padded-by-8-bytes", "shifted", "one-row"],
)
def test_which_queries_and_outputs_boxes_can_be_laid_over(change, boxed):
    batch = make_batch([(40, 60)], AttentionShape(8, 2, 128, 16, torch.bfloat16))
    changed = change(batch.query)
    assert native.is_boxed(batch.replace(query=changed), batch.query) == boxed
    assert native.is_boxed(batch, changed) == boxed
    if boxed:
        assert native._head_boxes(changed, 16, 1).strides[-1] == 1


@pytest.mark.parametrize(("heads", "boxed"), [((8, 2), True), ((7, 1), False)], ids=["boxes", "copies"])
def test_queries_far_apart_are_no_copies(heads, boxed):
    """A copy counts elements from its Q Block's first row on in 32 bits."""
    batch = make_batch([(2, 60)], AttentionShape(*heads, 128, 16, torch.bfloat16))
    far = torch.empty_strided(batch.query.shape, (2**26, 128, 1), dtype=torch.bfloat16, device="meta")
    assert native.is_boxed(batch.replace(query=far), batch.query) == boxed
    assert native.is_boxed(batch, batch.query)


def test_a_workspace_serves_the_batches_of_its_capacity():
    shape = AttentionShape(8, 2, 128, 16, torch.bfloat16)
    whole = native.workspace(shape, Capacity(300, 9, torch.device("cpu")), native.DEFAULT)
    for lens in ([(300, 400)], [(33, 40)] * 9, [(17, 17)] * 8 + [(164, 164)], [(1, 5)] * 9):
        own = native.workspace(shape, Capacity.of(make_batch(lens, shape, fill=False)), native.DEFAULT)
        assert own.plan.shape[0] <= whole.plan.shape[0]
    assert whole.counters.tolist() == [0] * COUNTERS


def test_a_slot_of_the_ring_has_place_for_an_items_fields_and_its_group():
    assert sm90_load.FIELDS.value == len(step_plan.FIELDS) < sm90_load.ENTRY.value
    assert sm90_load.FIELDS.value < sm90_load.STRIDE.value == step_plan.SIZE


def test_the_native_folder_is_in_a_column_of_its_own():
    assert KERNEL_ID not in registry.select("triton/*")
    assert registry.select("triton/native*") == (KERNEL_ID, "triton/native.auto")


@pytest.mark.parametrize(("lens", "segments"), [([(128, 8192)], 4), ([(512, 8192)], 1), ([(8192, 8192)], 1)], ids=str)
def test_segments_fill_the_units_that_q_blocks_leave_idle(lens, segments):
    config, _ = registry.default_config(KERNEL_ID, native, AttentionShape(), BatchStats.of(lens), H200)
    assert config.prefill.num_segments == segments


@pytest.mark.parametrize(
    ("lens", "together"),
    [
        ([(512, 512)], True),  # nobody is short
        ([(512, 512), (500, 500)], True),
        ([(512, 512)] + [(4, 2000)] * 9, True),  # drafts beside a prompt, 16 tiles
        ([(2048, 2048)] * 4 + [(4, 100000)], False),  # 782
        ([(1, 3000)] * 3 + [(300, 300)], True),  # 24 tiles
        ([(1, 90000)] * 3 + [(300, 300)], False),  # 704, in six segments 118
        ([(1, 4000)] * 128 + [(512, 4000)], True),  # decodes that fill the units
        ([(1, 52000)] * 38 + [(91, 91)] * 11, True),  # decodes that are 2.3 items a unit
        ([(4, 3000)] * 9, True),
    ],
    ids=["prompt", "prompts", "drafts-beside", "long-drafts", "short-decodes", "long-decodes", "many-decodes",
         "many-long-decodes", "drafts"],
)  # fmt: skip
def test_short_queries_are_items_where_a_launch_beside_takes_longer(lens, together):
    assert (
        sm90_config.default(LLAMA, BatchStats.of(lens), H200, EVERY_KEY, parallel_softmax.DEFAULT).together == together
    )


@pytest.mark.parametrize(("lens", "segments"), [([(11, 4800)] * 2, 8), ([(8, 1000)] * 200, 1)], ids=str)
def test_short_queries_are_split_where_units_are_left(lens, segments):
    config = sm90_config.default(LLAMA, BatchStats.of(lens), H200, EVERY_KEY, parallel_softmax.DEFAULT)
    assert config.prefill.num_segments == segments


# products of a first tile's scores, a masked and a plain step of scores and values, the last tile's values
@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.parametrize(
    ("shape", "ask", "segments", "products"),
    [
        (AttentionShape(), PLAIN, 1, 8 + 16 + 16 + 8),
        (AttentionShape(32, 2, 128, 8, torch.float16), PLAIN, 3, 8 + 16 + 16 + 8),
        (AttentionShape(6, 2, 128, 24), PLAIN, 1, 8 + 16 + 16 + 8),
        (AttentionShape(), Ask(sinks="some"), 3, 8 + 16 + 16 + 8),
        (AttentionShape(14, 2, 64), Ask(sliding_window=1000), 3, 4 + 3 * (4 + 8) + 8),
        (AttentionShape(32, 8, 96, 16, torch.bfloat16), PLAIN, 1, 6 + 22 + 22 + 16),
        (AttentionShape(32, 8, 256, 16, torch.bfloat16), PLAIN, 1, 16 + 24 + 24 + 8),
        (AttentionShape(10, 1, 160, 16, torch.bfloat16), PLAIN, 1, 10 + 18 + 18 + 8),
        (AttentionShape(32, 4, 512, 16, torch.bfloat16), PLAIN, 1, 32 + 40 + 40 + 8),
        (AttentionShape(7, 1, 320, 64, torch.bfloat16), Ask(sliding_window=1000), 2, 20 + 3 * 28 + 8),
        (AttentionShape(32, 8, 128, 16, torch.bfloat16, None, E4M3), Ask(scales="heads"), 1, 8 + 16 + 16 + 8),
        (AttentionShape(32, 8, 128, 16, E4M3, None, E4M3), Ask(scales="one"), 3, 4 + 12 + 12 + 8),
        (AttentionShape(14, 2, 80, 16, E4M3, None, E4M3), PLAIN, 1, 3 + 19 + 19 + 16),
    ],
    ids=["llama", "16-heads-in-parts", "3-heads", "sinks-in-parts", "7-heads-window-parts", "head-96", "head-256",
         "10-heads-160", "head-512", "7-heads-320-window-parts", "fp8", "fp8-query-in-parts", "fp8-query-7-heads-80"],
)  # fmt: skip
def test_it_compiles_for_sm90_and_its_loop_keeps_everything_in_registers(compiled, shape, ask, segments, products):
    prefill = dataclasses.replace(native.DEFAULT.prefill, num_segments=segments)
    config = registry.config_dict(dataclasses.replace(native.DEFAULT, prefill=prefill))
    job = compilation(KERNEL_ID, ((512, 512),), shape, config, ask=ask, lse=segments > 1)
    (outcome,) = compiled(H200, job)
    assert outcome.status == "ok", outcome.reason
    facts = next(fact for fact in outcome.facts if "sm90" in fact["kernel"])
    assert sum(facts["matrix"].values()) == 2 * products  # of both halves
    loops = [loop for loop in facts["loops"] if loop["matrix"]]
    # with 224 registers for 240, or heads of 512, Triton keeps some words of a masked tile elsewhere, none of another
    few = shape.quantised or shape.head_size > 256
    assert not any(loop["spill_traffic"] for loop in (loops[-2:] if few else loops))
