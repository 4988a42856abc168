"""A run compiles a chunk of rows ahead, times it in every process, and only then compiles the next."""

import itertools
import json
import os
import threading
import time
from pathlib import Path

import pytest

import measuring_worker
from compare.__main__ import main as diptych
from compare.bench import warm
from compare.plan import situation
from compare.plan.plan import Plan
from compare.process import crew
from compare.record.records import Evidence
from compare.record.store import read_records
from compare.run import options, rows
from compare.static import facts as static_facts
from compare.static.compile import Outcome
from compare.workloads.suites import pick, suite

ROWS = ["prefill-33", "window-17", "non-causal"]
SUITE = ["--suite", "smoke", "--workload", ",".join(ROWS), "--gpu", "h200", "--max-time", "0.05"]


def facts(jobs, gpu, limit_s):
    """Stands in for the children that read static facts: says when one begins and ends."""
    for job in jobs:
        measuring_worker.note({"compiles": [job.kernel]})
        time.sleep(0.3)
        measuring_worker.note({"ended": "compiles"})
        yield Outcome(job, "ok")


@pytest.fixture
def measuring(monkeypatch, tmp_path):
    measuring_worker.pretend(monkeypatch, tmp_path)
    monkeypatch.setattr("compare.report.report.write", lambda folder: folder)
    monkeypatch.setattr(static_facts, "compile_in_child", facts)
    monkeypatch.setattr(rows, "cores", lambda: 2)


def command(*kernels, processes=2, where="--out", own="triton/naive"):
    named = [own, *(f"fake_kernels:{kernel}" for kernel in kernels)]
    return diptych(["run", *SUITE, where, "run", "--kernels", ",".join(named), "--processes", str(processes)])


def log():
    return [json.loads(line) for line in Path("log").read_text().splitlines()]


def kinds(lines):
    """compiles, turns, rests and what ended, in order, repetitions left out."""
    said = [line.get("ended", "") + " ended" if "ended" in line else next(iter(line)) for line in lines]
    return [kind for kind, _ in itertools.groupby(said)]


def rows_of(kernel):
    return [record for record in read_records(Path("run/cells.jsonl")) if record.kernel.endswith(kernel)]


def finished(kernel="honest"):
    return [(r.workload.label, r.process, str(r.status)) for r in rows_of(kernel)]


@pytest.mark.slow
def test_a_chunk_is_timed_before_the_next_is_compiled_and_nothing_compiles_beside_it(measuring, monkeypatch, capsys):
    monkeypatch.setattr(rows, "CHUNK_CELLS", 2)
    command("honest")
    lines = log()
    timed = [number for number, line in enumerate(lines) if "turns" in line]
    first, second = lines[: timed[4]], lines[timed[4] :]  # two rows in two processes, then one row
    compiled = next(number for number, line in enumerate(lines) if number > timed[0] and "compiles" in line)
    assert timed[3] < compiled < timed[4], "both processes time both rows before anything of the third is compiled"
    assert lines[compiled]["rows"] == 2 * 2 * 2, "and all their rows are on the disk"
    turn = ["turns", "turns ended"] * 2 + ["rests"]
    assert kinds(lines[timed[0] : compiled]) == turn * 2
    assert kinds(second) == ["turns", "turns ended"] * 2, "behind its last row a process ends"
    for part in (first[: timed[0]], lines[compiled : timed[4]]):
        begun = sum("compiles" in line for line in part)
        assert begun == sum(line.get("ended") == "compiles" for line in part) == len(part) / 2
    assert [line["rests"] for line in lines if "rests" in line] == [0, 0], "who rests holds no tensors of a row"
    pids = [line["pid"] for line in lines if "turns" in line]
    assert pids[:4:2] == pids[4:] and len(set(pids)) == 2, "process k is one process over all chunks"
    begun = [line["turns"][0].split("/")[-1] for line in lines if "turns" in line]
    assert begun == ["naive"] * 2 + ["fake_kernels:honest"] * 2 + ["naive", "fake_kernels:honest"]
    assert finished() == [(row, p, "ok") for chunk in (ROWS[:2], ROWS[2:]) for p in range(2) for row in chunk]
    with_facts = [(r.workload.label, r.process) for r in rows_of("naive") if Evidence.COMPILED in r.evidence]
    assert with_facts == [(row, 0) for row in ROWS]
    said = capsys.readouterr().err
    assert "compiling ahead rows 1 to 2 of 3\n" in said and "compiling ahead row 3 of 3\n" in said
    spans = [(part[0]["at"], part[-1]["at"]) for part in (lines[: timed[0]], lines[compiled : timed[4]])]
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert manifest["resting_bytes"] == 0
    assert manifest["compile_ahead_s"] + 0.1 >= sum(end - begin for begin, end in spans)


