"""The installed Triton and Helion compile what the trees choose for the rows of the version study."""

import pytest

from common import gpus
from common.spec.metadata import BatchStats
from compare.competitors import registry
from compare.static.compile import compile_in_child
from compare.studies.versions.subjects import ROWS, SHAPES, Subject
from compare.workloads import parse_lens

TARGETS = ("h200", "mi300")  # one of each vendor: sm_90 and gfx942


def chosen(dsl, gpu):
    """The distinct configs that `auto` takes for these rows."""
    auto, found = registry.load(f"{dsl}/auto"), {}
    for name, shape in SHAPES.items():
        for row in ROWS:
            stats = BatchStats.of(parse_lens(row))
            choice, _ = registry.default_config(f"{dsl}/auto", auto, shape, stats, gpu)
            one = Subject(f"{dsl}/{choice.kernel}", name, registry.config_dict(choice.config), {})
            found[one.id] = one
    return list(found.values())


@pytest.mark.lane
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dsl", registry.DSLS)
def test_what_the_trees_choose_compiles(dsl, target):
    gpu = gpus.resolve(target)
    found = list(compile_in_child([one.job() for one in chosen(dsl, gpu)], gpu))
    wrong = [f"{one.job.kernel} {one.job.config}: {one.status}: {one.reason}" for one in found if one.status != "ok"]
    assert found and not wrong, "\n".join(wrong)
