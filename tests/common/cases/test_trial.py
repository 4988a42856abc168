"""What a launch is given, a workspace of the batch's sizes, planned where the kernel plans; and how it is judged."""

import math
from types import SimpleNamespace

import pytest

from common.cases.batch import make_batch
from common.cases.named import BY_NAME
from common.cases.trial import planned, ready, tried
from common.mutants.emulation import emulate
from common.spec import AttentionShape, Features, SpecError
from common.spec.kernel import Capacity, Precision

BATCH = make_batch([(3, 20), (1, 9)], AttentionShape(2, 1, 16))


def kernel(**parts):
    return SimpleNamespace(workspace=lambda shape, capacity, config: ["made", shape, capacity, config], **parts)


def test_a_workspace_is_made_for_the_batch():
    assert ready(kernel(), BATCH, Features(), "config") == ["made", BATCH.shape, Capacity.of(BATCH), "config"]


@pytest.mark.parametrize("given", [None, ["given"]])
def test_it_is_planned_where_the_kernel_plans(given):
    def prepare(batch, features, config, workspace):
        assert batch is BATCH and features == Features() and config == "config"
        return ["planned", workspace]

    found = planned(kernel(prepare=prepare), BATCH, Features(), "config", given)
    assert found == ["planned", given], "none is a workspace too: SDPA's"


def test_a_workspace_that_is_given_is_kept():
    given = []  # empty, and one all the same
    assert planned(kernel(), BATCH, Features(), "config", given) is given


def emulated(then):
    """The emulation as a kernel, and what is done to its batch and its outputs behind it."""

    def launch(batch, features, out, config, workspace, *, lse=None):
        emulate(batch, features, out, lse=lse)
        then(batch, out, lse)

    return SimpleNamespace(workspace=lambda *_: None, launch=launch, CONTRACT=Precision())


def behind(tensor):
    """The element past its last one."""
    return tensor.as_strided((1,), (1,), tensor.storage_offset() + tensor.numel())


@pytest.mark.parametrize(
    ("then", "rule", "reason"),
    [
        (lambda batch, out, lse: None, "-", ""),
        (lambda batch, out, lse: out[0, 0, 0].fill_(math.nan), "exact", "out (worst rounding): found nan"),
        (lambda batch, out, lse: lse[0].add_(1.0), "LSE", "LSE: found"),
        (lambda batch, out, lse: out[-1].zero_(), "untouched", "wrote rows of out past"),
        (lambda batch, out, lse: batch.block_table[0, -1].add_(1), "untouched", "changed its input block_table"),
        (lambda batch, out, lse: behind(out).zero_(), "untouched", "wrote outside out"),
    ],
    ids=["right", "an element", "the lse", "the padding", "an input", "behind the output"],
)
def test_a_kernel_on_a_case_is_judged_by_all_that_it_wrote(then, rule, reason):
    found = tried(emulated(then), BY_NAME["padded-tokens"], None)
    assert (found.ok, found.rule) == (rule == "-", rule)
    assert reason in found.reason and bool(found.reason) == bool(reason)


def test_a_kernel_without_lse_is_asked_for_none():
    given = []
    found = tried(emulated(lambda batch, out, lse: given.append(lse)), BY_NAME["query-2"], None, lse=False)
    assert found.ok and given == [None]


def test_a_case_that_refuses_itself_is_not_launched():
    with pytest.raises(SpecError, match="block_size"):
        tried(emulated(lambda *_: pytest.fail("launched")), BY_NAME["page-1"], None)
