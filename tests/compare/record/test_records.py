import dataclasses
import json

import pytest

from compare.record.records import (
    MAX_SAMPLES,
    Derived,
    Evidence,
    GateResult,
    Record,
    Status,
    Timing,
    latest,
    seal,
)
from compare.workloads import Workload
from compare.workloads.cost import info

WORKLOAD = info(Workload("q1s64", ((1, 64),)))
TIMING = Timing("graph", "cold", 12.5, 12.0, 13.0, 20, 64, 64, 1 << 29, (12.0, 12.5, 13.0))
FACTS = {"run_id": "run", "cell_id": "c", "workload": WORKLOAD, "kernel": "triton/naive"}
MEASURED = FACTS | {
    "status": Status.OK,
    "evidence": (Evidence.MEASURED, Evidence.CHECKED_ON_GPU),
    "timing": TIMING,
    "derived": Derived(4000.0, 1.0, 10.0, 0.8),
    "gate": GateResult("S+W", {"row": 0.5}, 64, 2, True),
}


def bad(status=Status.INCORRECT, **more):
    return FACTS | {"status": status, "reason": "wrong"} | more


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK], ids=str)
@pytest.mark.parametrize("field", ["timing", "derived"])
def test_a_row_that_is_not_ok_holds_no_time(status, field):
    with pytest.raises(ValueError, match=field):
        Record(**bad(status, **{field: MEASURED[field]}, evidence=(Evidence.MEASURED,)))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (MEASURED | {"evidence": (Evidence.INTERPRETED,)}, "evidence"),
        (FACTS | {"status": Status.OK}, "evidence"),
        (FACTS | {"status": Status.OK, "evidence": (Evidence.MEASURED,)}, "evidence"),
        (FACTS | {"status": Status.CRASH}, "reason"),
        (MEASURED | {"timing": dataclasses.replace(TIMING, median_us=0.0)}, "median_us"),
        (MEASURED | {"timing": dataclasses.replace(TIMING, median_us=float("nan"))}, "median_us"),
        (MEASURED | {"timing": dataclasses.replace(TIMING, samples_us=(1.0,) * (MAX_SAMPLES + 1))}, "samples_us"),
    ],
    ids=["time-unmeasured", "ok-of-nothing", "measured-no-time", "no-reason", "zero", "nan", "samples"],
)
def test_contradictions_are_refused_by_name(fields, named):
    with pytest.raises(ValueError, match=named):
        Record(**fields)


def test_a_line_gives_the_same_record_back():
    record = Record(**MEASURED)
    assert Record.from_json(record.to_json()) == record
    assert "\n" not in record.to_json()


def test_an_infinite_ratio_is_not_written_as_json():
    with pytest.raises(ValueError, match="JSON compliant"):
        Record(**MEASURED | {"derived": Derived(float("inf"), 1.0, 1.0, 1.0)}).to_json()


def test_the_last_record_of_a_cell_counts():
    first, second = Record(**bad(Status.CRASH)), Record(**MEASURED)
    other = second.replace(cell_id="d")
    assert latest([first, other, second]) == [second, other]


def test_each_process_of_a_cell_has_its_last_record():
    first = Record(**MEASURED)
    again, second = first.replace(seconds=2.0), first.replace(process=1)
    assert latest([first, second, again]) == [again, second]


def test_a_row_of_schema_1_is_one_of_process_0():
    plain = json.loads(Record(**MEASURED).to_json()) | {"schema": 1}
    for new in ("process", "fingerprint", "check"):
        del plain[new]
    for new in ("clocks", "unit", "half_width", "processes", "low_us", "high_us"):
        del plain["timing"][new]
    record = Record.from_json(json.dumps(plain))
    assert (record.process, record.fingerprint, record.timing.processes) == (0, "", 1)
    with pytest.raises(ValueError, match="schema"):
        Record.from_json(json.dumps(plain | {"schema": 3}))


def test_a_time_smuggled_into_a_line_is_refused():
    plain = json.loads(Record(**MEASURED).to_json()) | {"status": "incorrect", "reason": "edited"}
    del plain["check"]
    with pytest.raises(ValueError, match="found a time"):
        Record.from_json(seal(json.dumps(plain)))
