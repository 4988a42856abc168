"""Tiles against pages, forms against each other, and who serves which query: adjustable_tile beyond the named cases."""

import pytest
import torch
import triton

from calls import assert_right, judged, unwritten
from common import gpus
from common.cases.batch import make_batch
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity, count_parts
from common.spec.metadata import SHORT_QUERY, BatchStats
from compare.competitors import registry
from dsl_helion.page_runs import gather_form
from dsl_triton.binding import cache_strides
from dsl_triton.page_runs import run_length
from dsls import in_helion, in_triton
from far_caches import apart

PAGES = (16, 24, 48, 64, 128, 528, 544, 784)
LARGEST = 256  # keys of a tile that Helion's kernel allows
EVERY_DAY = {"page-24-larger", "page-784-across"}  # in Helion
OTHERS = {"triton": ("key",), "helion": ()}  # forms that serve any page; Helion's have a test of their own


def tiles(page: int) -> dict[str, int]:
    """A tile smaller than the page, equal to it where it is a power of two, larger; across pages that are large."""
    above = triton.next_power_of_2(page + 1)
    smaller = {"smaller": 16} if page > 16 else {}
    equal = {"equal": page} if above == 2 * page else {}
    return smaller | equal | {"larger": above} | ({"across": 64} if above > LARGEST else {})


NAMED = [(page, tile, f"page-{page}-{how}") for page in PAGES for how, tile in tiles(page).items()]
TILES = [pytest.param("triton", page, tile, id=f"triton-{name}") for page, tile, name in NAMED] + [
    pytest.param("helion", page, tile, id=f"helion-{name}", marks=() if name in EVERY_DAY else pytest.mark.slow)
    for page, tile, name in NAMED
    if tile <= LARGEST
]


def run(dsl, batch: PagedBatch, features: Features, *prefill) -> tuple[torch.Tensor, torch.Tensor]:
    """The long queries alone: the short ones are parallel_softmax's. prefill: fields of the config's Prefill."""
    module = dsl.module("adjustable_tile")
    out, lse = unwritten(batch)
    module.attend_long_queries(batch, features, out, module.Prefill(*prefill), lse)
    return out, lse


def whole(dsl, batch: PagedBatch, features: Features, *prefill) -> tuple[torch.Tensor, torch.Tensor]:
    """The launch of all queries, judged."""
    module = dsl.module("adjustable_tile")
    config = module.Config(module.Prefill(*prefill), dsl.module("parallel_softmax").Config(16, 32, 2))
    return judged(module, batch, features, config)


def judge(dsl, batch: PagedBatch, features: Features, found: tuple[torch.Tensor, torch.Tensor]) -> None:
    contract = dsl.module("adjustable_tile").CONTRACT
    assert_right(*found, batch, features, contract)


@pytest.mark.parametrize(("dsl", "page", "tile"), TILES, indirect=["dsl"])
@pytest.mark.slow_in_helion
def test_any_tile_over_any_page_is_right(dsl, page: int, tile: int) -> None:
    features = Features(sliding_window=90) if page > 128 else Features()
    batch = make_batch([(17, 2 * page + 9)], AttentionShape(2, 1, 16, page, torch.float32))
    by_runs = run(dsl, batch, features, 64, tile, "run")
    judge(dsl, batch, features, by_runs)
    for other in OTHERS[dsl.name]:
        assert all(map(torch.equal, by_runs, run(dsl, batch, features, 64, tile, other))), other


PARTS = [
    pytest.param(dsl, head, gather, id=f"{dsl}-{head}-{gather}", marks=pytest.mark.slow if slow else ())
    for dsl, head, gather, slow in (
        ("triton", 80, "run", False),
        ("triton", 96, "key", False),
        ("triton", 96, "run", False),
        ("triton", 160, "run", False),
        ("triton", 192, "key", True),
        ("helion", 80, "run", False),
        ("helion", 96, "flat", True),
        ("helion", 96, "2idx", True),
        ("helion", 192, "run", True),
    )
]


