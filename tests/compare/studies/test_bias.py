"""Mean signed errors of right kernels: half of the cases have V of one sign, and a table has the largest parts."""

from common.cases.fills import positive
from common.mutants.right import RIGHT
from compare.studies import bias


def test_each_kernel_meets_values_of_both_signs_and_of_one():
    fills = [case.fill for number in range(40) if (case := bias.case_of(number))]
    assert set(fills) == {None, positive} and 10 < fills.count(positive) < 30


def test_right_kernels_are_right_and_every_contract_has_a_line():
    found = list(bias.runs(0, 4))
    lines = bias.table(found)
    assert found and all(run.verdict.ok and run.verdict.mean < 1.0 for run in found)
    assert len(lines) == 2 + len({str(right.contract) for right in RIGHT})
    assert lines[0].startswith("| contract | runs | mean")
