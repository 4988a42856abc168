"""The GPU path of the worker on a CPU: everything but the device's clock and graphs is the real thing."""

import importlib

import fake_kernels
import pytest

from compare import timing, worker
from compare.suites import pick, suite

ROW = pick(suite("smoke"), "chunk-17-over-40")[0]
CALL_US = 900.0


class Wire:
    """Collects what the worker would send."""

    def __init__(self):
        self.events = []

    def send(self, event, **fields):
        self.events.append((event, fields))

    @property
    def rows(self):
        return {fields["cell"]: fields["outcome"] for event, fields in self.events if event == "row"}


class Replay:
    """A graph that launches when it is replayed and always takes as long as told."""

    timer = "graph"
    us = CALL_US
    fails = ""
    sick_at = None

    def __init__(self, launch, parts, clock, note=""):
        if self.fails and self.timer == "graph":
            raise RuntimeError(self.fails)
        self.launch, self.parts, self.note = launch, parts, note

    def run(self):
        for part in self.parts:
            for number in part:
                self.launch(number)

    def sample(self, part):
        if self.sick_at == part:
            raise RuntimeError("an illegal memory access was encountered")
        for number in self.parts[part]:
            self.launch(number)
        return self.us


class Events(Replay):
    timer = "events"


@pytest.fixture
def device(monkeypatch):
    """Replaces the device's part: two page sets, a first launch of CALL_US, replays that take CALL_US."""
    importlib.reload(fake_kernels)
    monkeypatch.setattr(worker, "page_sets", lambda *_: 2)
    monkeypatch.setattr(timing, "make_clock", lambda _: None)
    monkeypatch.setattr(timing, "REPLAY_US", 1.0)  # one cycle a replay
    monkeypatch.setattr(timing, "GraphRunner", Replay)
    monkeypatch.setattr(timing, "EventRunner", Events)
    monkeypatch.setattr(worker.torch.cuda, "synchronize", lambda *_: None)

    def first_launch(launch, sets):
        launch(0)
        return Replay.us

    monkeypatch.setattr(timing, "first_launch_us", first_launch)
    for name in ("us", "fails", "sick_at"):
        monkeypatch.setattr(Replay, name, getattr(Replay, name))
    return monkeypatch


def measured(*kernels, row=ROW, configs=0):
    wire = Wire()
    plain = {
        "workload": row.to_dict(),
        "cells": [[name, f"fake_kernels:{name}"] for name in kernels],
        "gpu": "h200",
        "device": "cpu",
        "max_time": 0.2,
        "configs": configs,
        "seed": 0,
    }
    worker.measure(worker.Task(plain, wire))
    return wire


def test_who_is_right_gets_a_time_and_who_is_not_gets_none(device):
    rows = measured("honest", "lies", "chatters").rows
    assert [rows[name]["status"] for name in ("honest", "lies", "chatters")] == ["ok", "incorrect", "ok"]
    assert rows["honest"]["timing"]["median_us"] == CALL_US
    assert rows["honest"]["gate"]["value_sets"] == 2
    assert set(rows["honest"]["evidence"]) == {"measured", "checked-on-gpu"}
    assert "timing" not in rows["lies"]


def test_who_is_wrong_on_the_next_values_loses_its_time(device):
    rows = measured("remembers", "honest").rows
    assert rows["remembers"]["status"] == "incorrect" and "timing" not in rows["remembers"]
    assert rows["honest"]["status"] == "ok"


def test_a_capture_that_was_promised_and_fails_is_a_crash(device):
    device.setattr(Replay, "fails", "operation not permitted when stream is capturing")
    row = measured("honest").rows["honest"]
    assert row["status"] == "crash" and "stream is capturing" in row["reason"]


def test_without_the_promise_events_take_over_and_say_so(device):
    device.setattr(Replay, "fails", "operation not permitted when stream is capturing")
    device.setattr(fake_kernels.Honest, "SUPPORTS", fake_kernels.Honest.SUPPORTS - {"full_graph"})
    row = measured("honest").rows["honest"]
    assert row["timing"]["timer"] == "events" and "not captured" in row["timing"]["note"]


def test_a_slow_cell_gets_three_launches(device):
    device.setattr(Replay, "us", 300_000.0)
    row = measured("honest").rows["honest"]
    assert row["status"] == "ok", row["reason"]
    taken = row["timing"]
    assert (taken["rounds"], taken["order"], taken["page_sets"]) == (3, "alone", 1)


def test_a_time_below_the_floor_is_no_time(device):
    device.setattr(Replay, "us", 1e-3)
    row = measured("honest").rows["honest"]
    assert row["status"] == "invalid_timing" and "timing" not in row and "floor" in row["reason"]


def test_random_configs_are_gated_and_the_default_gets_its_share(device):
    row = measured("honest", configs=2).rows["honest"]
    found = row["search"]
    assert (found["configs"], found["gated"], found["default_share"]) == (2, 2, 1.0)
    assert found["best_random_config"]["size"] in (16, 32, 64)


def test_an_error_in_a_round_blames_whose_turn_it_was(device):
    device.setattr(Replay, "sick_at", 0)
    wire = Wire()
    with pytest.raises(worker.Sick):
        wire = measured_until_sick(wire)
    assert list(wire.rows) == ["honest"] and wire.rows["honest"]["status"] == "crash"


def measured_until_sick(wire):
    plain = {
        "workload": ROW.to_dict(),
        "cells": [["honest", "fake_kernels:honest"], ["chatters", "fake_kernels:chatters"]],
        "gpu": "h200",
        "device": "cpu",
        "max_time": 0.2,
        "configs": 0,
        "seed": 0,
    }
    worker.measure(worker.Task(plain, wire))
