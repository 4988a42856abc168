"""The kernels that write K and V into pages compile for NVIDIA and AMD, spill nothing and move whole words."""

import pytest
import torch

from common.gpus import resolve
from common.spec import AttentionShape
from compilations import compilation


@pytest.mark.parametrize(
    ("dsl", "gpu"),
    [
        ("triton", "h200"),
        ("triton", "mi300"),
        pytest.param("helion", "h200", marks=pytest.mark.slow),
        pytest.param("helion", "mi300", marks=pytest.mark.slow),
    ],
)
def test_the_default_compiles_and_spills_nothing(compiled, dsl, gpu):
    shape = AttentionShape(8, 8, 128, 16, torch.bfloat16)
    job = compilation(f"cache_as_kernel:{dsl}", ((40, 60),), shape, new_kv=True)
    (outcome,) = compiled(resolve(gpu), job)
    assert outcome.status == "ok", (outcome.reason, outcome.log_tail)
    (facts,) = outcome.facts
    assert facts["spills"] == facts["scratch_bytes"] == 0
    assert facts["grid"][0] == 8 * 5, "a program for 8 tokens of a head"
    wide = facts["loads"].get("128" if gpu == "h200" else "64", 0)
    assert wide >= 2, "K and V in the widest words that 4 warps allow"