@pytest.mark.parametrize(("dsl", "head", "gather"), PARTS, indirect=["dsl"])
def test_a_head_of_two_parts_is_right(dsl, head: int, gather: str) -> None:
    """Of two query heads a KV head, with what scores and sums need of both parts."""
    shape = AttentionShape(4, 2, head, 16, torch.float32)
    batch = make_batch([(17, 60), (40, 40)], shape)
    features = Features(sliding_window=30, softcap=20.0, sinks=torch.linspace(-1.0, 1.0, 4))
    judge(dsl, batch, features, run(dsl, batch, features, 64, 32, gather))


@pytest.mark.parametrize(
    ("head", "value", "stored", "parts"),
    [
        (96, None, torch.float16, True),
        (80, None, torch.float16, True),
        (160, None, torch.float16, True),
        (192, None, torch.float16, True),
        (72, None, torch.float16, False),
        (112, None, torch.float16, False),
        (128, None, torch.float16, False),
        (320, None, torch.float16, False),
        (96, 64, torch.float16, False),
        (96, None, torch.int8, False),
    ],
    ids=["96", "80", "160", "192", "72", "112", "128", "320", "value-of-64", "8-bits"],
)
def test_which_heads_have_two_parts(head: int, value: int | None, stored: torch.dtype, parts: bool) -> None:
    shape = AttentionShape(2, 1, head, 16, torch.float16, value_size=value, kv_dtype=stored)
    batch = make_batch([(1, 9)], shape)
    assert count_parts(batch, Features()) == 1 + parts


@in_triton
@pytest.mark.parametrize(
    ("page", "tile", "asked", "expected"),
    [
        (16, 64, "run", 16),
        (128, 64, "run", 64),
        (24, 64, "run", 8),
        (784, 64, "run", 16),
        (544, 32, "run", 32),
        (16, 64, "key", 1),
    ],
)
def test_a_run_is_the_largest_power_of_two_in_page_and_tile(
    dsl, page: int, tile: int, asked: str, expected: int
) -> None:
    batch = make_batch([(1, 9)], AttentionShape(2, 1, 16, page, torch.float16))
    assert run_length(asked, batch, tile) == expected


@in_helion
@pytest.mark.parametrize(
    ("page", "head", "value", "tile", "expected"),
    [
        (16, 32, 32, 64, ("page", 0)),
        (16, 32, 32, 16, ("slice", 0)),
        (128, 80, 80, 64, ("slice", 0)),
        (784, 32, 32, 64, ("run", 16)),
        (128, 32, 32, 256, ("run", 32)),  # runs of 64 would make the tile one of 64
        (24, 80, 80, 64, ("flat", 24)),
        (16, 32, 40, 64, ("flat", 16)),
        (784, 32, 40, 64, ("flat", 784)),
    ],
)
def test_runs_take_the_form_that_applies(
    dsl, page: int, head: int, value: int, tile: int, expected: tuple[str, int]
) -> None:
    batch = make_batch([(1, 9)], AttentionShape(2, 1, head, page, torch.float16, value_size=value))
    assert gather_form("run", batch, tile) == expected


@in_triton
@pytest.mark.parametrize(
    ("page", "slot", "length"), [(2**29, 16, 8), (16, 2**29, 1)], ids=["pages-far-apart", "slots-far-apart"]
)
def test_offsets_beyond_32_bits_are_found(dsl, page: int, slot: int, length: int) -> None:
    batch = make_batch([(17, 30)], AttentionShape(2, 1, 16, 8, torch.float16), spare_pages=1)
    moved = batch.replace(
        key_cache=apart(batch.key_cache, page, slot), value_cache=apart(batch.value_cache, page, slot)
    )
    assert int(batch.block_table[0].max()) == 4 and run_length("run", moved, 16) == length
    assert all(map(torch.equal, run(dsl, moved, Features(), 64, 16), run(dsl, batch, Features(), 64, 16)))


@in_helion
@pytest.mark.parametrize("asked", ["run", "page"])
def test_slots_beyond_32_bits_of_elements_take_another_form(dsl, asked: str) -> None:
    batch = make_batch([(1, 9)], AttentionShape(2, 1, 16, 8, torch.float16))
    moved = batch.replace(key_cache=apart(batch.key_cache, 16, 2**29), value_cache=apart(batch.value_cache, 16, 2**29))
    assert gather_form(asked, moved, 16) == ("2idx", 0)


