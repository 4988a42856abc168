"""What the tuner does first: light rows spread over their work, the kernels that matter, jobs as they become ready."""

import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from common.gpus import resolve
from compare.process.pool import Jobs
from compare.tune import tune
from compare.tune.arm import Arm, Machine, late
from compare.tune.space import Policy
from compare.workloads import suites
from compare.workloads.suites import least_ms


def job(kernel, name, **more):
    return {"kernel": kernel, "id": name} | more


def test_rows_are_light_first_and_of_all_kinds():
    rows = tune.pick_rows(12)
    assert Counter(row.kind for row in rows) == dict.fromkeys(tune.KINDS, 3)
    assert {row.kind for row in rows[:4]} == set(tune.KINDS)
    assert all(tune.TRIFLE_MS <= least_ms(row) <= tune.LIGHT_MS for row in rows)
    assert all(row.stats.num_tokens <= tune.LIGHT_TOKENS for row in rows)
    assert {row.label for row in tune.pick_rows(0)} == {row.label for row in suites.suite("tuning")}


def test_the_most_work_the_least_then_the_middle():
    for kind in tune.KINDS:
        first, second, third = (least_ms(row) for row in tune.pick_rows(12) if row.kind == kind)
        assert second < third < first


def test_a_late_kernel_waits_for_the_others_and_gets_fewer_policies():
    jobs = Jobs([job("naive", "n", late=2), job("q_block", "q1"), job("q_block", "q2"), job("split", "s", late=1)])
    assert [jobs.take(None)["id"] for _ in range(4)] == ["q1", "q2", "s", "n"]
    assert late("triton/naive").divisor > late("helion/split").divisor > late("triton/q_block").divisor == 1


def test_the_rows_of_an_earlier_chunk_come_first_and_auto_before_all():
    """A run that is cut off has whole rows: on an H100 a regret run of 16 rows had timed 161 candidates and no
    `auto`."""
    rows = suites.unseen(7, 12)
    plan = {f"triton/{name}": [Policy("fixed")] * 2 for name in ("auto", "q_block", "unpaged")}
    machine = Machine(resolve("h100"), ("0",), 1)
    arm = Arm("triton", plan, rows, machine, SimpleNamespace(lines=[]), None, together=4)
    found, jobs, last = [], Jobs(arm._compile_jobs()), None
    while (taken := jobs.take(last)) is not None:
        last = taken["kernel"]
        found.append((last != "triton/auto", taken["chunk"]))
    assert found == sorted(found) and {chunk for _, chunk in found} == {0, 1, 2}


def test_a_lane_keeps_its_kernel():
    jobs = Jobs([job("a", "a1"), job("b", "b1"), job("b", "b2"), job("a", "a2"), job("a", "a3")])
    assert [jobs.take("b")["id"], jobs.take("b")["id"], jobs.take("b")["id"]] == ["b1", "b2", "a1"]


def test_a_taker_waits_for_jobs_to_come_and_for_the_end():
    jobs = Jobs(growing=True)
    thread = threading.Timer(0.1, lambda: (jobs.add([job("a", "a1")]), jobs.close()))
    thread.start()
    assert jobs.take(None)["id"] == "a1" and jobs.take("a") is None
    thread.join()


def test_a_taker_gives_up_at_the_deadline():
    deadline = time.time() + 0.1
    assert Jobs(growing=True).take(None, lambda: time.time() > deadline) is None


@pytest.mark.parametrize("count", [1, 4, 14, 48])
def test_every_row_is_in_one_chunk_in_order(count):
    log = type("Log", (), {"lines": []})()
    rows = tune.pick_rows(count)
    chunks = Arm("triton", {}, rows, None, log, None)._chunks()
    assert tuple(row for chunk in chunks for row in chunk) == rows and all(chunks)
