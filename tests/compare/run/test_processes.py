"""The whole path of a measured run on a CPU: fresh processes, rotated orders, a row a cell and process, one report."""

import json
from pathlib import Path

import pytest

import measuring_worker
from compare.analysis.cells import combined
from compare.plan import situation
from compare.plan.plan import Plan
from compare.record.store import read_records
from compare.run import command, options

SMALL = ["--workload", "q1s40_q3", "--shape", "2:1:64", "--gpu", "h200"]


@pytest.fixture
def measuring(monkeypatch, tmp_path):
    """An H200 that is not one: what is timed are fake kernels, by tests/support/measuring_worker.py."""
    measuring_worker.pretend(monkeypatch, tmp_path)


def kernels(*names):
    return ["--kernels", ",".join(f"fake_kernels:{name}" for name in names)]


def log():
    return [json.loads(line) for line in Path("log").read_text().splitlines()]


def test_three_fresh_processes_measure_every_cell_once_each_beginning_elsewhere(measuring, capsys):
    assert command.main([*SMALL, *kernels("honest", "chatters", "lies"), "--out", "run", "--max-time", "0.05"]) == 1
    rows = read_records(Path("run/cells.jsonl"))
    assert sorted((r.kernel.split(":")[1], r.process) for r in rows) == [
        (name, process) for name in ("chatters", "honest", "lies") for process in range(3)
    ]
    turns = [line for line in log() if "turns" in line]
    assert [line["turns"][0].split(":")[1] for line in turns] == ["honest", "chatters", "lies"]
    assert len({line["pid"] for line in turns}) == 3
    cells = {record.kernel.split(":")[1]: record for record in combined(rows)}
    assert cells["lies"].status == "incorrect" and cells["honest"].timing.processes == 3
    assert cells["chatters"].timing.unit == "fake_kernels:honest"
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert (manifest["planned"], manifest["finished"]) == (3, 3)
    assert manifest["timing_contract"] == manifest["contract"]["name"] == "graph-cold-interleaved/2"
    said = capsys.readouterr()
    assert "timing contract graph-cold-interleaved/2: replayed graphs, cold cache" in said.out
    assert said.out.splitlines()[-1].startswith("3 cells: 2 ok, 1 incorrect")
    assert "process 3 of 3: fake_kernels:" in said.err
    assert "honest" in Path("run/report.md").read_text()


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ([], "graph-cold-interleaved/2"),
        (["--timer", "events", "--set", "cache=hot"], "events-hot-interleaved/2"),
        (["--timer", "paper"], "paper-hot-sequential/2"),
    ],
    ids=str,
)
def test_each_timer_and_cache_is_a_contract_of_its_own(measuring, argv, name):
    assert options.parse([*SMALL, *argv]).timing.contract(measured=True).name == name


def test_a_precision_is_a_share_or_a_percentage():
    said = [options.parse(["--precision", text]).timing.precision for text in ("0.5%", "0.005")]
    assert said == [0.005, 0.005]


def test_where_nothing_is_timed_one_process_checks(monkeypatch):
    monkeypatch.setattr(situation.gpus, "detect", lambda index=0: None)
    asked = options.parse(["--gpu", "mi300", "--processes", "5"])
    assert Plan.of(asked.rows, asked.where, asked.timing).contract.processes == 1
