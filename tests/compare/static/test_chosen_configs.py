"""The installed Triton and Helion compile what `auto` takes for a row of each class of batch, the static grid, and the
kernels that write K and V into pages."""

import pytest
import torch

from common import gpus
from common.gpus import resolve
from common.spec import AttentionShape
from compare.competitors import registry
from compare.static.compile import Compilation
from compare.workloads import LLAMA_3_8B, Workload, parse_lens
from compilations import compilation

TARGETS = ("h200", "mi300")  # one of each vendor: sm_90 and gfx942
ROWS = ("q1s2k", "32q1s2k", "128q1s8k", "8q4s4k", "q512", "q8k", "16q1s2k_16q512s1536")  # each class of batch


def row(lens):
    return Workload("row", parse_lens(lens), LLAMA_3_8B)


@pytest.mark.compiles
@pytest.mark.lane
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dsl", registry.DSLS)
def test_what_is_chosen_compiles(compiled, dsl, target):
    jobs = [Compilation(row(lens), f"{dsl}/auto") for lens in ROWS]
    jobs.append(Compilation(row("40q90_q1s70"), f"{dsl}/static_grid", lse=True))
    found = compiled(gpus.resolve(target), *jobs)
    wrong = [f"{one.job.kernel} {one.job.config}: {one.status}: {one.reason}" for one in found if one.status != "ok"]
    assert len(found) == len(jobs) and not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["triton/auto", "triton/static_grid", "helion/auto"])
def test_what_is_chosen_fits_where_shared_memory_is_least(compiled, kernel):
    """P lies there too, and in float32 a tile once more."""
    shapes = AttentionShape(16, 8, 256, 16, torch.bfloat16), AttentionShape(8, 2, 128, 16, torch.float32)
    found = compiled(resolve("l40s"), *(compilation(kernel, ((1000, 1000),) * 2, shape) for shape in shapes))
    assert [(one.status, one.reason) for one in found] == [("ok", "")] * len(shapes)


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
