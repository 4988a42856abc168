"""Several processes at once, how long a call may take, and what is no verdict."""

import threading
import types

import pytest

import diptych_check
from common import conformance
from common.conformance import Plan
from common.kit import isolated, levels, pace
from common.kit.declared import Declared
from common.kit.isolate import Isolated, Limits
from common.kit.kit import Kit, Result
from common.kit.lanes import Lanes
from common.kit.levels import read
from common.kit.pace import Pace, work
from common.spec.precision import Precision


class Counted:
    """A kit that meets `together` others in every case."""

    def __init__(self, gate):
        self.gate, self.ended = gate, []

    def run(self, case):
        if self.gate:
            self.gate.wait(timeout=10)
        return Result(case, "ok", threading.current_thread().name)

    def stop(self):
        self.ended.append("stop")
        if self.gate:
            self.gate.abort()

    def resume(self):
        self.ended.append("resume")

    def close(self):
        self.ended.append("close")


def test_cases_run_at_once_and_come_in_their_order():
    kits = [Counted(threading.Barrier(2))] * 2
    cases = [f"batch-{n}" for n in range(6)]
    lanes = Lanes(kits, cases)
    found = [lanes.result(case) for case in cases]
    lanes.close()
    assert [one.case for one in found] == cases and len({one.reason for one in found}) == 2


def test_one_process_runs_a_case_when_it_is_asked_for():
    lanes = Lanes([Counted(None)], ["batch-1", "batch-2"])
    assert lanes.result("batch-1").reason == threading.current_thread().name
    lanes.close()


def test_what_was_not_asked_for_is_stopped_and_the_first_kit_goes_on():
    kits = [Counted(threading.Barrier(2)), Counted(None)]
    kits[1].gate = kits[0].gate
    lanes = Lanes(kits, [f"batch-{n}" for n in range(8)])
    lanes.result("batch-0")
    lanes.close()
    assert kits[0].ended == ["stop", "resume"] and kits[1].ended == ["stop", "close"]


def test_a_limit_follows_the_work_and_the_slowest_speed_that_was_seen():
    small, large = read("sequence-1"), read("sequence-1@lens=1500/9000@heads=16/4")
    assert work(large) > 100 * work(small)
    made = Pace(assumed=pace.INTERPRETED)
    assert made.limit(small) == pace.LEAST_S and made.limit(large) > 600.0
    for seconds in (0.1, 0.2, 0.1):
        made.saw(small, seconds)
    assert made.speed == pytest.approx(work(small) / 0.2)
    assert made.limit(large) == pytest.approx(pace.MARGIN * work(large) / made.speed)
    assert Pace(fixed=5.0).limit(large) == 5.0


@pytest.mark.usefixtures("kernels_are_importable")
@pytest.mark.parametrize(("name", "words"), [("hang", "it stands still"), ("busy", "it was still computing")])
def test_a_call_that_is_late_is_told_by_what_it_did(name, words):
    child = Isolated(Limits(call_s=60.0, memory=2**32), threads=1)
    kit = Kit(f"kit_faults:{name}", 7, child, pace=Pace())
    assert kit.declared.supports
    kit.pace = Pace(fixed=2.0)
    found = kit.run("batch-1")
    kit.close()
    assert (found.status, found.judged, found.failed) == ("timeout", False, False)
    assert found.reason.startswith("call 1: no answer within 2 s") and words in found.reason
    assert found.repro == "diptych-check kit_faults:busy --case batch-1 --seed 7".replace("busy", name)
    assert child.started == 1  # a verdict that is none is not asked for twice


def asked(*words):
    return diptych_check.parser().parse_args(["somebody:kernel", *words])


def test_how_many_processes(monkeypatch):
    monkeypatch.setattr(conformance, "cores", lambda: 2)
    assert conformance._processes(asked(), "cpu") == 2
    assert conformance._processes(asked(), "cuda") == 1
    assert conformance._processes(asked("--case", "batch-1"), "cpu") == 1  # one may fail behind another alone
    assert conformance._processes(asked("-n", "3"), "cuda") == 3


def kit_of(interpreted):
    declared = Declared("paged", frozenset({"causal"}), {}, Precision(), True, interpreted=interpreted)
    return Kit("somebody:kernel", 3, Isolated(), _declared=declared)


@pytest.mark.parametrize(("interpreted", "level"), [(True, "first"), (False, "smoke")])
def test_a_kernel_that_is_interpreted_has_a_first_level(monkeypatch, interpreted, level):
    monkeypatch.setattr(conformance, "seal", lambda: None)
    monkeypatch.setattr(conformance, "make", lambda _: [kit_of(interpreted)] * 4)
    plan = Plan.of(asked())
    assert plan.cases == list(levels.level(level)) and plan.words.startswith(f"level {level}")
    assert len(plan.kits) == 4
    assert Plan.of(asked("--level", "smoke")).words.startswith("level smoke")
    few = Plan.of(asked("--case", "batch-1"))
    assert (few.cases, few.words, len(few.kits)) == (["batch-1"], "the given", 1)


@pytest.mark.usefixtures("kernels_are_importable")
@pytest.mark.parametrize(("kernel", "interpreted"), [("kit_triton:right", True), ("kit_callables:right", False)])
def test_the_kit_sees_what_needs_the_interpreter(kernel, interpreted):
    child = Isolated(interpret=True, threads=1)
    kit = Kit(kernel, 7, child)
    assert kit.declared.interpreted is interpreted
    kit.close()


def test_a_class_without_a_text_for_its_module_is_no_kernel(monkeypatch):
    described = type("Described", (), {"__module__": property(lambda self: "triton")})
    theirs = types.ModuleType("somebodys")
    theirs.value = described()
    monkeypatch.setattr(isolated.sys, "modules", {"somebodys": theirs})  # alone: a test before may leave a kernel
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert isolated.interpreted() is False
