"""Un-paged prefill: the scratch holds what it must and no more, and a launch reads nothing else of it."""

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from calls import assert_right, unwritten
from common.cases.ask import Ask, with_scales
from common.cases.batch import make_batch
from common.cases.fills import INVISIBLE
from common.choice.legal import value_parts
from common.gpus import resolve
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity
from compare.competitors import registry
from compilations import compilation
from dsl_helion import binding, head_parts, unpaged
from dsls import in_helion, slow_in_helion

SHAPE = AttentionShape(4, 2, 16, 16, torch.float32)
LENS = [(20, 50), (0, 3), (17, 17), (19, 70)]
SPANS = torch.tensor([[[40, 44]], [[0, 0]], [[2, 9]], [[20, 55]]], dtype=torch.int32)  # the last begins left of it


def config(unpaged: ModuleType, **changes: Any) -> Any:
    """Tiles of 16 keys, below 16 rows or Helion's 32; other fields of its prefill."""
    rows = {"dsl_triton.unpaged": 16, "dsl_helion.unpaged": 32}[unpaged.__name__]
    return unpaged.Config(
        unpaged.Prefill(**{"block_m": rows, "tile_size": 16, "copy_programs": 3} | changes), unpaged.DEFAULT.decode
    )


def poisoned(unpaged: ModuleType, batch: PagedBatch, num_keys: int, **changes: Any) -> Any:
    """A workspace for `num_keys` keys of long queries, full of NaN."""
    capacity = dataclasses.replace(Capacity.of(batch), num_keys=num_keys)
    scratch = unpaged.workspace(batch.shape, capacity, config(unpaged, **changes))
    for tensor in (scratch.key, scratch.value, scratch.scales):
        tensor.fill_(float("nan"))
    return scratch


def judge(
    dsl,
    batch: PagedBatch,
    features: Features,
    num_keys: int = 200,
    meant: PagedBatch | None = None,
    **changes: Any,
) -> None:
    """The long queries alone: the short ones' launch has tests of its own. meant: what `batch` is, without its NaN."""
    meant, unpaged = meant or batch, dsl.module("unpaged")
    out, lse = unwritten(batch)
    scratch = poisoned(unpaged, batch, num_keys, **changes)
    unpaged.attend_unpaged(batch, features, out, config(unpaged, **changes).prefill, scratch, lse)
    assert_right(out, lse, meant, features, unpaged.CONTRACT)


@pytest.mark.parametrize(
    ("features", "new_kv"),
    [
        slow_in_helion((Features(sliding_window=19), True)),
        slow_in_helion((Features(causal=False), True)),
        slow_in_helion((Features(causal=False), False)),
    ],
    ids=["window-new", "non-causal-new", "non-causal-copied"],
)
def test_a_scratch_full_of_nan_changes_nothing(dsl, features: Features, new_kv: bool) -> None:
    judge(dsl, make_batch(LENS, SHAPE, new_kv=new_kv, pad_tokens=3), features, new_kv=new_kv)


@pytest.mark.slow_in_helion
def test_new_keys_are_read_in_place_of_pages_where_no_context_is_expected(dsl) -> None:
    """A prompt without a context reads none of its pages, one with it none of its new keys."""
    batch = make_batch(LENS, SHAPE, new_kv=True)
    for new in (batch.key, batch.value):
        new[:20] = new[37:] = float("nan")
    for block in batch.block_table[2, :2].tolist():  # of the prompt without context
        batch.key_cache[block] = batch.value_cache[block] = float("nan")
    judge(dsl, batch, Features(), meant=make_batch(LENS, SHAPE, new_kv=True), new_kv=True)


@pytest.mark.slow_in_helion
def test_new_keys_are_not_read_where_a_context_is_expected(dsl) -> None:
    batch = make_batch(LENS, SHAPE, new_kv=True)
    for new in (batch.key, batch.value):
        new.fill_(float("nan"))
    judge(dsl, batch, Features())


@pytest.mark.slow_in_helion
def test_sequences_beyond_the_scratch_are_read_through_their_pages(dsl) -> None:
    """There is room for the first sequence."""
    judge(dsl, make_batch(LENS, SHAPE), Features(), 16)


@pytest.mark.slow_in_helion
@pytest.mark.parametrize("new_kv", [False, True], ids=["copied", "new"])
def test_segments_of_a_long_context_are_merged(dsl, new_kv: bool) -> None:
    """Three segments of 70 keys, one of the prompt of 17, whose rows nobody merges; room for the first sequence."""
    sinks = Features(sinks=torch.tensor([1.0, -1.0, 0.0, 3.0]))
    judge(dsl, make_batch(LENS, SHAPE, new_kv=new_kv), sinks, 60, num_segments=3, new_kv=new_kv)


