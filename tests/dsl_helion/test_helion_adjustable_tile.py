"""Tiles against pages, forms against each other, and who serves which query: adjustable_tile beyond the named cases."""

import itertools

import helion
import pytest
import torch

from common import gpus
from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.kernel import Capacity
from common.spec.metadata import SHORT_QUERY, BatchStats
from dsl_helion import adjustable_tile, parallel_softmax
from dsl_helion.adjustable_tile import Config, Prefill
from dsl_helion.binding import fits
from dsl_helion.heuristics.generic import default
from dsl_helion.page_runs import gather_form
from far_caches import apart

PAGES = (16, 24, 48, 64, 128, 528, 544, 784)
LARGEST = 256  # keys of a tile that the kernel allows
EVERY_DAY = {"page-16-equal", "page-24-larger", "page-64-smaller", "page-784-across"}


def tiles(page: int) -> dict[str, int]:
    """A tile smaller than the page, equal to it where it is a power of two, larger; across pages that are larger."""
    above = helion.next_power_of_2(page + 1)
    smaller = {"smaller": 16} if page > 16 else {}
    equal = {"equal": page} if above == 2 * page else {}
    return smaller | equal | ({"larger": above} if above <= LARGEST else {"across": 64})


TILES = [
    pytest.param(page, size, id=name, marks=() if name in EVERY_DAY else pytest.mark.slow)
    for page in PAGES
    for name, size in ((f"page-{page}-{how}", size) for how, size in tiles(page).items())
]


def run(batch: PagedBatch, features: Features, prefill: Prefill) -> tuple[torch.Tensor, torch.Tensor]:
    """The long queries alone: the short ones are parallel_softmax's."""
    out = torch.full_like(batch.query, float("nan"))
    lse = torch.full(batch.query.shape[:2], float("nan"))
    adjustable_tile.attend_long_queries(batch, features, out, prefill, lse)
    return out, lse


def judge(batch: PagedBatch, features: Features, found: tuple[torch.Tensor, torch.Tensor]) -> None:
    verdict = check(*found, batch, features, adjustable_tile.CONTRACT, reference(batch, features))
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize(("page", "tile"), TILES)
def test_any_tile_over_any_page_is_right(page: int, tile: int) -> None:
    features = Features(sliding_window=90) if page > 128 else Features()
    batch = make_batch([(17, 2 * page + 9)], AttentionShape(2, 1, 16, page, torch.float32))
    judge(batch, features, run(batch, features, Prefill(64, tile, "run")))


@pytest.mark.slow
@pytest.mark.parametrize("others", [("flat",), ("2idx", "page")])
def test_all_forms_agree_to_the_bit(others: tuple[str, ...]) -> None:
    batch = make_batch([(17, 100)], AttentionShape(4, 2, 16, 48, torch.float16), style="interleaved")
    first = run(batch, Features(sliding_window=50), Prefill(64, 32, "run"))
    for other in others:
        assert all(map(torch.equal, first, run(batch, Features(sliding_window=50), Prefill(64, 32, other))))


@pytest.mark.parametrize(
    ("page", "head", "value", "tile", "expected"),
    [
        (16, 32, 32, 64, ("page", 0)),
        (16, 32, 32, 16, ("slice", 0)),
        (128, 80, 80, 64, ("slice", 0)),
        (784, 32, 32, 64, ("run", 16)),
        (128, 32, 32, 256, ("run", 64)),
        (24, 80, 80, 64, ("flat", 24)),
        (16, 32, 40, 64, ("flat", 16)),
        (784, 32, 40, 64, ("flat", 784)),
    ],
)
def test_runs_take_the_form_that_applies(
    page: int, head: int, value: int, tile: int, expected: tuple[str, int]
) -> None:
    batch = make_batch([(1, 9)], AttentionShape(2, 1, head, page, torch.float16, value_size=value))
    assert gather_form("run", batch, tile) == expected


