"""The kit on seven callables: the right one passes; each wrong one fails, and each line that it prints fails again."""

import shlex

import pytest

import diptych_check
from common.kit import levels
from common.kit.kit import Kit

SEED = 2026
EXPECTED = {  # the cases that must expose it
    "last_key_dropped": {"keys-4500"},
    "page_id_in_16_bits": {"page-id-beyond-20-bits"},
    "window_one_too_wide": {"window-page"},
    "stale_workspace": {"scratch-after-longer"},
    "accumulator_in_bf16": {"keys-4500"},
    "nan_of_a_row_in_every_row": {"query-nan"},
}


@pytest.fixture(autouse=True)
def callables_are_importable(monkeypatch, request):
    monkeypatch.setenv("PYTHONPATH", str(request.path.parent))


def kit_of(name, child):
    return Kit(f"kit_callables:{name}", SEED, child)


EVERY_DAY = (
    tuple(case for case in levels.SMOKE if case in set.union(*EXPECTED.values()))
    + levels.SMOKE[::12]
    + ("axes-10", "axes-40")
)


@pytest.mark.parametrize("cases", [EVERY_DAY, pytest.param(levels.SMOKE, marks=pytest.mark.slow)], ids=len)
def test_a_right_callable_passes(cases, child):
    kit = kit_of("right", child)
    results = [kit.run(case) for case in cases]
    assert not [result for result in results if result.status != "ok" and not result.declared]
    assert sum(result.status == "ok" for result in results) >= len(cases) * 2 // 3, "or too little was asked"


def test_an_lse_of_other_bits_in_the_last_call_is_nondeterministic(child):
    """Of one sequence, so that its calls are the callable's."""
    result = kit_of("dithers_in_its_lse", child).once("batch-1")
    assert (result.status, "other bits of lse" in result.reason) == ("nondeterministic", True), result


@pytest.mark.parametrize("name", EXPECTED)
def test_a_wrong_callable_fails_and_its_line_fails_again(name, child):
    kit = kit_of(name, child)
    cases = [case for case in levels.SMOKE if case in EXPECTED[name]]
    results = [kit.run(case) for case in cases]
    assert all(result.failed and result.status == "incorrect" for result in results), results
    for result in results:
        words = shlex.split(result.repro)
        asked = diptych_check.parser().parse_args(words[1:])
        assert words[0] == "diptych-check" and (asked.kernel, asked.seed) == (kit.kernel, SEED)
        again = [Kit(asked.kernel, asked.seed, child).once(case) for case in asked.case][-1]
        assert again.status == result.status and result.reason.startswith(again.reason)


@pytest.mark.parametrize(
    ("name", "smallest"),
    [
        pytest.param("page_id_in_16_bits", "page-id-beyond-20-bits@lens=1/1", marks=pytest.mark.slow),
        ("window_one_too_wide", "window-page@lens=1/17"),
    ],
)
def test_the_smallest_failing_case_is_one_sequence_of_few_keys(name, smallest, child):
    kit = kit_of(name, child)
    found = kit.smallest(smallest.partition("@")[0])
    case = levels.read(found.case)
    assert found.failed and found.case.startswith(smallest) and case.heads == (1, 1)
    assert kit.once(found.case).failed and f"--case {found.case}" in found.repro
