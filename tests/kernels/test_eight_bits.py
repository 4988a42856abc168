"""What the heuristics choose for decodes over a cache of 8 bits: where, and right on every named case of 8 bits."""

from dataclasses import replace

import pytest

from common import gpus
from common.serving.rules import Situation
from common.spec.metadata import BatchStats
from eight_bit_cases import DECODES, SHAPE, STORED
from kernel_cases import conform

H200 = gpus.resolve("h200")


DAILY = STORED[::3]  # tests/conformance has every case of 8 bits every day, by another config
CASES = [pytest.param(case, id=case.name, marks=() if case in DAILY else pytest.mark.slow) for case in STORED]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow_in_helion
def test_every_stored_case_is_right(dsl, case) -> None:
    chosen = dsl.module("heuristics.generic.eight_bits").decode(Situation(SHAPE, DECODES, H200))
    plain = {"overlap": False} if dsl.name == "triton" else {}
    conform(dsl.module("parallel_softmax"), case, replace(chosen, num_segments=3, **plain))


def test_a_cache_of_16_bits_is_read_as_before(dsl) -> None:
    wide = replace(SHAPE, kv_dtype=None)
    assert dsl.module("heuristics.generic.default").parallel_softmax(wide, DECODES, H200).num_warps == 4


@pytest.mark.parametrize("lens", [[(1, 1024)], [(1, 700)] * 256, [(9, 4096)] * 32], ids=["one", "short", "many-rows"])
def test_only_long_decodes_take_one_warp(dsl, lens: list) -> None:
    choose = dsl.module("heuristics.generic.default").parallel_softmax
    eight_bits = dsl.module("heuristics.generic.eight_bits")
    assert choose(SHAPE, DECODES, H200) == eight_bits.decode(Situation(SHAPE, DECODES, H200))
    assert choose(SHAPE, BatchStats.of(lens), H200).num_warps == 4


def test_few_and_very_many_sequences_take_segments_of_their_own(dsl) -> None:
    batches = [(1, 32768)], [(1, 8192)] * 8, [(1, 4096)] * 256, [(1, 1024)] * 256
    eight_bits = dsl.module("heuristics.generic.eight_bits")
    assert [eight_bits.decode(Situation(SHAPE, BatchStats.of(lens), H200)).num_segments for lens in batches] == [
        64,
        16,
        3,
        1,
    ]


def test_no_gpu_that_was_not_measured_takes_it(dsl) -> None:
    eight_bits = dsl.module("heuristics.generic.eight_bits")
    takes = {name for name in gpus.TABLE if eight_bits.decode(Situation(SHAPE, DECODES, gpus.resolve(name)))}
    assert takes == {name for name in gpus.TABLE if gpus.resolve(name).arch == "sm_90"}