@pytest.mark.parametrize("tile", [16, pytest.param(32, marks=pytest.mark.slow)], ids=["slice", "run"])
def test_pages_beyond_32_bits_of_elements_are_found(tile: int) -> None:
    batch = make_batch([(17, 60)], AttentionShape(2, 1, 16, 48, torch.float16), spare_pages=3)
    moved = batch.replace(key_cache=apart(batch.key_cache, 2**29, 16), value_cache=apart(batch.value_cache, 2**29, 16))
    assert int(batch.block_table[0, :2].max()) == 4
    prefill = Prefill(64, tile, "run")
    assert all(map(torch.equal, run(moved, Features(), prefill), run(batch, Features(), prefill)))


@pytest.mark.parametrize("asked", ["run", "page"])
def test_slots_beyond_32_bits_of_elements_take_another_form(asked: str) -> None:
    batch = make_batch([(1, 9)], AttentionShape(2, 1, 16, 8, torch.float16))
    moved = batch.replace(key_cache=apart(batch.key_cache, 16, 2**29), value_cache=apart(batch.value_cache, 16, 2**29))
    assert gather_form(asked, moved, 16) == ("2idx", 0)


def test_the_border_is_between_16_and_17_query_tokens_and_each_side_writes_its_own_rows() -> None:
    queries = (15, 16, 17, 1)
    batch = make_batch([(n, n + 9) for n in queries], AttentionShape(2, 1, 16, 16, torch.float32), pad_tokens=2)
    long = torch.tensor([n > SHORT_QUERY for n in queries]).repeat_interleave(torch.tensor(queries))
    long = torch.cat([long, torch.zeros(2, dtype=torch.bool)])
    alone, lse = run(batch, Features(), Prefill(16, 16))
    assert torch.equal(~alone.isnan().all(-1).all(-1), long) and torch.equal(~lse.isnan().all(-1), long)
    config = Config(Prefill(16, 16), parallel_softmax.Config(16, 32, 2))
    out, lse = torch.full_like(alone, float("nan")), torch.full_like(lse, float("nan"))
    workspace = adjustable_tile.workspace(batch.shape, Capacity.of(batch), config)
    adjustable_tile.launch(batch, Features(), out, config, workspace, lse=lse)
    judge(batch, Features(), (out, lse))
    assert torch.equal(alone[long], out[long]) and bool(out[-2:].isnan().all())


@pytest.mark.parametrize(("tokens", "launches"), [(SHORT_QUERY, 0), (SHORT_QUERY + 1, 1)])
def test_a_batch_of_few_tokens_launches_no_prefill(tokens: int, launches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(adjustable_tile, "attend_long_queries", lambda *_: seen.append("long"))
    monkeypatch.setattr(parallel_softmax, "attend_segments", lambda *_: seen.append("short"))
    batch = make_batch([(1, 9)] * tokens, AttentionShape(2, 1, 16, 16, torch.float16))
    workspace = adjustable_tile.workspace(batch.shape, Capacity.of(batch), Config())
    adjustable_tile.launch(batch, Features(), torch.empty_like(batch.query), Config(), workspace)
    assert seen == ["long"] * launches + ["short"]


@pytest.mark.parametrize("head", [64, 80, 256])
def test_the_space_holds_every_part_that_fits_and_nothing_else(head: int) -> None:
    for gpu in map(gpus.resolve, ("h200", "mi300")):
        shape = AttentionShape(32, 8, head)
        configs = list(adjustable_tile.space(shape, gpu))
        parts = {config.prefill for config in configs}, {config.decode for config in configs}
        assert len(set(configs)) == len(configs) == max(map(len, parts))
        assert parts[1] == set(parallel_softmax.space(shape, gpu))
        assert all(fits(prefill, shape, gpu) for prefill in parts[0])
        assert {p.gather for p in parts[0]} >= {"run", "flat", "2idx"}


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
        assert fits(config.prefill, shape, gpu) and 1 <= config.decode.num_segments <= 128
        assert 16 <= config.decode.tile_size <= 256
