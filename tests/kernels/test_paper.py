"""Listing 2 of the paper, cell by cell: the same sizes in both DSLs."""

import pytest

from common.gpus import resolve
from common.serving.listing2 import listing_2
from common.spec import AttentionShape
from common.spec.metadata import BatchStats


@pytest.mark.parametrize(
    ("gpu", "lens", "sizes"),
    [
        ("h100", [(1, 4096)], (16, 32)),
        ("h100", [(4096, 4096)], (64, 32)),  # the listing's <= and >= overlap at 4096
        ("h100", [(5000, 5000)], (64, 64)),
        ("h100", [(9000, 9000), (1, 300)], (64, 64)),
        ("h100", [(6000, 6000), (1, 300)], (16, 32)),
        ("mi300", [(5000, 5000)], (16, 32)),
    ],
)
def test_listing_2(dsl, gpu, lens, sizes):
    stats, listing2 = BatchStats.of(lens), dsl.module("heuristics.paper.listing2")
    assert listing_2(stats, resolve(gpu)) == sizes
    config = listing2.q_block(AttentionShape(), stats, resolve(gpu))
    assert (config.block_m, config.tile_size) == sizes


def test_prompts_are_not_dealt_to_segments(dsl):
    h100, shape, listing2 = resolve("h100"), AttentionShape(), dsl.module("heuristics.paper.listing2")
    assert listing2.parallel_softmax(shape, BatchStats.of([(500, 500)]), h100).num_segments == 1
    assert listing2.parallel_softmax(shape, BatchStats.of([(1, 500)]), h100).num_segments > 1