@pytest.mark.slow_in_helion
@pytest.mark.parametrize(("lanes", "num_keys"), [(512, 200), (320, 16)], ids=["copied", "paged"])
def test_values_of_many_lanes_are_summed_in_parts(dsl, lanes: int, num_keys: int) -> None:
    """128 rows of 320 lanes and more fill more registers than four warps have. Segments of all parts are merged."""
    shape = AttentionShape(4, 2, lanes, 16, torch.float32)
    assert len(value_parts(128, 16, 4 * 32, lanes)) == 2
    sinks = Features(sinks=torch.tensor([1.0, -1.0, 0.0, 3.0]))
    batch = make_batch(LENS, shape, new_kv=True, pad_tokens=3)
    judge(dsl, batch, sinks, num_keys, block_m=128, num_segments=2, new_kv=True)


@pytest.mark.parametrize(
    ("lanes", "first"), [(64, 0), (96, 64), (160, 128), (256, 0), (320, 256), (448, 0), (512, 256)]
)
def test_tiles_of_k_that_no_box_of_helion_holds_are_two(lanes: int, first: int) -> None:
    shape = AttentionShape(4, 2, lanes, 16, torch.bfloat16)
    assert head_parts.first_lanes(shape, torch.device("cpu")) == first


@pytest.mark.slow
def test_tiles_of_heads_of_512_lanes_come_by_boxes_in_helion(compiled) -> None:
    """As one tile K came by loads of 16 bytes, and each product waited for the one before: 71 waits a tile."""
    prefill = dataclasses.replace(unpaged.DEFAULT.prefill, block_m=128, tile_size=32, num_warps=8)
    config = registry.config_dict(dataclasses.replace(unpaged.DEFAULT, prefill=prefill))
    shape = AttentionShape(32, 4, 512, 16, torch.bfloat16)
    (outcome,) = compiled(resolve("h200"), compilation("helion/unpaged", [(2048, 2048)] * 4, shape, config))
    launches = [facts for facts in outcome.facts if "_unpaged" in facts["kernel"]]
    loops = [loop for facts in launches for loop in facts["loops"] if loop["matrix"]]
    assert len(launches) == 2 and all(loop["loads"] == {"tma": 3} and loop["waits"] < 20 for loop in loops)


@pytest.mark.parametrize(
    ("lanes", "num_keys", "new_kv"),
    [(96, 60, False), (96, 200, True), (80, 60, False), (192, 60, False)],
    ids=["96-copied-and-paged", "96-new", "80-copied-and-paged", "192-copied-and-paged"],
)
@pytest.mark.slow_in_helion  # adjustable_tile meets a head of two parts every day
def test_a_head_is_multiplied_in_two_parts(dsl, lanes: int, num_keys: int, new_kv: bool) -> None:
    """64 or 128 lanes and the rest, of whichever source; the segments of both parts are merged."""
    batch = make_batch(LENS, AttentionShape(4, 2, lanes, 16, torch.float16), new_kv=True, pad_tokens=3)
    sinks = Features(sinks=torch.tensor([1.0, -1.0, 0.0, 3.0]))
    judge(dsl, batch, sinks, num_keys, new_kv=new_kv, num_segments=3)


@pytest.mark.slow_in_helion
def test_a_head_in_parts_is_copied_out_of_8_bits(dsl) -> None:
    batch = make_batch(LENS, AttentionShape(4, 2, 96, 16, torch.bfloat16, kv_dtype=torch.int8))
    features = with_scales(Features(), batch, Ask(scales="tokens"), torch.Generator().manual_seed(1))
    judge(dsl, batch, features, 60)


@pytest.mark.slow_in_helion
def test_short_queries_are_served_beside(dsl) -> None:
    unpaged, batch = dsl.module("unpaged"), make_batch([(1, 9), (20, 30), (3, 0)], SHAPE)
    out = torch.full_like(batch.query, float("nan"))
    unpaged.launch(batch, Features(), out, config(unpaged), poisoned(unpaged, batch, 64))
    assert_right(out, None, batch, Features(), unpaged.CONTRACT)


@pytest.mark.parametrize("new_kv", [False, True], ids=["pages", "new-kv"])
@pytest.mark.parametrize("spans", [None, SPANS], ids=["window", "spans"])
@pytest.mark.slow_in_helion
def test_keys_before_a_window_may_hold_anything(dsl, spans: torch.Tensor | None, new_kv: bool) -> None:
    """They lie in a copied tile, whose V is loaded whole: the copy leaves them out."""
    batch = make_batch(LENS, SHAPE, new_kv=True, pad_tokens=3)
    features = Features(sliding_window=19, spans=spans)
    INVISIBLE["unseen-nan"](batch, features)
    judge(dsl, batch, features, new_kv=new_kv)


