"""A worker that dies, hangs, floods or lies about its device costs one row; the rest of the job goes on."""

import json
import os
import sys
import threading
import weakref
from contextlib import closing
from pathlib import Path

import pytest
import torch

from compare.bench.task import free_memory
from compare.plan.job import jobs
from compare.process import crew as crew_module
from compare.process.crew import Crew
from compare.process.pool import Jobs, Pool, in_order
from compare.record.records import Status
from compare.workloads.suites import pick, suite

HERE = Path(__file__).parents[2] / "support"
ROW = pick(suite("smoke"), "prefill-33")[0]


def job(*names):
    (planned,) = jobs([ROW], [f"fake_kernels:{name}" for name in names], None)
    return planned


def statuses(outcomes):
    return {outcome.cell.kernel.split(":")[1]: outcome.fields["status"] for outcome in outcomes}


@pytest.fixture(scope="module")
def outcomes():
    """One job of seven kernels through real workers: one of them takes its process along."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(HERE)
    crew = Crew(mode="check", gpu=None, device="cpu", limit_s=60.0)
    try:
        found = list(crew.run(job("honest", "dies", "chatters", "lies", "pads", "raises", "absent")))
    finally:
        crew.close()
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)
    return {outcome.cell.kernel.split(":")[1]: outcome for outcome in found}


def test_every_cell_has_one_row_whatever_its_neighbours_do(outcomes):
    assert {name: outcome.fields["status"] for name, outcome in outcomes.items()} == {
        "honest": Status.OK, "dies": Status.CRASH, "chatters": Status.OK, "lies": Status.INCORRECT,
        "pads": Status.INCORRECT,  # a run leaves rows of nobody, or this check could not fail
        "raises": Status.CRASH, "absent": Status.UNAVAILABLE,
    }  # fmt: skip
    honest, dead, raised = (outcomes[name].fields for name in ("honest", "dies", "raises"))
    assert honest["evidence"] == ["interpreted"] and honest["gate"]["value_sets"] == 2
    assert honest["config"] == {"size": 16} and len(honest["source_sha"]) == 16 and outcomes["honest"].versions["torch"]
    assert "SIGSEGV" in dead["reason"] and "last words" in dead["log_tail"]
    assert raised["reason"] == "RuntimeError: a bug of the kernel" and "Traceback" in raised["log_tail"]


SCRIPT = """
import json, os, sys, time
say = lambda **event: print(json.dumps(event), flush=True)
say(event="ready", versions={"fake": "1"})
for line in sys.stdin:
    task = json.loads(line)
    say(event="start", cell=None)
    for cell, kernel in task["cells"]:
        name = kernel.split(":")[1]
        if name == "before":
            os._exit(3)
        say(event="start", cell=cell)
        if name == "after":
            say(event="row", cell=cell, outcome={"status": "ok"})
            os._exit(3)
        if name == "sick":
            say(event="row", cell=cell, outcome={"status": "crash"})
            say(event="sick")
            sys.exit()
        if name == "hangs":
            time.sleep(60)
        if name == "floods":
            while True:
                os.write(2, b"x" * 4096)
        if name != "forgets":
            say(event="row", cell=cell, outcome={"status": "ok"})
    say(event="done")
"""


def running(source, **options):
    """A crew whose workers run that source."""
    return closing(Crew(mode="check", gpu=None, device="cpu", command=[sys.executable, "-c", source], **options))


def played(*names, **options):
    with running(SCRIPT, **options) as crew:
        return statuses(crew.run(job(*names)))


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("a", "sick", "b"), ["ok", "crash", "ok"]),
        (("after", "b", "c"), ["ok", "ok", "ok"]),  # a death between cells is nobody's
        (("before", "b"), [Status.CRASH, Status.CRASH]),  # one before any cell is everybody's, and the end
        (("a", "forgets"), ["ok", Status.CRASH]),
        (("hangs", "b"), [Status.TIMEOUT, "ok"]),
        (("floods", "b"), [Status.CRASH, "ok"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_what_a_process_does_costs_its_cell_and_the_rest_get_a_new_one(names, wanted, monkeypatch):
    monkeypatch.setattr(crew_module, "FLOOD_BYTES", 1 << 20)
    assert played(*names, limit_s=2.0 if "hangs" in names else 300.0) == dict(zip(names, wanted, strict=True))


def test_stopping_early_leaves_no_process():
    crew = Crew(mode="check", gpu=None, device="cpu", command=[sys.executable, "-c", SCRIPT])
    outcomes = crew.run(job("a", "b"))
    next(outcomes)
    process = crew._worker._process
    outcomes.close()
    assert process.poll() is not None


def test_a_death_with_nothing_to_do_blames_nobody():
    with running(SCRIPT) as crew:
        assert statuses(crew.run(job("a"))) == {"a": "ok"}
        crew._worker._process.kill()
        crew._worker._process.wait()
        assert statuses(crew.run(job("b"))) == {"b": "ok"}


def test_who_rests_says_what_it_could_not_give_back():
    said = [{"event": "ready", "versions": {"fake": "1"}}, {"event": "done"}, {"event": "resting", "held": 5}]
    stand_in = f"import sys; print({chr(10).join(map(json.dumps, said))!r}, flush=True); sys.stdin.read()"
    with running(stand_in, limit_s=4.0) as crew:
        crew.start()
        assert crew.rest() == 5 and crew._worker is not None


def test_one_that_is_lost_as_it_should_rest_is_replaced():
    stand_in = "import sys; sys.stdin.readline(); raise SystemExit(3)"
    with running(stand_in, limit_s=4.0) as crew:
        assert crew.rest() == 0
        assert crew._worker is None, "who has no process has none to rest"
        crew.start()
        assert crew.rest() == 0 and crew._worker is None


def test_memory_is_given_back_from_cycles_too_and_nothing_is_launched(monkeypatch):
    done = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: done.append(name))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 5)
    error = ValueError("its frames hold a row's tensors")
    error.__cause__ = error
    error.tensor = torch.ones(1)
    held = weakref.ref(error.tensor)
    del error
    assert held() is not None
    assert free_memory() == 5
    assert held() is None and done == ["synchronize", "empty_cache"]


@pytest.mark.parametrize(
    "last_act", ["raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"], ids=["exit", "kill"]
)
def test_a_process_lost_while_it_compiles_ahead_is_replaced(last_act):
    stand_in = f"import sys; sys.stdin.readline(); {last_act}"
    with running(stand_in, limit_s=4.0) as crew:
        crew.start()
        crew.compile_ahead([job("honest")])
        assert not crew.ready() and crew._worker is None


def test_one_that_died_before_it_was_asked_is_no_error():
    crew = Crew(mode="check", gpu=None, device="cpu", limit_s=4.0, command=[sys.executable, "-c", ""])
    crew.start()
    crew._worker._process.wait()
    crew.compile_ahead([job("honest")])
    assert not crew.ready()
    crew.close()


class OneByOne(Pool):
    """A lane begins when the one before it has had its time, as on a machine with much else to do."""

    def _begin(self, lane):
        thread = threading.Thread(target=self._work, args=(lane,), daemon=True)
        thread.start()
        thread.join(0.3)


def test_a_lane_that_ends_before_the_next_begins_takes_nothing_along():
    pool = OneByOne([lambda taken: iter(()), iter], Jobs([1, 2, 3], of=in_order))
    assert list(pool.results()) == [1, 2, 3]
