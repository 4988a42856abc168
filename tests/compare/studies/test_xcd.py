"""Bytes per die of an MI300: worked out by hand where programs are few."""

import torch

from common.spec import AttentionShape
from compare.studies import dies
from compare.workloads import Ask, Workload

KEY = 2 * 128 * 2  # bytes of a key and its value


def _row(lens, kv_heads=8, window=None):
    shape = AttentionShape(4 * kv_heads, kv_heads, 128, 16, torch.bfloat16)
    return Workload("row", lens, shape, Ask(sliding_window=window))


def test_eight_kv_heads_fastest_are_one_die_each():
    """Every Q Block of a head lands on the head's die: nothing is fetched twice."""
    row = _row(((512, 512),))
    read = dies.traffic(dies.prompts(row, {"block_m": 128}), row)
    assert read.distinct == 8 * 512 * KEY and read.each == (512 * KEY,) * 8
    assert read.amplification == 1.0


def test_one_kv_head_is_read_by_every_die_until_neighbours_share_one():
    """16 Q Blocks of 32 tokens on one head: block i sees 32 (i + 1) keys; launched last first."""
    row = _row(((512, 512),), kv_heads=1)
    programs = dies.prompts(row, {"block_m": 128})
    before, after = dies.traffic(programs, row), dies.traffic(dies.remapped(programs), row)
    assert before.each == tuple(32 * (16 - die) * KEY for die in range(8))
    assert after.each == tuple(32 * (16 - 2 * die) * KEY for die in range(8))
    assert after.amplification < before.amplification


def test_a_remap_moves_programs_and_loses_none():
    row = _row(((33, 70), (1, 5), (16, 16)), kv_heads=3)
    programs = dies.prompts(row, {"block_m": 16})
    moved = dies.remapped(programs)
    key = repr
    assert sorted(moved, key=key) == sorted(programs, key=key)
    assert moved[::8] == programs[: len(moved[::8])], "the first die has the first programs"


def test_segments_cover_every_key_once():
    row = _row(((1, 1000), (1, 70), (40, 40)))
    programs = dies.segments(row, {"block_m": 16, "tile_size": 32, "num_segments": 4})
    assert dies.traffic(programs, row).distinct == 8 * 1070 * KEY, "the prompt of 40 tokens is another launch's"
    assert sum(one.end - one.begin for one in programs) == 8 * 1070


def test_a_window_trims_what_is_read():
    row = _row(((1, 1000),), window=100)
    assert dies.traffic(dies.prompts(row, {"block_m": 16}), row).distinct == 8 * 100 * KEY
