"""ptxas 12.8.93 forgets where a V of fewer lanes than K begins; kernels go round it, and the reader of SASS sees it."""

import pytest
import torch

from common.gpus import resolve
from common.spec import AttentionShape
from compare.static.compile import compile_in_child
from compare.static.nvidia_code import lost_descriptors, parse
from compare.workloads import Ask
from compilations import compilation
from dsls import HELION_SLOWLY

# of a tile of 64 keys, K 128 lanes and V 16 of 8 bits: V's descriptor, from UR14 and UR11, which nothing has set
LOST = """
        /*1b90*/                   UIADD3 UR10, UR12, 0x4000, URZ ;
        /*1bb0*/                   UIADD3 UR14, UP0, UR14, 0x20, URZ ;
        /*1bf0*/                   USHF.R.U32.HI UR10, URZ, 0x4, UR10 ;
        /*1c10*/                   UIADD3.X UR11, UR11, -0x3ffffff0, URZ, UP0, !UPT ;
        /*1c50*/                   USGXT.U32 UR50, UR10, 0xe ;
        /*1c70*/                   UMOV UR8, URZ ;
        /*1cc0*/                   UIADD3 UR22, UP0, UR50, 0x2, URZ ;
        /*1ca0*/                   UIADD3.X UR23, UR8, 0x40000040, URZ, UP0, !UPT ;
"""
ONE_STAGE = {"block_m": 64, "tile_size": 64, "num_warps": 4, "num_stages": 1}


def test_a_descriptor_of_a_register_that_nothing_set_is_lost():
    assert lost_descriptors(parse(LOST)) == (0x1C10,)


def test_a_descriptor_whose_upper_word_is_zero_is_not():
    assert lost_descriptors(parse(LOST.replace("UIADD3 UR10, UR12, 0x4000", "UMOV UR11"))) == ()


@pytest.mark.parametrize("dsl", HELION_SLOWLY)
def test_values_of_few_lanes_keep_their_descriptors(dsl):
    """V reaches shared memory where K was: from 8 bits in any config, from 16 without pipelining."""
    few = AttentionShape(32, 2, 112, 16, torch.float16, value_size=16, kv_dtype=torch.float8_e4m3fn)
    jobs = [
        compilation(f"{dsl}/q_block", ((31, 31), (2, 2)), few, ONE_STAGE, ask=Ask(scales="one")),
        compilation(
            f"{dsl}/q_block", ((31, 31),), AttentionShape(4, 1, 64, 16, torch.bfloat16, value_size=32), ONE_STAGE
        ),
    ]
    outcomes = list(compile_in_child(jobs, resolve("h200")))
    assert [(outcome.status, outcome.reason) for outcome in outcomes] == [("ok", "")] * len(jobs)
    for outcome in outcomes:
        (facts,) = outcome.facts
        assert any("x16x16" in shape or "x64x16" in shape for shape in facts["matrix"]), facts["matrix"]
        assert facts["lost_descriptors"] == 0
