"""The installed Triton and Helion compile what the trees choose for a row of each class of batch."""

import pytest

from common import gpus
from common.spec.metadata import BatchStats
from compare.competitors import registry
from compare.static.compile import Compilation, compile_in_child
from compare.workloads import LLAMA_3_8B, Workload, parse_lens

TARGETS = ("h200", "mi300")  # one of each vendor: sm_90 and gfx942
ROWS = ("q1s2k", "32q1s2k", "128q1s8k", "8q4s4k", "q512", "q8k", "16q1s2k_16q512s1536")  # each class of batch
LENS = ((40, 90), (1, 70))  # lengths that make every launch of a kernel happen; no length is in the code


def chosen(dsl, gpu):
    """The distinct configs that `auto` takes for these rows."""
    auto, found = registry.load(f"{dsl}/auto"), {}
    for row in ROWS:
        stats = BatchStats.of(parse_lens(row))
        choice, _ = registry.default_config(f"{dsl}/auto", auto, LLAMA_3_8B, stats, gpu)
        config = registry.config_dict(choice.config)
        found[choice.kernel, str(config)] = Compilation(
            Workload("row", LENS, LLAMA_3_8B), f"{dsl}/{choice.kernel}", config
        )
    return list(found.values())


@pytest.mark.lane
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dsl", registry.DSLS)
def test_what_the_trees_choose_compiles(dsl, target):
    gpu = gpus.resolve(target)
    found = list(compile_in_child(chosen(dsl, gpu), gpu))
    wrong = [f"{one.job.kernel} {one.job.config}: {one.status}: {one.reason}" for one in found if one.status != "ok"]
    assert found and not wrong, "\n".join(wrong)
