"""What a choice knows: counts of programs, tiles and bytes as kernels cut them, and what fits."""

import itertools

import numpy as np
import pytest

from common.choice import columns, cost, legal
from common.choice.table import table, width
from common.gpus import resolve
from common.spec import AttentionShape
from common.spec.metadata import BatchStats

H200 = resolve("h200")
SHAPE = AttentionShape(32, 8, 128, 16)
DECODES = BatchStats(8, 8, 8, 1, 2048, 8 * 2048)
PROMPT = BatchStats(1, 2048, 0, 2048, 2048, 2048)
MIXED = BatchStats(9, 8 + 512, 8, 512, 2048, 9 * 2048)


def launches(stats, kernel, shape=SHAPE, **config):
    made = columns.configs([(kernel, config)], "triton")
    return columns.launches(columns.batches([(shape, stats, H200)]), made)


def test_a_decode_has_a_program_a_sequence_kv_head_and_segment():
    long, short = launches(DECODES, "parallel_softmax", block_m=16, tile_size=64, num_segments=4)
    assert (long.programs[0], short.programs[0]) == (0, 8 * 8 * 4)
    assert (short.span[0], short.tiles[0]) == (2048 / 64 / 4, 8 * 8 * 2048 / 64)


def test_no_segment_is_without_a_tile():
    _, short = launches(DECODES, "parallel_softmax", block_m=16, tile_size=1024, num_segments=64)
    assert short.programs[0] == 8 * 8 * 2


def test_a_prompt_has_a_q_block_a_token_group_and_half_of_its_square():
    long, _ = launches(PROMPT, "q_block", block_m=64, tile_size=64)
    blocks = 2048 * 4 / 64
    assert long.programs[0] == blocks * 8
    assert long.tiles[0] == pytest.approx(blocks * 8 * (2048 / 64 / 2), rel=0.1)


def test_queries_of_both_kinds_are_two_launches():
    config = {"prefill": {"block_m": 64, "tile_size": 64}, "decode": {"block_m": 16, "num_segments": 2}}
    long, short = launches(MIXED, "adjustable_tile", **config)
    assert (long.programs[0], short.programs[0]) == (512 * 4 / 64 * 8, 8 * 8 * 2)


def test_waves_are_whole_where_programs_are_more_than_slots():
    _, short = launches(DECODES, "parallel_softmax", block_m=16, tile_size=16, num_segments=128, num_warps=8)
    slots = short.held[0] * H200.units
    assert short.waves[0] == np.ceil(short.programs[0] / slots)


def test_only_unpaged_copies_and_only_segments_leave_parts():
    batch = columns.batches([(SHAPE, MIXED, H200)])
    part = {"block_m": 64, "tile_size": 64, "num_segments": 1}
    cut = {"prefill": part, "decode": part | {"num_segments": 2}}
    one = columns.moved_us(batch, columns.configs([("adjustable_tile", {"prefill": part, "decode": part})], "triton"))
    two = columns.moved_us(batch, columns.configs([("unpaged", cut)], "triton"))
    assert one[1:] == (0, 0) and two[1] > 0 and two[2] > 0 and one[0] == two[0]


@pytest.mark.parametrize(("kernel", "launch", "since"), [
    ("unpaged", 0, 1), ("adjustable_tile", 0, 1), ("parallel_softmax", 0, 0),
    ("unpaged", 1, 0), ("adjustable_tile", 1, 0), ("parallel_softmax", 1, 0), ("q_block", 1, -1),
])  # fmt: skip
def test_a_head_in_parts_has_no_lanes_of_zeros_unless_its_log_is_older(kernel, launch, since):
    part = {"block_m": 64, "tile_size": 64}
    config = {"prefill": part, "decode": part} | part
    us = [
        launches(MIXED, kernel, AttentionShape(32, 8, 96, 16), **config, whole_heads=older)[launch].products_us[0]
        for older in (0, 1, 2)
    ]
    whole = launches(MIXED, kernel, AttentionShape(32, 8, 128, 16), **config)[launch].products_us[0]
    assert us == pytest.approx([whole * (96 / 128 if older <= since else 1) for older in (0, 1, 2)])


def test_a_table_is_finite_for_any_candidate_and_wide_as_said():

    shapes = [SHAPE, AttentionShape(128, 16, 80, 24), AttentionShape(8, 1, 512, 16), AttentionShape(8, 8, 64, 128)]
    kernels = [("q_block", {}), ("unpaged", {"prefill": {"gather": "page"}, "decode": {"registers": 128}})]
    batch = columns.batches([(shape, stats, H200) for shape in shapes for stats in (DECODES, PROMPT, MIXED)])
    wide = {name: value[:, None] for name, value in batch.items()}
    made = {name: value[None, :] for name, value in columns.configs(kernels, "triton").items()}
    found = table(wide, made, np.ones(len(cost.TERMS)))
    assert found.shape == (len(shapes) * 3 * len(kernels), width()) and np.isfinite(found).all()


