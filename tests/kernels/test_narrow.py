"""Operands too narrow for a product of 8 bits, or for the tile beside them: V of fewer lanes than K, which products of
16 bits take with zeros between its own; few keys and lanes of 8 bits."""

from dataclasses import replace

import pytest
import torch

from common.cases.case import Case
from common.cases.named import build, outputs
from common.gpus import resolve
from common.oracle.integrity import Guards
from common.spec import AttentionShape, UnsupportedFeature
from compare.workloads import Ask
from compilations import compilation
from dsls import in_helion
from kernel_cases import conform

CASE = Case(
    "narrow", (), ((33, 162), (31, 31), (2, 50)), (6, 3), head_size=80, block_size=16, dtype=torch.float16,
    value_size=16, kv_dtype=torch.float8_e4m3fn,
)  # fmt: skip
CASES = {"fp8": CASE, "bf16-over-e5m2": replace(CASE, dtype=torch.bfloat16, kv_dtype=torch.float8_e5m2)}
CASES |= {"fp16": replace(CASE, kv_dtype=None), "32-lanes": replace(CASE, value_size=32)}
WIDE = {"q_block": {"block_m": 64, "tile_size": 64}, "unpaged": {}, "parallel_softmax": {"num_segments": 2}}
RAISED = Case(
    "raised", (), ((33, 162), (31, 31), (2, 50)), (6, 3), head_size=64, block_size=16, dtype=torch.float16,
    fp8_query=torch.float8_e4m3fn, tile_size=16,
)  # fmt: skip
MORE = {"parallel_softmax": {"num_segments": 2}}
PAIRS = [*((rung, "fp8") for rung in WIDE), *zip(WIDE, [name for name in CASES if name != "fp8"], strict=True)]
CELLS = [pytest.param(rung, CASES[name], id=f"{rung}-{name}") for rung, name in PAIRS]


@pytest.mark.parametrize(("rung", "case"), CELLS)
@pytest.mark.slow_in_helion
def test_values_of_few_lanes(dsl, rung, case):
    kernel = dsl.module(rung)
    assert conform(kernel, case, replace(kernel.DEFAULT, **WIDE[rung])) == {"outcome": "supported"}


@in_helion
def test_24_lanes_beside_a_wider_key_are_refused_by_name(dsl):
    """Helion pads them to 32 by itself; see binding.require."""
    kernel = dsl.module("q_block")
    guards, case = Guards("cpu"), replace(CASE, value_size=24)
    batch, features = build(case, "cpu", guards)
    out, lse = outputs(case, batch, guards, 0.0)
    with pytest.raises(UnsupportedFeature) as refusal:
        kernel.launch(batch, features, out, kernel.DEFAULT, None, lse=lse)
    assert refusal.value.argument == "value_size"


@in_helion
@pytest.mark.parametrize("rung", ["unpaged", "parallel_softmax", "adjustable_tile"])
@pytest.mark.slow_in_helion
def test_tiles_of_16_keys_of_8_bits(dsl, rung):
    """Helion raises them to the 32 that a product of 8 bits takes: what counts in tiles beside it does too."""
    kernel = dsl.module(rung)
    assert conform(kernel, RAISED, replace(kernel.DEFAULT, **MORE.get(rung, {}))) == {"outcome": "supported"}


LENS = ((1, 40), (17, 40))
CONFIG = {"block_m": 16, "tile_size": 16}
NARROW = {"keys": (64, CONFIG), "lanes": (16, CONFIG | {"tile_size": 32})}


@pytest.mark.parametrize("gpu", ["h200", "mi300"])
def test_fp8_products_below_32_compile_in_triton(compiled, gpu):
    """Triton refuses them on NVIDIA: they are in fp16."""
    fp8 = torch.float8_e4m3fn if gpu == "h200" else torch.float8_e4m3fnuz
    jobs = [
        compilation("triton/q_block", LENS, AttentionShape(4, 2, head, 16, fp8), config=config, ask=Ask(scales="one"))
        for head, config in NARROW.values()
    ]
    outcomes = compiled(resolve(gpu), *jobs)
    assert [(outcome.status, outcome.reason) for outcome in outcomes] == [("ok", "")] * len(jobs)
    assert all(fact["matrix"] for outcome in outcomes for fact in outcome.facts)
