"""Registers of a launch are bounded where its programs need the places, and never below what the formula says."""

from collections import defaultdict

import numpy as np
import pytest

from common.choice import columns
from common.choice.learned import coarse
from common.choice.legal import register_bound, registers
from common.choice.portfolio import bounded
from common.gpus import REGISTER_STEP, REGISTERS, resolve
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from dsl_triton.auto import FAMILY

H200, SHAPE = resolve("h200"), AttentionShape()
SMALL = {"block_m": 16, "tile_size": 64, "num_warps": 4, "num_segments": 1, "registers": 0}
BOUND, PROGRAMS = register_bound(16, 64, 128, 128, 128)


def decodes(seqs, keys=2048):
    return BatchStats(seqs, seqs, seqs, 1, keys, seqs * keys)


def bound_of(programs, gpu=H200, **changed):
    batch = columns.batches([(SHAPE, decodes(8), gpu)])
    config = columns.configs([("parallel_softmax", SMALL | changed)], "triton")
    return int(bounded(batch, config, np.array([programs]))[0])


@pytest.mark.parametrize("warps", [2, 4, 8])
@pytest.mark.parametrize(
    "rows, tile, lanes", [(16, 32, 128), (16, 64, 64), (16, 64, 128), (32, 64, 128), (32, 128, 64)]
)
def test_a_bound_lets_its_programs_fit_and_is_no_less_than_the_formula(rows, tile, lanes, warps):
    bound, programs = register_bound(rows, tile, 32 * warps, lanes, lanes)
    if bound:
        assert programs * bound * 32 * warps <= REGISTERS < (programs + 1) * (bound + REGISTER_STEP) * 32 * warps
        assert bound >= registers(rows, tile, 32 * warps, lanes, lanes) - REGISTER_STEP


def test_only_a_launch_with_programs_for_all_places_is_bounded():
    most = int(PROGRAMS - 1) * H200.units
    assert [bound_of(programs) for programs in (1, most, most + 1, 16 * most)] == [0, 0, BOUND, BOUND]


def test_what_compilers_allocate_without_a_bound_stays():
    many = 2**20
    assert bound_of(many, num_warps=1) == 0
    assert bound_of(many, block_m=64) == 0, "a warp group's products"
    assert bound_of(many, registers=96) == 0, "one that a config names"
    assert [bound_of(many, resolve(name)) for name in ("mi300", "rx7900xtx")] == [0, 0]


def chosen(stats):
    config = FAMILY.choose(SHAPE, stats, H200).config
    return getattr(config, "decode", config)


def test_decodes_beside_prompts_have_the_bound_of_decodes_alone():
    alone = decodes(64, 8192)
    beside = BatchStats(65, 64 + 4096, 64, 4096, 8192, 65 * 8192)
    assert chosen(beside).registers == chosen(coarse(alone)).registers


def test_batches_that_share_a_ranking_share_their_registers():
    """Else a server meets code that its warm-up did not compile."""
    found = defaultdict(set)
    for seqs in range(1, 140):
        batch = decodes(seqs, keys=300)
        found[coarse(batch)].add(FAMILY.choose(SHAPE, batch, H200).config)
    assert {len(configs) for configs in found.values()} == {1}
    assert any(getattr(config, "registers", 0) for (config,) in found.values())