def test_an_interrupted_run_keeps_all_finished_chunks_and_goes_on_behind_them(measuring, monkeypatch, capsys):
    monkeypatch.setattr(rows, "CHUNK_CELLS", 2)
    ready, calls = crew.Crew.ready, []

    def interrupted(self):
        calls.append(self.process)
        if len(calls) == 3:  # both processes for the first chunk, one for the second
            raise KeyboardInterrupt
        return ready(self)

    monkeypatch.setattr(crew.Crew, "ready", interrupted)
    assert command("honest") == 130
    assert sorted(finished()) == sorted((row, process, "ok") for row in ROWS[:2] for process in range(2))
    for pid in {line["pid"] for line in log()} - {os.getpid()}:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    monkeypatch.setattr(crew.Crew, "ready", ready)
    capsys.readouterr()
    before = len(log())
    command("honest", where="--resume")
    assert [line["compiles"] for line in log()[before:] if "compiles" in line and "process" in line] == [
        [["triton/naive"]]
    ] * 2, "what is there is not compiled again"
    assert "compiling ahead row 3 of 3" in capsys.readouterr().err
    assert sorted(finished()) == sorted((row, process, "ok") for row in ROWS for process in range(2))


def test_with_cores_to_spare_the_whole_run_is_compiled_before_its_first_chunk(measuring, monkeypatch):
    monkeypatch.setattr(rows, "CHUNK_CELLS", 1)
    monkeypatch.setattr(rows, "cores", lambda: 12)
    command("honest", processes=1, own="helion/naive")
    lines = log()
    turn = next(number for number, line in enumerate(lines) if "turns" in line)
    asked = [len(line["compiles"]) for line in lines[:turn] if "process" in line]
    assert sorted(asked) == [1, 1, 2], "the run's process has its chunk, two helpers share all rows"
    of_facts = [line for line in lines if "compiles" in line and "process" not in line]
    assert of_facts == [line for line in lines[:turn] if "compiles" in line and "process" not in line]
    assert len(of_facts) == len(ROWS) and sum("process" in line for line in lines[turn:]) == len(ROWS) - 1
    assert finished() == [(row, 0, "ok") for row in ROWS]
    for pid in {line["pid"] for line in lines} - {os.getpid()}:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_a_process_lost_in_the_second_chunk_costs_one_cell_and_its_successor_compiles_the_third_ahead(
    measuring, monkeypatch
):
    monkeypatch.setattr(rows, "CHUNK_CELLS", 1)
    threads = threading.active_count()
    assert command("honest", "dies_in_window", processes=1) == 1
    assert finished() == [(row, 0, "ok") for row in ROWS]
    assert finished("dies_in_window") == [(ROWS[0], 0, "ok"), (ROWS[1], 0, "crash"), (ROWS[2], 0, "ok")]
    pids = [line["pid"] for line in log() if "turns" in line]
    lost, successor = pids[0], pids[-1]
    assert pids == [lost, lost, successor, successor] and lost != successor
    assert [line["pid"] for line in log() if "compiles" in line and "process" in line] == [lost, lost, successor]
    deadline = time.monotonic() + 60
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == threads, "no lane of a run outlives it"


def made(*argv):
    asked = options.parse(["--gpu", "h200", *argv])
    return rows.Rows(Plan.of(asked.rows, asked.where, asked.timing), asked, "run")


@pytest.mark.parametrize(
    ("argv", "sizes"),
    [
        (["--suite", "features", "--kernels", "baseline/sdpa,triton/q_block,helion/q_block"], [8] * 5 + [2]),
        (["--suite", "peers", "--kernels", "triton/*,helion/*"], [1] * 23),
        (["--suite", "peers", "--kernels", "baseline/*"], [23]),
    ],
    ids=["two own", "sixteen own", "none own"],
)
def test_a_chunk_has_as_many_rows_as_compile_in_a_minute_and_at_least_one(measuring, argv, sizes):
    chunks = list(made(*argv)._chunks())
    assert [len(chunk) for chunk in chunks] == sizes
    assert [number for chunk in chunks for number in chunk] == list(range(sum(sizes)))


def test_where_nothing_is_timed_all_rows_are_one_chunk(monkeypatch):
    monkeypatch.setattr(situation.gpus, "detect", lambda index=0: None)
    assert list(made("--suite", "peers")._chunks()) == [range(23)]


def test_rows_that_are_done_take_no_room_in_a_chunk(measuring):
    asked = made("--suite", "features", "--kernels", "triton/q_block,helion/q_block")
    asked.done = {(c.id, process) for job in asked.plan.jobs[:20] for c in job.cells for process in range(3)}
    first = next(iter(asked._chunks()))
    assert first == range(28) and asked._named(first) == "rows 21 to 28 of 42"


def test_processes_spread_over_the_kernels_of_a_chunk_of_one_row(monkeypatch):
    begun = []
    monkeypatch.setattr(warm, "_compile", lambda kernel, *_: begun.append(kernel))
    kernels = ["a", "b", "c"]
    row = {"workload": pick(suite("smoke"), ROWS[0])[0].to_dict(), "kernels": kernels}
    for process in range(3):
        plain = {"compile": [row], "process": process, "processes": 3}
        channel = type("Silent", (), {"send": lambda self, event, **_: None})()
        warm.ahead(plain | {"gpu": "h200", "device": "cpu", "heuristics": "tree"}, channel)
    assert [begun[0], begun[3], begun[6]] == kernels and sorted(begun) == sorted(kernels * 3)
