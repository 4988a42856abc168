"""A batch's sequences in other company: the same result from the reference, bits that a split by the batch changes."""

from functools import cache

import pytest
import torch

from common.cases.calls import calls
from common.cases.case import build
from common.cases.company import in_company, orders
from common.cases.named import BY_NAME
from common.kit.inside import Asked
from common.mutants.emulation import Schedule, emulate
from common.oracle.reference import reference
from common.spec.metadata import lens_of
from common.spec.validation import validate

NAMES = ("decodes", "prompt", "shared-prefix")


@cache
def asked(name):
    """A case, with what each of its calls must give: seconds."""
    return Asked.of(BY_NAME[name])


def launch(segments):
    def attend(batch, features, out, lse):
        emulate(batch, features, out, Schedule(32, segments(batch)), lse=lse)

    return attend


def by_the_batch(batch):
    return max(1, 8 // batch.num_seqs)


def test_the_longest_sequence_stands_alone_first_last_and_between():
    lens = [(1, 5 + seq) for seq in range(33)]
    found = [order for _, order in orders(lens)]
    assert [len(order) for order in found] == [1, 2, 8, 9, 32, 33]
    assert {order.index(32) for order in found} >= {0, 1, 3} and all(len(set(order)) == len(order) for order in found)
    assert list(orders([(0, 3), (0, 0)])) == []


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_of_the_whole(name):
    batch, features = build(BY_NAME[f"company-{name}"])
    whole = reference(batch, features)
    for _, order in orders(lens_of(batch.query_start_loc, batch.seq_lens)):
        part, own, rows = in_company(batch, features, order)
        validate(part, own)
        assert torch.equal(reference(part, own).out, whole.out[rows])


def test_a_split_by_the_batch_is_no_batch_invariant_one():
    assert Asked.of(BY_NAME["company-shared-prefix"]).why_not(launch(by_the_batch)) == ""
    case = Asked.of(BY_NAME["invariant-shared-prefix"])
    assert "which batch_invariant forbids" in case.why_not(launch(by_the_batch))
    assert case.why_not(launch(lambda batch: 3)) == ""


def test_a_kernel_that_is_wrong_beside_others_alone_is_wrong():
    def attend(batch, features, out, lse):
        emulate(batch, features, out, Schedule(64), lse=lse)
        if batch.num_seqs == 9:
            out[-1] = 0

    assert "beside 8 others" in asked("company-decodes").why_not(attend)


def test_each_call_is_judged_and_repeats_are_bits():
    case = BY_NAME["company-decodes"]
    names = [call.name for call in calls(case, *build(case))]
    assert names[4].startswith("call 5, ") and names[-1] == f"call {len(names)}, the values of call 1"
    count = iter(range(100))

    def attend(batch, features, out, lse):
        emulate(batch, features, out, Schedule(64 if next(count) < 10 else 16), lse=lse)

    assert "gave other bits" in asked(case.name).why_not(attend)
