"""Tiles against pages, runs against keys, and who serves which query: adjustable_tile beyond the named cases."""

import itertools

import pytest
import torch
import triton

from common import gpus
from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity
from common.spec.metadata import SHORT_QUERY, BatchStats
from dsl_triton import adjustable_tile, parallel_softmax
from dsl_triton.adjustable_tile import Config, Prefill
from dsl_triton.binding import fits
from dsl_triton.heuristics.generic import default
from dsl_triton.page_runs import run_length, value_strides
from far_caches import apart

PAGES = (16, 24, 48, 64, 128, 528, 544, 784)
DECODE = parallel_softmax.Config(16, 32, 2)


def tiles(page: int) -> dict[str, int]:
    """A tile smaller than the page, equal to it where it is a power of two, and larger."""
    above = triton.next_power_of_2(page + 1)
    smaller = {"smaller": 16} if page > 16 else {}
    return smaller | ({"equal": page} if above == 2 * page else {}) | {"larger": above}


TILES = [pytest.param(page, size, id=f"page-{page}-{name}") for page in PAGES for name, size in tiles(page).items()]


def run(batch: PagedBatch, features: Features, prefill: Prefill) -> tuple[torch.Tensor, torch.Tensor]:
    config = Config(prefill, DECODE)
    out = torch.full_like(batch.query, float("nan"))
    lse = torch.full(batch.query.shape[:2], float("nan"))
    workspace = adjustable_tile.workspace(batch.shape, Capacity.of(batch), config)
    adjustable_tile.launch(batch, features, out, config, workspace, lse=lse)
    return out, lse


def judge(batch: PagedBatch, features: Features, found: tuple[torch.Tensor, torch.Tensor]) -> None:
    verdict = check(*found, batch, features, adjustable_tile.CONTRACT, reference(batch, features))
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize(("page", "tile"), TILES)
def test_any_tile_over_any_page_is_right_by_runs_and_by_keys(page: int, tile: int) -> None:
    features = Features(sliding_window=90) if page > 128 else Features()
    batch = make_batch([(17, 2 * page + 9)], AttentionShape(2, 1, 16, page, torch.float32))
    by_runs, by_keys = (run(batch, features, Prefill(64, tile, gather)) for gather in ("run", "key"))
    judge(batch, features, by_runs)
    assert all(map(torch.equal, by_runs, by_keys))


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
def test_a_run_is_the_largest_power_of_two_in_page_and_tile(page: int, tile: int, asked: str, expected: int) -> None:
    batch = make_batch([(1, 9)], AttentionShape(2, 1, 16, page, torch.float16))
    assert run_length(asked, batch, tile) == expected


@pytest.mark.parametrize(
    ("page", "slot", "length"), [(2**29, 16, 8), (16, 2**29, 1)], ids=["pages-far-apart", "slots-far-apart"]
)
def test_offsets_beyond_32_bits_are_found(page: int, slot: int, length: int) -> None:
    batch = make_batch([(17, 30)], AttentionShape(2, 1, 16, 8, torch.float16), spare_pages=1)
    moved = batch.replace(
        key_cache=apart(batch.key_cache, page, slot), value_cache=apart(batch.value_cache, page, slot)
    )
    assert int(batch.block_table[0].max()) == 4 and run_length("run", moved, 16) == length
    prefill = Prefill(64, 16, "run")
    assert all(map(torch.equal, run(moved, Features(), prefill), run(batch, Features(), prefill)))


@pytest.mark.parametrize("tile", [16, 64])
def test_value_may_lie_otherwise_than_key(tile: int) -> None:
    batch = make_batch([(17, 70)], AttentionShape(4, 2, 16, 32, torch.float16))
    assert value_strides(batch) is None
    apart = batch.replace(value_cache=batch.value_cache.transpose(1, 2).contiguous().transpose(1, 2))
    assert value_strides(apart) == apart.value_cache.stride()
    prefill = Prefill(64, tile)
    assert all(map(torch.equal, run(apart, Features(), prefill), run(batch, Features(), prefill)))


def test_the_border_is_between_16_and_17_query_tokens_and_each_side_writes_its_own_rows() -> None:
    queries = (15, 16, 17, 1, 18)
    batch = make_batch([(n, n + 9) for n in queries], AttentionShape(2, 1, 16, 16, torch.float32), pad_tokens=2)
    long = torch.tensor([n > SHORT_QUERY for n in queries]).repeat_interleave(torch.tensor(queries))
    long = torch.cat([long, torch.zeros(2, dtype=torch.bool)])
    out, lse = torch.full_like(batch.query, float("nan")), torch.full(batch.query.shape[:2], float("nan"))
    adjustable_tile.attend_long_queries(batch, Features(), out, Prefill(16, 16), lse)
    assert torch.equal(~out.isnan().all(-1).all(-1), long) and torch.equal(~lse.isnan().all(-1), long)
    whole = run(batch, Features(), Prefill(16, 16))
    judge(batch, Features(), whole)
    assert torch.equal(whole[0][long], out[long]) and bool(whole[0][-2:].isnan().all())


@pytest.mark.parametrize(("tokens", "launches"), [(SHORT_QUERY, 0), (SHORT_QUERY + 1, 1)])
def test_a_batch_of_few_tokens_launches_no_prefill(tokens: int, launches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(adjustable_tile, "attend_long_queries", lambda *_: seen.append(1))
    run(make_batch([(1, 9)] * tokens, AttentionShape(2, 1, 16, 16, torch.float16)), Features(), Prefill())
    assert len(seen) == launches


@pytest.mark.parametrize("head", [64, 80, 256])
def test_the_space_holds_every_part_that_fits_and_nothing_else(head: int) -> None:
    for gpu in map(gpus.resolve, ("h200", "mi300", "mi250")):
        shape = AttentionShape(32, 8, head)
        configs = list(adjustable_tile.space(shape, gpu))
        parts = {config.prefill for config in configs}, {config.decode for config in configs}
        assert len(set(configs)) == len(configs) == max(map(len, parts))
        assert parts[1] == set(parallel_softmax.space(shape, gpu)) and len(parts[0]) >= 40
        assert all(fits(p.block_m, p.tile_size, p.num_warps, p.num_stages, shape, gpu) for p in parts[0])
        assert {p.gather for p in parts[0]} == {"run", "key"}


BATCHES = {
    "one-decode": [(1, 131072)],
    "prompt": [(8192, 8192)],
    "mixed": [(1, 2048)] * 16 + [(512, 1536)] * 16,
    "verify": [(4, 4096)] * 32,
    "empty": [],
}


@pytest.mark.parametrize("lens", BATCHES.values(), ids=BATCHES)
def test_every_default_choice_fits(lens: list) -> None:
    sizes = itertools.product((8, 64, 80, 128, 256), (16, 128, 784), (torch.bfloat16, torch.float32))
    for (head, page, dtype), gpu in itertools.product(sizes, map(gpus.resolve, gpus.TABLE)):
        shape = AttentionShape(32, 8, head, page, dtype)
        config = default.adjustable_tile(shape, BatchStats.of(lens), gpu)
        for part in (config.prefill, config.decode):
            assert fits(part.block_m, part.tile_size, part.num_warps, part.num_stages, shape, gpu)
        assert 1 <= config.decode.num_segments <= 128


def test_no_reduction_is_launched_where_no_short_query_is_expected() -> None:
    h200 = gpus.resolve("h200")
    chosen = {name: default.adjustable_tile(AttentionShape(), BatchStats.of(BATCHES[name]), h200) for name in BATCHES}
    assert {name for name in chosen if chosen[name].decode.num_segments == 1} == {"prompt", "empty"}
