"""Static facts beside a run: every cell gets an outcome, with whatever it asks and whatever happens to its compiler."""

import dataclasses
import threading

import pytest

from common.gpus import resolve
from compare.plan.job import Cell
from compare.static import facts as static_facts
from compare.static.compile import Compilation, Outcome
from compare.workloads import Ask, suites
from compare.workloads.suites import peers


def _cells(count: int) -> list[Cell]:
    row = peers()[0]
    return [Cell(f"{number}", row, "triton/q_block") for number in range(count)]


def _answers(jobs, gpu, limit_s):
    """The first job's outcome, and no more."""
    yield Outcome(next(iter(jobs)), "ok")


def _fails(jobs, gpu, limit_s):
    yield from _answers(jobs, gpu, limit_s)
    raise OSError("no more processes")


@pytest.mark.parametrize(("compiler", "why"), [(_answers, "answered no more"), (_fails, "OSError: no more processes")])
def test_nobody_waits_for_a_compiler_that_is_gone(monkeypatch, compiler, why):
    monkeypatch.setattr(static_facts, "compile_in_child", compiler)
    monkeypatch.setattr(static_facts, "cores", lambda: 1)
    cells = _cells(3)
    facts = static_facts.StaticFacts(cells, resolve("h200"), 1.0)
    waiter = threading.Thread(target=facts.wait, daemon=True)
    waiter.start()
    waiter.join(60)
    assert not waiter.is_alive()
    assert [facts.of(cell).status for cell in cells] == ["ok", "crash", "crash"]
    assert why in facts.of(cells[1]).reason
    facts.more(_cells(4)[3:])
    assert facts.of(_cells(4)[3]).status == "ok", "who asks later gets another compiler"


def test_a_lane_and_its_child_wait_for_cells_that_are_asked_for_later_until_the_end(monkeypatch):
    lanes, ended = [], threading.Event()

    def compiler(jobs, gpu, limit_s):
        lanes.append(threading.get_ident())
        try:
            for job in jobs:
                yield Outcome(job, "ok")
        finally:
            ended.set()

    monkeypatch.setattr(static_facts, "compile_in_child", compiler)
    monkeypatch.setattr(static_facts, "cores", lambda: 1)
    facts, cells = static_facts.StaticFacts([], resolve("h200"), 1.0), _cells(4)
    assert not lanes, "without cells nobody is started"
    for asked in (cells[:1], cells[1:]):
        facts.more(asked)
        facts.wait()
        assert [facts.of(cell).status for cell in asked] == ["ok"] * len(asked)
    assert len(lanes) == 1 and not ended.is_set()
    facts.close()
    assert ended.wait(60)


ROWS = {row.label: row for row in suites.rows()}


@pytest.mark.parametrize("label", ROWS)
def test_a_row_with_features_is_a_job_that_survives_its_way_to_the_child(label):
    job = Compilation(ROWS[label], "helion/q_block", heuristics="default")
    assert Compilation.from_json(job.to_json()) == job


def test_a_row_with_fp8_pages_and_an_fp8_output_is_compiled_with_them(monkeypatch, compiled):
    monkeypatch.setattr(
        static_facts, "compile_in_child", lambda jobs, gpu, limit_s: (compiled(gpu, job)[0] for job in jobs)
    )
    monkeypatch.setattr(static_facts, "cores", lambda: 1)
    row = dataclasses.replace(ROWS["4q2k+fp8-out"], lens=((3, 70), (1, 40)))
    cells = [
        Cell(label, dataclasses.replace(row, ask=ask), "triton/q_block")
        for label, ask in {"fp8": row.ask, "plain": Ask()}.items()
    ]
    facts = static_facts.StaticFacts(cells, resolve("h200"), 300.0)
    found = {cell.id: facts.of(cell) for cell in cells}
    assert {outcome.status for outcome in found.values()} == {"ok"}, [o.reason for o in found.values()]
    assert found["fp8"].facts[0]["runtime_args"] > found["plain"].facts[0]["runtime_args"]
