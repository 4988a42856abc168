"""The checker accepts what is right: named and random cases through the unedited emulation, none rejected."""

from collections.abc import Iterable

import pytest

from common.cases.by_axes import axes_case, num_axes, num_smoke
from common.cases.named import CASES, Case
from common.cases.random_cases import num_feature_pairs, num_pairs, num_triples, random_case
from common.cases.trial import Trial
from common.kit.levels import smallest, write
from common.mutants.emulation import Schedule, emulate
from common.spec import Layout, PagedBatch
from common.spec.kernel import Precision

DAILY, NIGHTLY, PARTS = 80, 10_000, 20


def paged(batch: PagedBatch) -> PagedBatch:
    """The batch with x-packed pages copied into ordinary ones, which is all that the emulation reads."""
    if batch.layout is Layout.PAGED:
        return batch
    key, value = (cache.flatten(3).clone() for cache in batch.by_token())
    return batch.replace(key_cache=key, value_cache=value, layout=Layout.PAGED)


def complaint(case: Case, turn: int) -> str:
    """What the checker says against the emulation, scheduled as `turn` says; empty where it accepts it."""
    trial, schedule = Trial.of(case), Schedule((16, 32, 64, 128)[turn % 4], (1, 2, 5)[turn % 3])
    emulate(paged(trial.batch), trial.features, trial.out, schedule, lse=trial.lse)
    found = trial.judge(Precision())
    return "" if found.ok else found.reason


def alarms(cases: Iterable[tuple[int, Case]]) -> list[str]:
    """What the checker says, of the smallest case that it still says something of."""
    loud = [(turn, case) for turn, case in cases if complaint(case, turn)]
    small = [(turn, smallest(case, lambda c, turn=turn: bool(complaint(c, turn)))) for turn, case in loud]
    return [f"{write(case)}: {complaint(case, turn)}" for turn, case in small]


@pytest.mark.parametrize("part", range(4))
def test_no_false_alarm_on_named_cases(part):
    cases = [case for case in CASES if not case.large and not case.refused][part::4]
    assert alarms(enumerate(cases)) == []


@pytest.mark.parametrize("part", range(4))
def test_no_false_alarm_on_random_cases(part):
    assert alarms((seed, random_case(seed)) for seed in range(part, min(DAILY, num_pairs()), 4)) == []


@pytest.mark.parametrize("part", range(4))
def test_no_false_alarm_on_random_features(part):
    first = num_pairs() + num_triples()
    assert alarms((seed, random_case(seed)) for seed in range(first + part, first + num_feature_pairs(), 16)) == []


@pytest.mark.parametrize("part", range(4))
def test_no_false_alarm_on_cases_of_the_axes(part):
    assert alarms((number, axes_case(number)) for number in range(part, num_smoke(), 32)) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_false_alarm_on_all_cases_of_the_axes(part):
    assert alarms((number, axes_case(number)) for number in range(part, num_axes(), PARTS)) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_false_alarm_on_ten_thousand_random_cases(part):
    assert alarms((seed, random_case(seed)) for seed in range(part, NIGHTLY, PARTS)) == []
