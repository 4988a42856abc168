"""Costs beside speed: what is counted, from invented profiles; the command's refusals; one real compile."""

import contextlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from common.gpus import resolve
from compare.__main__ import main as diptych
from compare.studies.costs import costs, launch
from compare.workloads import Workload, parse_lens

H200 = resolve("h200")


def test_busy_sums_the_kernels_and_span_holds_the_gap_between_them():
    call = [(0.0, 10.0), (14.0, 6.0)]
    events = [(start + 1000.0 * number, took) for number in range(3) for start, took in call]
    assert launch.spans(events[::-1], 3) == {"kernels": 2, "busy_us": 16.0, "span_us": 20.0}
    beside = [(0.0, 10.0), (4.0, 3.0)]  # two kernels at a time: the span is the longer one
    assert launch.spans(beside, 1) == {"kernels": 2, "busy_us": 13.0, "span_us": 10.0}


@pytest.mark.parametrize("events", [[], [(0.0, 1.0)] * 5])
def test_a_profile_that_lost_kernels_counts_nothing(events):
    with pytest.raises(launch.TornProfile, match="found"):
        launch.spans(events, 2)


class Profiled:
    """torch.profiler.profile: what it `recorded`, by the number of activities asked for."""

    recorded: ClassVar[dict[int, int]] = {}

    def __init__(self, activities):
        self.events = lambda: [self.event(i) for i in range(self.recorded[len(activities)])]

    def event(self, number):
        time = SimpleNamespace(start=10.0 * number, elapsed_us=lambda: 2.0)
        return SimpleNamespace(device_type=torch.autograd.DeviceType.CUDA, time_range=time)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def no_gpu(monkeypatch):
    """What a call is measured by, without a GPU: a graph of two nodes, and profiles of `Profiled.recorded`."""
    monkeypatch.setattr(torch.profiler, "profile", Profiled)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(launch, "DEVICE", "cpu")
    monkeypatch.setattr(launch, "hidden_bytes", lambda call: 7)
    monkeypatch.setattr(launch, "captured", lambda call: (call, {"kernels": 2}))
    monkeypatch.setattr(launch, "enqueue_us", lambda call, calls: 3.0)
    monkeypatch.setattr(launch, "REPLAYS", 2)


@pytest.mark.parametrize(
    ("recorded", "status", "kernels", "busy"),
    [({1: 6}, "ok", 3, 6.0), ({1: 0, 2: 4}, "ok", 2, 4.0), ({1: 0, 2: 0}, "unavailable", 2, None)],
    ids=["device alone", "beside the host", "nothing"],
)
def test_without_a_profile_the_times_are_unavailable_and_kernels_are_the_graphs(
    recorded, status, kernels, busy, no_gpu, monkeypatch
):
    monkeypatch.setattr(Profiled, "recorded", recorded)
    row = launch.launch("fake_kernels:honest", Workload("q1s2", parse_lens("q1s2")), H200)
    assert (row["status"], row["kernels"], row.get("busy_us")) == (status, kernels, busy), row
    assert (row["host_us"], row["hidden_bytes"], row["timer"]) == (3.0, 7, "graph")
    assert "reason" not in row if status == "ok" else "CUPTI" in row["reason"]
    assert ("span_us" in row) == (status == "ok")


def test_a_torn_profile_is_a_crash(no_gpu, monkeypatch):
    monkeypatch.setattr(Profiled, "recorded", {1: 5})
    row = launch.launch("fake_kernels:honest", Workload("q1s2", parse_lens("q1s2")), H200)
    assert row["status"] == "crash" and "found 5 kernels in 2 calls" in row["reason"]


class Driver:
    """libcuda with one graph: nodes of these types; code: what it answers."""

    def __init__(self, types, code=0):
        self.types, self.code = types, code

    def cuGraphGetNodes(self, graph, nodes, size):
        assert graph.value == 99
        size._obj.value = len(self.types)
        for i in range(len(self.types) if nodes is not None else 0):
            nodes[i] = 1000 + i
        return self.code

    def cuGraphNodeGetType(self, node, kind):
        kind._obj.value = self.types[node.value - 1000]
        return self.code

    hipGraphGetNodes, hipGraphNodeGetType = cuGraphGetNodes, cuGraphNodeGetType


@pytest.mark.parametrize(("hip", "library"), [(None, "libcuda.so.1"), ("6.4", "libamdhip64.so")])
def test_kernels_copies_and_fills_of_a_graph_are_counted(hip, library, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", hip)
    assert launch.count(99, {library: Driver([0, 5, 0, 2, 1, 6])}.get) == 4
    assert launch.count(99, lambda name: Driver([])) == 0


class Graph:
    """torch.cuda.CUDAGraph that keeps its graph, number 99."""

    def __init__(self, keep_graph=False):
        self.kept, self.calls = keep_graph, 0

    def raw_cuda_graph(self):
        assert self.kept and self.calls
        return 99

    def instantiate(self):
        self.calls += 1

    def replay(self):
        return "replayed"


@pytest.mark.parametrize(("refuses", "found"), [(False, {"kernels": 2}), (True, {})])
def test_a_captured_call_is_counted_where_it_can_be(refuses, found, monkeypatch):
    def count(graph):
        if refuses:
            raise launch.CannotCount("no driver")
        return 2 * (graph == 99)

    calls = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", contextlib.nullcontext)
    monkeypatch.setattr(launch, "count", count)
    replay, nodes = launch.captured(lambda: calls.append(1))
    assert (replay(), nodes, calls) == ("replayed", found, [1])


def absent(name):
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(
    ("load", "said"), [(absent, "libcuda.so.1: cannot open"), (lambda name: Driver([0], 1), "error 1")]
)
def test_without_the_driver_nothing_is_counted(load, said):
    with pytest.raises(launch.CannotCount, match=said):
        launch.count(99, load)


def test_a_workspaces_bytes_are_those_of_its_distinct_storages():
    @dataclass
    class Workspace:
        parts: torch.Tensor
        more: dict

    parts = torch.empty(10, dtype=torch.float32)
    made = Workspace(parts, {"view": parts[:3], "others": [torch.empty(2, dtype=torch.int64), None, 5]})
    assert launch.tensor_bytes(made) == 40 + 16
    assert launch.tensor_bytes(None) == 0


def test_scratch_is_measured_without_a_gpu_and_a_refusal_is_a_row():
    row = Workload("q1s2k", parse_lens("q1s2k"))
    assert launch.scratch("triton/q_block", row, H200)["scratch_bytes"] == 0
    assert launch.scratch("triton/parallel_softmax", row, H200)["scratch_bytes"] > 0
    absent = launch.scratch("baseline/flash_attn3", row, H200)
    assert (absent["status"], "scratch_bytes" in absent) == ("unavailable", False)


def test_rows_are_kept_and_read_again_and_the_last_word_wins(tmp_path):
    for _ in range(2):
        words = ["--gpu", "h200", "--only", "scratch", "--kernels", "triton/q_block", "--workload", "q1s2k,q64"]
        assert diptych(["study", "costs", *words, "--out", str(tmp_path)]) == 0
    rows = costs.read(tmp_path)
    assert len(rows) == 2 and all(row["ran_on"] == costs.processor() for row in rows)
    assert [rows[0][name] for name in ("kernel", "workload", "scratch_bytes")] == ["triton/q_block", "q1s2k", 0]
    with (tmp_path / "costs.jsonl").open("a") as file:
        file.write('{"cost": "sc')
    with pytest.raises(ValueError, match="line 5"):
        costs.read(tmp_path)
