"""What kernels owe beyond the named cases: refusals, empty batches, bitwise relations, odd configs."""

import dataclasses

import pytest
import torch

from calls import judged, launched
from common.cases.batch import make_batch
from common.cases.named import BY_NAME
from common.spec import AttentionShape, Features, SpecError
from dsl_helion.ablations import idiomatic
from dsl_helion.q_block import Config as HelionConfig
from dsls import in_helion, slow_in_helion
from kernel_cases import conform

KERNELS = ("naive", "q_block", "parallel_softmax", "split")
SHAPE = AttentionShape(8, 2, 32, 16, torch.float32)
LENS = [(1, 90), (3, 40), (20, 20)]


@pytest.mark.parametrize("name", KERNELS)
def test_an_output_of_another_dtype_is_refused(dsl, name: str) -> None:
    batch, kernel = make_batch(LENS, SHAPE), dsl.module(name)
    with pytest.raises(SpecError, match="out"):
        kernel.launch(batch, Features(), batch.query.half(), kernel.DEFAULT, None)


@in_helion
@pytest.mark.parametrize("gather", ["page", "flat", "2idx"])
@pytest.mark.slow_in_helion
def test_every_gather_form_is_right_under_a_window(dsl, gather: str) -> None:
    batch = make_batch(LENS, SHAPE, style="interleaved")
    judged(dsl.module("q_block"), batch, Features(sliding_window=19), HelionConfig(16, 32, gather))


@pytest.mark.parametrize(
    "name", ["q_block", "parallel_softmax", "unpaged", *map(slow_in_helion, ["split", "static_grid"])]
)
def test_caches_of_equal_sizes_and_other_distances_are_told_apart(dsl, name: str) -> None:
    """One after the other in one process: a kernel that holds the distance of pages once served the next layout too."""
    kernel = dsl.module(name)
    for style in ("stacked", "interleaved", "nhd", "hnd"):
        judged(kernel, make_batch(LENS, SHAPE, style=style), Features(), kernel.DEFAULT)


@pytest.mark.parametrize(
    ("page", "tile_size", "lanes"),
    [(64, 128, 64), *map(slow_in_helion, [(64, 64, 64), (64, 32, 64), (32, 128, 32), (128, 64, 16), (192, 128, 64)])],
)
@pytest.mark.parametrize("name", ["parallel_softmax", slow_in_helion("adjustable_tile")])
def test_segments_have_the_tiles_that_their_merge_counts(dsl, name: str, page: int, tile_size: int, lanes: int) -> None:
    """However pages, tiles and lanes divide each other: segments and merge deal a sequence by one size of tiles."""
    batch = make_batch([(1, 256), (1, 300), (1, 40)], AttentionShape(2, 1, lanes, page, torch.float16))
    kernel, pages = dsl.module(name), {"triton": "run", "helion": "page"}[dsl.name]
    alone = dsl.module("parallel_softmax").DEFAULT
    short = dataclasses.replace(alone, tile_size=tile_size, num_segments=4, gather=pages)
    config = short if name == "parallel_softmax" else dataclasses.replace(kernel.DEFAULT, decode=short)
    judged(kernel, batch, Features(), config)


@pytest.mark.parametrize(
    ("segments", "window", "tile_size", "gather"),
    [(1, None, 16, "key"), (2, 19, 32, "run"), (3, None, 32, "run"), (3, 19, 16, "key"), (8, None, 16, "key"),
     (8, 19, 32, "run")],
)  # fmt: skip
@pytest.mark.slow_in_helion
def test_any_number_of_segments_is_right(dsl, segments: int, window: int | None, tile_size: int, gather: str) -> None:
    """By both of Triton's gather forms, and by what is the default in Helion."""
    kernel = dsl.module("parallel_softmax")
    form = {"gather": gather} if dsl.name == "triton" else {}
    config = kernel.Config(16, tile_size, segments, **form)
    judged(kernel, make_batch(LENS, SHAPE), Features(sliding_window=window), config)


@pytest.mark.parametrize("grid", ["tokens", slow_in_helion("sequences")])
def test_both_grids_of_the_paper_are_right(dsl, grid: str) -> None:
    naive = dsl.module("naive")
    judged(naive, make_batch([(1, 30), (4, 20)], SHAPE), Features(), naive.Config(grid))
    batch = make_batch([(2, 20), (0, 3), (1, 1)], SHAPE, pad_tokens=2)
    judged(naive, batch, Features(causal=False, sliding_window=9), naive.Config(grid))


@pytest.mark.parametrize("causal", [True, slow_in_helion(False)], ids=["causal", "non-causal"])
@pytest.mark.parametrize("name", ["naive", *map(slow_in_helion, KERNELS[1:])])
def test_the_widest_window_is_no_window(dsl, name: str, causal: bool) -> None:
    """2^31 - 1 added to a position leaves int32."""
    batch = make_batch([(1, 30), (4, 20), (2, 0)], SHAPE)
    widest, plain = (
        launched(dsl.module(name), batch, Features(causal=causal, sliding_window=w)) for w in (2**31 - 1, None)
    )
    assert torch.equal(widest[0], plain[0]) and torch.equal(widest[1], plain[1])


ABLATED = (
    "one-empty-sequence",
    "query-128",
    "non-causal-with-window",
    "values-unseen-nan",
    "unaligned-and-odd-strides",
)


@in_helion
@pytest.mark.parametrize("case", ["everything-at-once", *map(slow_in_helion, ABLATED)])
def test_the_ablation_of_helion_alone_conforms(dsl, case: str) -> None:
    """A ratio of 5, one of 1, keys that no row sees, strides that only two indices reach."""
    conform(idiomatic, BY_NAME[case], idiomatic.DEFAULT)
