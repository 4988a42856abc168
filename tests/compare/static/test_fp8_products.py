"""sm_90 sums products of fp8 in 14 bits, truncated: no sum over keys may be one of them."""

import pytest
import torch

from common.gpus import resolve
from common.spec import AttentionShape
from compare.static.compile import compile_in_child
from compare.workloads import Ask
from compilations import compilation

LONG = ((512, 2048),)
FP8, FP16 = "QGMMA", "HGMMA"


@pytest.mark.parametrize("head_size", [64, 128, pytest.param(256, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kernel", ["triton/unpaged", *(pytest.param(f"helion/{one}", marks=pytest.mark.slow) for one in ("unpaged",))]
)
def test_only_scores_are_summed_in_fp8(kernel, head_size):
    """A sum over keys has `head_size` columns of V; one over lanes has the keys of a tile."""
    shape = AttentionShape(8, 2, head_size, 16, torch.float8_e4m3fn)
    [outcome] = compile_in_child([compilation(kernel, LONG, shape, ask=Ask(scales="one"))], resolve("h200"))
    assert outcome.status == "ok", outcome.reason
    loops = [loop["matrix"] for facts in outcome.facts for loop in facts["loops"] if "unpaged" in facts["kernel"]]
    products = [{name.split()[0]: count for name, count in loop.items()} for loop in loops if loop]
    assert len(products) >= 2, "the loops over whole and over masked tiles"
    for found in products:
        assert set(found) == {FP8, FP16}
