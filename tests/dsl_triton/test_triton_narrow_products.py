"""Products of 8 bits over fewer than 32 keys or lanes, which Triton refuses on NVIDIA, compile: they are in fp16."""

import pytest
import torch

from common.gpus import resolve
from common.spec import AttentionShape
from compare.static.compile import compile_in_child
from compare.workloads import Ask
from compilations import compilation

LENS = ((1, 40), (17, 40))
CONFIG = {"block_m": 16, "tile_size": 16}
NARROW = {"keys": (64, CONFIG), "lanes": (16, CONFIG | {"tile_size": 32})}


@pytest.mark.parametrize("gpu", ["h200", "mi300"])
def test_fp8_products_below_32_compile(gpu):
    fp8 = torch.float8_e4m3fn if gpu == "h200" else torch.float8_e4m3fnuz
    jobs = [
        compilation("triton/q_block", LENS, AttentionShape(4, 2, head, 16, fp8), config=config, ask=Ask(scales="one"))
        for head, config in NARROW.values()
    ]
    outcomes = list(compile_in_child(jobs, resolve(gpu)))
    assert [(outcome.status, outcome.reason) for outcome in outcomes] == [("ok", "")] * len(jobs)
    assert all(fact["matrix"] for outcome in outcomes for fact in outcome.facts)