@pytest.mark.parametrize("gpu", ["h200", "l40s", "mi300"])
def test_of_many_candidates_fits_what_fits_of_one(gpu):
    gpu, found = resolve(gpu), set()
    for shape in (SHAPE, AttentionShape(8, 1, 256, 16), AttentionShape(4, 4, 512, 16), AttentionShape(4, 4, 8, 16)):
        batch = columns.batches([(shape, DECODES, gpu)])
        for rows, tile, warps, stages in itertools.product((16, 64, 128), (32, 128, 256), (1, 8), (1, 3, 6)):
            part = {"block_m": rows, "tile_size": tile, "num_warps": warps, "num_stages": stages}
            of_many = legal.fits(batch, columns.configs([("q_block", part | {"gather": "run"})], "triton"), "long_")[0]
            assert of_many == legal.fits_one(rows, tile, warps, stages, shape, gpu), (shape, part)
            found.add(bool(of_many))
    assert found == {True, False}


def test_probabilities_take_shared_memory_where_no_wgmma_reads_them_from_registers():
    """64 rows by 64 keys of 256 lanes in two stages: 96 KiB, and P 8 KiB, which an L40S of 99 KiB lacks."""
    shape = AttentionShape(16, 8, 256, 16)
    assert not legal.fits_one(64, 64, 4, 2, shape, resolve("l40s")) and legal.fits_one(
        64, 32, 4, 2, shape, resolve("l40s")
    )
    assert [legal.staged_rows(resolve(gpu)) for gpu in ("h200", "mi300", "a100")] == [64, 0, np.inf]


def test_warps_of_a_prompt_that_stage_p_have_8_keys_each():
    """Where V has more lanes than there are rows Triton deals a tile's keys to the warps: of 32 to eight, twice."""
    shape = AttentionShape(32, 8, 256, 16)
    fits = [
        legal.fits_one(128, tile, 8, 1, shape, resolve(gpu), dense=True)
        for gpu in ("a100", "h200")
        for tile in (32, 64)
    ]
    assert fits == [False, True, True, True]


def test_a_program_of_unpaged_sums_as_many_values_as_registers_hold():
    """Heads of 512 in Q Blocks of 128 rows: two launches of 256 lanes, twice the programs, each with all scores."""
    assert legal.value_parts(128, 32, 8 * 32, 512) == (slice(0, 256), slice(256, 512))
    assert legal.value_parts(128, 32, 8 * 32, 320) == (slice(0, 256), slice(256, 320))
    assert legal.value_parts(64, 32, 4 * 32, 512) == (slice(0, 512),)  # which does not fit
    assert legal.value_parts(128, 64, 8 * 32, 256) == (slice(0, 256),)
    shape, part = AttentionShape(32, 4, 512, 16), {"block_m": 128, "tile_size": 32, "num_warps": 8, "num_stages": 2}
    batch, kernels = columns.batches([(shape, PROMPT, H200)]), ("adjustable_tile", "unpaged")
    whole, parts = (columns.configs([(name, {"prefill": part, "decode": part})], "triton") for name in kernels)
    assert not legal.fits(batch, whole, "long_")[0] and legal.fits(batch, parts, "long_")[0]
    one, two = (columns.launches(batch, made)[0] for made in (whole, parts))
    assert two.programs == 2 * one.programs and two.products_us == pytest.approx(one.products_us * 3 / 4)
    assert two.filled <= legal.FILLED < one.filled


def test_a_block_of_keys_that_products_read_is_not_loaded_meanwhile():
    """From 64 rows on, as many tiles are in shared memory as stages; of gathered keys one fewer."""
    shape, part = AttentionShape(16, 8, 256, 16), (64, 64, 8, 4)
    assert legal.fits_one(*part, shape, H200) and not legal.fits_one(*part, shape, H200, dense=True)
    assert legal.fits_one(32, *part[1:], shape, H200, dense=True)


def test_addresses_of_a_tile_that_is_read_by_keys_fill_registers():
    """Of 64 rows and heads of 256 lanes in four warps; of fewer rows a tile of K is there itself."""
    batch = columns.batches([(AttentionShape(32, 8, 256), BatchStats(9, 45, 0, 5, 4096, 9 * 4096), H200)])
    part = {"block_m": 64, "tile_size": 64, "num_warps": 4, "num_stages": 2}
    for name, changed, held in [
        ("run", {}, True), ("key", {}, False), ("key", {"num_warps": 8}, True), ("key", {"block_m": 32}, True),
    ]:  # fmt: skip
        one = columns.configs([("parallel_softmax", part | changed | {"gather": name})], "triton")
        assert legal.fits(batch, one, "short_")[0] == held, (name, changed)
    flat = columns.configs([("parallel_softmax", part | {"gather": "flat"})], "helion")
    assert not legal.fits(batch, flat, "short_")[0]