@in_triton
@pytest.mark.parametrize("tile", [16, 64])
def test_value_may_lie_otherwise_than_key(dsl, tile: int) -> None:
    batch = make_batch([(17, 70)], AttentionShape(4, 2, 16, 32, torch.float16))
    assert cache_strides(batch)[1] is None
    apart = batch.replace(value_cache=batch.value_cache.transpose(1, 2).contiguous().transpose(1, 2))
    assert cache_strides(apart) == (apart.key_cache.stride(), apart.value_cache.stride())
    assert all(map(torch.equal, run(dsl, apart, Features(), 64, tile), run(dsl, batch, Features(), 64, tile)))


@pytest.mark.slow_in_helion
def test_the_border_is_between_16_and_17_query_tokens_and_each_side_writes_its_own_rows(dsl) -> None:
    queries = (15, 16, 17, 1, 18)
    batch = make_batch([(n, n + 9) for n in queries], AttentionShape(2, 1, 16, 16, torch.float32), pad_tokens=2)
    long = torch.tensor([n > SHORT_QUERY for n in queries]).repeat_interleave(torch.tensor(queries))
    long = torch.cat([long, torch.zeros(2, dtype=torch.bool)])
    alone, lse = run(dsl, batch, Features(), 16, 16)
    assert torch.equal(~alone.isnan().all(-1).all(-1), long) and torch.equal(~lse.isnan().all(-1), long)
    out, _ = whole(dsl, batch, Features(), 16, 16)
    assert torch.equal(alone[long], out[long]) and bool(out[-2:].isnan().all())


@pytest.mark.parametrize(("tokens", "launches"), [(SHORT_QUERY, 0), (SHORT_QUERY + 1, 1)])
def test_a_batch_of_few_tokens_launches_no_prefill(
    dsl, tokens: int, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, module = [], dsl.module("adjustable_tile")
    monkeypatch.setattr(module, "attend_long_queries", lambda *_: seen.append("long"))
    monkeypatch.setattr(dsl.module("parallel_softmax"), "attend_segments", lambda *_: seen.append("short"))
    batch = make_batch([(1, 9)] * tokens, AttentionShape(2, 1, 16, 16, torch.float16))
    workspace = module.workspace(batch.shape, Capacity.of(batch), module.Config())
    module.launch(batch, Features(), torch.empty_like(batch.query), module.Config(), workspace)
    assert seen == ["long"] * launches + ["short"]


GATHERS = {"triton": {"run", "key"}, "helion": {"run", "flat"}}


@pytest.mark.parametrize("head", [64, 80, 256])
def test_the_space_holds_every_part_that_fits_and_nothing_else(dsl, head: int) -> None:
    module = dsl.module("adjustable_tile")
    for gpu in map(gpus.resolve, ("h200", "mi300", "mi250")):
        shape = AttentionShape(32, 8, head)
        configs = list(module.space(shape, gpu))
        parts = {config.prefill for config in configs}, {config.decode for config in configs}
        assert len(set(configs)) == len(configs) == max(map(len, parts))
        assert parts[1] == set(dsl.module("parallel_softmax").space(shape, gpu)) and len(parts[0]) >= 40
        assert all(dsl.fits(prefill, shape, gpu) for prefill in parts[0])
        found = {prefill.gather for prefill in parts[0]}
        assert found >= GATHERS[dsl.name] and (dsl.name == "helion" or found == GATHERS[dsl.name])


@pytest.mark.parametrize("kernel", ["adjustable_tile", "unpaged"])
def test_no_reduction_is_launched_where_no_short_query_is_expected(dsl, kernel) -> None:
    family, h200 = registry.load(f"{dsl.name}/auto").FAMILY, gpus.resolve("h200")
    config = family.named(kernel, AttentionShape(), BatchStats.of([(8192, 8192)]), h200, "learned").config
    assert config.decode.num_segments == 1
