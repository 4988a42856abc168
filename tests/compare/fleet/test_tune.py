"""Tuning over seats: rows are dealt once, lines come to one log, and what is known is not tried again."""

import json

import pytest
import simulated_tuning

from compare.fleet.cluster import Lost
from compare.fleet.drive import Drive
from compare.fleet.shares import Share
from compare.fleet.tune import AtArm, SeatedArm
from compare.tune import records
from compare.tune.arm import candidates

KERNEL = "triton/q_block"


@pytest.fixture
def work(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(simulated_tuning.Path(simulated_tuning.__file__).parent))
    rows, machine = tuple(simulated_tuning.rows())[:4], simulated_tuning.machine(2)
    plan = {KERNEL: candidates(KERNEL, rows, machine.gpu, 4, 0)}
    return lambda: SeatedArm(rows, plan, machine, 90.0)


class Near:
    """A seat without Ray. dies: behind so many lines of its first share."""

    def __init__(self, name, work, dies=None):
        self.name, self.work, self.dies, self.starts = name, work, dies, 1
        work.open(name)

    def do(self, share):
        for number, line in enumerate(self.work.do(share)):
            if number == self.dies:
                raise Lost("the node died")
            yield line

    def again(self):
        return False


@pytest.mark.slow
def test_rows_are_dealt_once_and_no_candidate_is_tried_twice(work, tmp_path):
    first = work()
    log = records.Log(tmp_path / "candidates.jsonl")
    seats = [Near("a", first, dies=6), Near("b", work())]
    at = [AtArm(seat, "triton", first.rows, log) for seat in seats]
    for found in Drive(at, [Share((0, 2)), Share((1, 3))]).results():
        log.add(**json.loads(found.what), seat=found.seat)
    log.close()
    lines = records.read(tmp_path / "candidates.jsonl")
    assert records.done(lines, "triton") == {(row.label, KERNEL) for row in first.rows}
    assert {line["seat"] for line in lines} == {"a", "b"}
    before = [line for line in lines if line["seat"] == "a"]
    whole = {row for row, _ in records.done(before, "triton")}
    timed = [(x["row"], x["policy"]) for x in lines if "final_us" in x and x["seat"] == "b"]
    assert len(timed) == len(set(timed)) > 0 and not whole & {row for row, _ in timed}
