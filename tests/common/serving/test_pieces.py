"""Registers of a launch are bounded where its programs need the places, and never below what the formula says."""

import dataclasses
from collections import defaultdict

import pytest

from common.choice.learned import coarse
from common.choice.legal import register_bound, registers
from common.gpus import REGISTER_STEP, REGISTERS, resolve
from common.serving.pieces import bounded
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from dsl_triton import parallel_softmax, unpaged
from dsl_triton.auto import FAMILY

H200, SHAPE = resolve("h200"), AttentionShape()
SMALL = dataclasses.replace(parallel_softmax.DEFAULT, block_m=16, tile_size=64, num_warps=4)


def decodes(seqs, keys=2048):
    return BatchStats(seqs, seqs, seqs, 1, keys, seqs * keys)


@pytest.mark.parametrize("warps", [2, 4, 8])
@pytest.mark.parametrize(
    "rows, tile, lanes", [(16, 32, 128), (16, 64, 64), (16, 64, 128), (32, 64, 128), (32, 128, 64)]
)
def test_a_bound_lets_its_programs_fit_and_is_no_less_than_the_formula(rows, tile, lanes, warps):
    bound, programs = register_bound(rows, tile, 32 * warps, lanes, lanes)
    if bound:
        assert programs * bound * 32 * warps <= REGISTERS < (programs + 1) * (bound + REGISTER_STEP) * 32 * warps
        assert bound >= registers(rows, tile, 32 * warps, lanes, lanes) - REGISTER_STEP


def test_products_of_a_warp_group_and_programs_of_one_warp_have_no_bound():
    assert register_bound(64, 64, 128, 128, 128) == (0, 0)
    alone = dataclasses.replace(SMALL, num_warps=1)
    assert bounded(alone, SHAPE, decodes(4096), H200) == alone


def test_only_a_launch_with_programs_for_all_places_is_bounded():
    bound, programs = register_bound(16, 64, 128, 128, 128)
    most = (programs - 1) * H200.units // SHAPE.num_kv_heads
    for seqs, wanted in ((1, 0), (most, 0), (most + 1, bound), (16 * most, bound)):
        assert bounded(dataclasses.replace(SMALL, num_segments=1), SHAPE, decodes(seqs), H200).registers == wanted


def test_decodes_beside_prompts_are_counted_alone_and_a_bound_that_is_there_stays():
    config = dataclasses.replace(unpaged.DEFAULT, decode=dataclasses.replace(SMALL, num_segments=4))
    many = dataclasses.replace(decodes(65), num_decodes=64, num_tokens=64 + 4096, max_query_len=4096)
    few = dataclasses.replace(many, num_decodes=1)
    assert bounded(config, SHAPE, many, H200).decode.registers == register_bound(16, 64, 128, 128, 128)[0]
    assert bounded(config, SHAPE, few, H200) == config
    own = dataclasses.replace(SMALL, registers=96)
    assert bounded(own, SHAPE, decodes(512), H200) == own


def test_drafts_count_the_q_blocks_of_their_tokens():
    drafts = BatchStats(30, 30 * 16, 0, 16, 4096, 30 * 4096)
    alone = dataclasses.replace(SMALL, num_segments=1)
    assert not bounded(alone, SHAPE, decodes(30), H200).registers
    assert bounded(alone, SHAPE, drafts, H200).registers, "sixteen tokens of four heads are four Q Blocks of 16 rows"


def test_batches_that_share_a_ranking_share_their_registers():
    """Else a server meets code that its warm-up did not compile."""
    found = defaultdict(set)
    for seqs in range(1, 140):
        batch = decodes(seqs, keys=300)
        found[coarse(batch)].add(FAMILY.choose(SHAPE, batch, H200).config)
    assert {len(configs) for configs in found.values()} == {1}
    assert any(getattr(config, "registers", 0) for (config,) in found.values())
