"""Ray for real: three nodes on this machine that pretend to be GPUs, one of which dies in the middle of a run."""

import importlib.util
import json
import os
import signal
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

from compare import __main__ as diptych
from compare.fleet.cluster import RemoteSeat
from compare.record.records import latest
from compare.record.store import load, read_records

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed (extra `fleet`)"),
    pytest.mark.xdist_group("ray"),  # one cluster at a time
]
ROWS = ["--suite", "smoke", "--workload", "prefill-33,window-17,non-causal", "--kernels", "triton/naive,baseline/sdpa"]
STORE = {"object_store_memory": 80 << 20}


@pytest.fixture
def nodes(monkeypatch, tmp_path):
    """A node of one core, and two that say H200: their cells are checked and compiled, for no GPU is here."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("DIPTYCH_FLEET_PRETEND", "1")
    monkeypatch.chdir(tmp_path)
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0, "include_dashboard": False, **STORE}
    )
    label = {"accelerator_type:H200": 1}
    cluster.workers = [cluster.add_node(num_cpus=1, num_gpus=1, resources=label, **STORE) for _ in range(2)]
    yield cluster
    cluster.shutdown()


def when_there_is_a_row(path, do):
    """Do something with the first row of a run, once it is on the disk."""

    def wait():
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if path.exists() and (rows := load(path).records):
                return do(rows[0])
            time.sleep(0.05)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def by_cell(rows):
    return {(record.cell_id, record.process): record for record in rows}


@pytest.mark.slow
def test_a_node_dies_in_the_middle_and_every_cell_is_there_once(nodes, capsys):
    def kill(row):
        (victim,) = [node for node in nodes.workers if f".{node.node_id[:6]}:" in row.seat]
        nodes.remove_node(victim, allow_graceful=False)

    killer = when_there_is_a_row(Path("run/cells.jsonl"), kill)
    code = diptych.main(["run", *ROWS, "--gpu", "h200", "--fleet", nodes.address, "--out", "run", "-q"])
    killer.join()
    assert code == 0, capsys.readouterr()
    rows = read_records(Path("run/cells.jsonl"))
    assert len(rows) == len(by_cell(rows)) == 6
    assert {row.status for row in rows if row.kernel == "triton/naive"} == {"ok"}
    assert all(row.timing is None and row.gpu is None for row in rows), "a GPU that is none gives no time"
    seats = defaultdict(set)
    for row in rows:
        seats[row.workload.label].add(row.seat)
    assert all(len(found) == 1 for found in seats.values()), "the kernels of a row stay together"
    told = json.loads(Path("run/manifest.json").read_text())["fleet"]
    assert len(told["seats"]) == 2 and len(told["losses"]) == 1
    assert "h200 x 2" in Path("run/report.md").read_text()


@pytest.mark.slow
def test_a_kind_that_is_not_there_is_checked_on_cores(nodes):
    rows = [*ROWS[:-1], "triton/naive"]
    assert diptych.main(["run", *rows, "--gpu", "mi300", "--fleet", nodes.address, "--out", "run", "-q"]) == 0
    assert {(row.status, row.timing) for row in read_records(Path("run/cells.jsonl"))} == {("ok", None)}


@pytest.mark.slow
def test_a_fleet_of_two_kinds_asks_which(nodes, capsys):
    nodes.add_node(num_cpus=1, num_gpus=1, resources={"accelerator_type:H100": 1}, **STORE)
    assert diptych.main(["run", *ROWS, "--fleet", nodes.address, "--out", "run", "-q"]) == 2
    assert "found a fleet of" in capsys.readouterr().err


@pytest.mark.slow
def test_an_actor_is_killed_and_another_takes_its_place(nodes, monkeypatch):
    begun = {}
    begin = RemoteSeat.begin

    def remembered(seat, *limit):
        begun[seat.name] = begin(seat, *limit)["pid"]
        return seat.facts

    monkeypatch.setattr(RemoteSeat, "begin", remembered)

    def kill(row):
        """The process of the seat, as the system does when memory is short."""
        os.kill(begun[row.seat], signal.SIGKILL)

    killer = when_there_is_a_row(Path("run/cells.jsonl"), kill)
    assert diptych.main(["run", *ROWS, "--gpu", "h200", "--fleet", nodes.address, "--out", "run", "-q"]) == 0
    killer.join()
    rows = read_records(Path("run/cells.jsonl"))
    assert len(rows) == len(by_cell(rows)) == 6
    told = json.loads(Path("run/manifest.json").read_text())["fleet"]
    assert len(told["losses"]) == 1 and "another seat does it" in told["losses"][0]


@pytest.fixture
def alone(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.chdir(tmp_path)


def plain(record):
    """What must be equal, however it was run."""
    found = json.loads(record.to_json())
    for name in ("run_id", "seconds", "seat", "check", "log_tail"):
        found.pop(name, None)
    return found


@pytest.mark.slow
def test_local_is_equal_cell_for_cell_to_a_plain_run_and_a_killed_driver_goes_on(alone):
    assert diptych.main(["run", *ROWS, "--out", "plain", "-q"]) == 0
    assert diptych.main(["run", *ROWS, "--fleet", "local", "--out", "fleet", "-q"]) == 0
    expected = by_cell(read_records(Path("plain/cells.jsonl")))
    assert {key: plain(r) for key, r in by_cell(read_records(Path("fleet/cells.jsonl"))).items()} == {
        key: plain(r) for key, r in expected.items()
    }
    path = Path("fleet/cells.jsonl")  # as a driver that was killed leaves it: some rows, and a torn one
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:40])
    assert diptych.main(["run", *ROWS, "--fleet", "local", "--resume", "fleet", "-q"]) == 0
    rows = load(path).records
    assert len(rows) == len(latest(rows)) == 6 and path.read_bytes().startswith(b"".join(lines[:2]))
