"""The installed Triton and Helion compile what `auto` takes for a row of each class of batch, and the static grid."""

import pytest

from common import gpus
from compare.competitors import registry
from compare.static.compile import Compilation
from compare.workloads import LLAMA_3_8B, Workload, parse_lens

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
