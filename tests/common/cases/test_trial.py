"""What a launch is given: a workspace of the batch's sizes, planned where the kernel plans."""

from types import SimpleNamespace

import pytest

from common.cases.batch import make_batch
from common.cases.trial import ready
from common.spec import AttentionShape, Features
from common.spec.kernel import Capacity

BATCH = make_batch([(3, 20), (1, 9)], AttentionShape(2, 1, 16))


def kernel(**parts):
    return SimpleNamespace(workspace=lambda shape, capacity, config: ["made", shape, capacity, config], **parts)


def test_a_workspace_is_made_for_the_batch():
    assert ready(kernel(), BATCH, Features(), "config") == ["made", BATCH.shape, Capacity.of(BATCH), "config"]


@pytest.mark.parametrize("given", [None, ["given"]])
def test_it_is_planned_where_the_kernel_plans(given):
    def prepare(batch, features, config, workspace):
        assert batch is BATCH and features == Features() and config == "config"
        return ["planned", workspace[0]]

    found = ready(kernel(prepare=prepare), BATCH, Features(), "config", given)
    assert found == ["planned", "given" if given else "made"]


def test_a_workspace_that_is_given_is_kept():
    given = []  # empty, and one all the same
    assert ready(kernel(), BATCH, Features(), "config", given) is given
