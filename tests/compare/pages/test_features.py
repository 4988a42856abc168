"""docs/features.md says what the kernels declare, and what a DSL refused of the features."""

import pytest
import torch

from common.cases.named import CASES
from common.gpus import resolve
from common.spec import AttentionShape
from compare.__main__ import main as diptych
from compare.pages import features
from compilations import compilation


def test_the_pages_are_what_the_kernels_and_the_committed_run_say():
    assert diptych(["pages", "features"]) == 0


def test_every_member_that_a_case_asks_for_is_on_the_page():
    asked = {member for case in features.BY_NAME.values() if case.refused is None for member in case.asked}
    assert asked <= set(features.MEMBERS)
    assert all(features.counted(m) for m in features.MEMBERS if m not in ("lse", "full_graph"))


def test_a_member_that_the_page_lacks_is_refused():
    with pytest.raises(KeyError, match="weather"):
        features.matrix({"triton/naive": frozenset({"causal", "weather"})})


def test_a_changed_declaration_makes_the_page_old(monkeypatch):
    declared = features.supports()
    declared["triton/naive"] |= {"sinks"}
    monkeypatch.setattr(features, "supports", lambda: declared)
    assert diptych(["pages", "features"]) == 1


def test_two_dsls_that_declare_the_same_share_a_table():
    declared = features.supports()
    assert features.matrix(declared).count("###") == 1
    declared["helion/naive"] |= {"sinks"}
    assert features.matrix(declared).count("###") == 2


def test_every_refusal_on_the_page_has_its_error_and_what_the_kernels_do_instead():
    rows = features.refused().splitlines()[2:]
    assert rows
    for row in rows:
        wanted, error, instead, cost = row.strip("| ").split(" | ")
        assert wanted and len(error) > 2 and instead and cost
        assert "impossible" not in instead and "supported" not in instead


def test_every_corner_has_a_case_or_says_why_not():
    numbers = range(1, 101)
    assert len(features.CORNERS) == len(set(features.CORNERS)) == 100
    assert [n for n in numbers if bool(features.cases_of(n)) == (n in features.ELSEWHERE)] == []
    assert {number for case in CASES for number in case.numbers} <= set(numbers)


@pytest.mark.slow
def test_scores_of_an_fp8_query_take_helion_twice_the_matrix_instructions_on_gfx942(compiled):
    """An instruction takes half as many numbers: Helion's are fp16's, as the page says of a product of e4m3fnuz. P.V is
    fp16's in both DSLs."""
    shape = AttentionShape(8, 2, 128, 16, torch.float8_e4m3fnuz)
    jobs = [compilation(f"{dsl}/q_block", ((64, 256),), shape, heuristics="default") for dsl in ("triton", "helion")]
    ours, helions = (outcome.facts[0]["matrix"] for outcome in compiled(resolve("mi300"), *jobs))
    (fp16,) = helions
    (fp8,) = ours.keys() - {fp16}
    keys, half = (int(instruction.rpartition("x")[2]) for instruction in (fp8, fp16))
    assert fp8.rpartition("x")[0] == fp16.rpartition("x")[0] and keys == 2 * half
    assert helions[fp16] - ours[fp16] == 2 * ours[fp8]
