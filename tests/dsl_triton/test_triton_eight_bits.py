"""What the heuristics choose for decodes over a cache of 8 bits: where, and right on every named case of 8 bits."""

from dataclasses import replace

import pytest

from common import gpus
from common.spec.metadata import BatchStats
from dsl_triton import parallel_softmax
from dsl_triton.heuristics.generic import default, eight_bits
from eight_bit_cases import DECODES, SHAPE, STORED
from kernel_cases import conform

H200 = gpus.resolve("h200")
CHOSEN = eight_bits.decode(SHAPE, DECODES, H200)


@pytest.mark.parametrize("case", STORED, ids=lambda case: case.name)
def test_every_stored_case_is_right(case) -> None:
    conform(parallel_softmax, case, replace(CHOSEN, num_segments=3, overlap=False))


def test_a_cache_of_16_bits_is_read_as_before() -> None:
    wide = replace(SHAPE, kv_dtype=None)
    assert default.parallel_softmax(wide, DECODES, H200).num_warps == 4


@pytest.mark.parametrize("lens", [[(1, 1024)], [(1, 700)] * 256, [(8, 4096)] * 32], ids=["one", "short", "many-rows"])
def test_only_long_decodes_take_one_warp(lens: list) -> None:
    assert default.parallel_softmax(SHAPE, DECODES, H200) == CHOSEN
    assert default.parallel_softmax(SHAPE, BatchStats.of(lens), H200).num_warps == 4


def test_few_and_very_many_sequences_take_segments_of_their_own() -> None:
    batches = [(1, 32768)], [(1, 8192)] * 8, [(1, 4096)] * 256, [(1, 1024)] * 256
    assert [eight_bits.decode(SHAPE, BatchStats.of(lens), H200).num_segments for lens in batches] == [66, 16, 3, 1]


def test_no_gpu_that_was_not_measured_takes_it() -> None:
    takes = {name for name in gpus.TABLE if eight_bits.decode(SHAPE, DECODES, gpus.resolve(name))}
    assert takes == {name for name in gpus.TABLE if gpus.resolve(name).arch == "sm_90"}