@pytest.mark.parametrize("num_keys", [200, 60], ids=["copied", "the-last-through-its-pages"])
@pytest.mark.parametrize("cache", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
@pytest.mark.slow_in_helion
def test_scales_per_token_are_copied_beside_their_keys(dsl, cache: torch.dtype, num_keys: int) -> None:
    batch = make_batch(LENS, dataclasses.replace(SHAPE, kv_dtype=cache, head_size=64))
    features = with_scales(Features(sliding_window=33), batch, Ask(scales="tokens"), torch.Generator().manual_seed(1))
    judge(dsl, batch, features, num_keys)


def test_regions_are_whole_tiles_one_behind_the_other(dsl) -> None:
    """20 of 50, 17 of 17 and 19 of 70 query tokens: 4, 2 and 5 tiles of 16 keys, zeros behind each last key."""
    unpaged, batch = dsl.module("unpaged"), make_batch(LENS, SHAPE)
    scratch = poisoned(unpaged, batch, 200)
    tiles = scratch.key.shape[0] // 32
    copy = dsl.module("copy_pages").copy_pages
    copy(batch, Features(), scratch.key, scratch.value, (None, None), tiles, config(unpaged).prefill)
    for cache, copied in ((batch.key_cache, scratch.key), (batch.value_cache, scratch.value)):
        rows = copied.view(SHAPE.num_kv_heads, -1, SHAPE.head_size)
        at = 0
        for seq, tiles in ((0, 4), (2, 2), (3, 5)):
            seq_len = int(batch.seq_lens[seq])
            position = torch.arange(seq_len)
            keys = cache[batch.block_table[seq].long()[position // 16], position % 16].transpose(0, 1)
            assert torch.equal(rows[:, at : at + seq_len], keys)
            assert not rows[:, at + seq_len : at + 16 * tiles].any()
            at += 16 * tiles
        assert bool(rows[:, at:].isnan().all())


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU with tensor descriptors, as far as Helion's code is concerned; the code that it generates."""
    from helion._compat import _supports_tensor_descriptor  # noqa: F401  the name must exist
    from helion.autotuner.config_spec import ConfigSpec
    from helion.runtime.kernel import BoundKernel

    code, generate, supports = [], BoundKernel.to_triton_code, ConfigSpec.supports_config_key

    def to_triton_code(self: BoundKernel, *args: object, **options: object) -> str:
        code.append(generate(self, *args, **options))
        return code[-1]

    monkeypatch.setattr("helion._compat._supports_tensor_descriptor", lambda: True)
    monkeypatch.setattr(
        ConfigSpec, "supports_config_key", lambda self, key: key == "host_tensor_descriptors" or supports(self, key)
    )
    monkeypatch.setattr(BoundKernel, "to_triton_code", to_triton_code)
    monkeypatch.setattr(unpaged, "_unpaged", binding.kernel(unpaged._unpaged_kernel))
    monkeypatch.setattr(binding, "_compiled", {})
    return code


@in_helion
@pytest.mark.slow_in_helion
def test_blocks_of_descriptors_are_the_same_keys(dsl, described: list[str]) -> None:
    batch = make_batch(LENS, SHAPE, new_kv=True, pad_tokens=3)
    for new_kv in (False, True):
        judge(dsl, batch, Features(sliding_window=19), new_kv=new_kv)
    attention = [text.count("desc.load(") for text in described if "_unpaged_kernel" in text]
    assert attention == [4, 4]  # copied and new: K and V, without and with a mask


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Addresses of every element that a kernel has loaded."""
    from triton.runtime.interpreter import InterpreterBuilder

    addresses, load = [], InterpreterBuilder.create_masked_load

    def create_masked_load(self: object, ptrs: Any, mask: Any, *rest: object) -> object:
        live = np.broadcast_to(mask.data.astype(bool), ptrs.data.shape)
        addresses.append(torch.from_numpy(ptrs.data[live].astype(np.int64)))
        return load(self, ptrs, mask, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", create_masked_load)
    return addresses


def amid_nan(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy of [tokens, heads, lanes] with 64 rows of NaN on both sides, and all of it."""
    whole = torch.full((tensor.shape[0] + 128, *tensor.shape[1:]), float("nan"), dtype=tensor.dtype)
    whole[64:-64] = tensor
    return whole[64:-64], whole


@in_helion
@pytest.mark.parametrize("tile_size", [16, 32, 64])
@pytest.mark.parametrize("features", [Features(sliding_window=9), Features(causal=False)], ids=["window", "non-causal"])
@pytest.mark.slow_in_helion
def test_no_tile_of_the_new_keys_reaches_beyond_them(
    dsl, features: Features, tile_size: int, read: list[torch.Tensor]
) -> None:
    """37 rows of heads without descriptors: the last prompt's last tile of 16 or 32 keys would end 15 rows behind them,
    and begins earlier, of 32 among rows of another. Of 64 keys the rows are no tile, so they are copied."""
    batch = make_batch(LENS[:3], dataclasses.replace(SHAPE, head_size=80), new_kv=True)
    batch.key[:20] = batch.value[:20] = float("nan")  # of a sequence with context, whose pages count
    (key, keys), (value, values) = amid_nan(batch.key), amid_nan(batch.value)
    batch = dataclasses.replace(batch, key=key, value=value)
    judge(dsl, batch, features, tile_size=tile_size, new_kv=True)
    at = torch.cat(read)
    for inner, whole in ((key, keys), (value, values)):
        near = at[(at >= whole.data_ptr()) & (at < whole.data_ptr() + whole.nbytes)]
        assert bool(len(near)) == (tile_size <= len(key))
        outside = (near < inner.data_ptr()) | (near >= inner.data_ptr() + inner.nbytes)
        assert not outside.any()
