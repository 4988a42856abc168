"""The GPU path of the worker on a CPU: everything but the device's clock and graphs is the real thing."""

import dataclasses
import importlib

import pytest
import torch

import fake_kernels
from compare.bench import measure, task, timing
from compare.bench.arena import Arena
from compare.record.contract import Contract
from compare.workloads.suites import pick, suite

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
    monkeypatch.setattr(measure, "page_sets", lambda *_: 2)
    monkeypatch.setattr(timing, "make_clock", lambda *_: None)
    monkeypatch.setattr(timing, "REPLAY_US", 1.0)  # one cycle a replay
    monkeypatch.setattr(timing, "GraphRunner", Replay)
    monkeypatch.setattr(timing, "EventRunner", Events)
    monkeypatch.setattr(measure.torch.cuda, "synchronize", lambda *_: None)

    def first_launch(launch, sets):
        launch(0)
        return Replay.us

    monkeypatch.setattr(timing, "first_launch_us", first_launch)
    for name in ("us", "fails", "sick_at"):
        monkeypatch.setattr(Replay, name, getattr(Replay, name))
    return monkeypatch


def measured(*kernels, row=ROW, wire=None, process=0, **contract):
    wire = Wire() if wire is None else wire
    plain = {
        "workload": row.to_dict(),
        "cells": [[name, f"fake_kernels:{name}"] for name in kernels],
        "gpu": "h200",
        "device": "cpu",
        "contract": dataclasses.asdict(Contract(**{"max_time_s": 0.2} | contract)),
        "process": process,
    }
    measure.measure(task.Task(plain, wire))
    return wire


def test_who_is_right_gets_a_time_and_who_is_not_gets_none(device):
    rows = measured("honest", "lies", "chatters").rows
    assert [rows[name]["status"] for name in ("honest", "lies", "chatters")] == ["ok", "incorrect", "ok"]
    assert rows["honest"]["timing"]["median_us"] == CALL_US
    assert rows["honest"]["gate"]["value_sets"] == 2
    assert set(rows["honest"]["evidence"]) == {"measured", "checked-on-gpu"}
    assert "timing" not in rows["lies"]


@pytest.mark.parametrize("name", ["rests", "looks_first"])
def test_the_very_launches_that_are_timed_must_write(name, device):
    """Outputs of the gate were still there in the rounds, so a kernel could leave alone what it found done."""
    rows = measured("honest", name).rows
    assert rows["honest"]["status"] == "ok"
    assert (rows[name]["status"], "timing" in rows[name]) == ("invalid_timing", False)
    assert "a timed launch: page set" in rows[name]["reason"]


def test_who_puts_a_verdict_in_the_gates_place_is_named_and_the_next_is_judged(device):
    rows = measured("waves", "lies", "honest").rows
    assert [rows[name]["status"] for name in ("waves", "lies", "honest")] == ["incorrect", "incorrect", "ok"]
    assert rows["waves"]["reason"] == "changed what judges or times it: compare.bench.gate._judge"


def test_what_another_stream_writes_behind_the_end_is_no_output(device):
    """The wait for the whole device made up for it, and no clock had seen the work."""

    def sync(self):
        while fake_kernels.Defers.waiting:
            fake_kernels.Defers.waiting.pop(0)()

    device.setattr(Arena, "sync", sync)
    rows = measured("defers", "honest").rows
    assert [rows[name]["status"] for name in ("defers", "honest")] == ["invalid_timing", "ok"]
    assert "behind the end of the call" in rows["defers"]["reason"]


def test_who_is_wrong_on_the_next_values_loses_its_time(device):
    rows = measured("remembers", "honest").rows
    assert rows["remembers"]["status"] == "incorrect" and "timing" not in rows["remembers"]
    assert rows["honest"]["status"] == "ok"


def test_a_capture_that_was_promised_and_fails_is_a_crash_and_without_the_promise_events_take_over(device):
    device.setattr(Replay, "fails", "operation not permitted when stream is capturing")
    row = measured("honest").rows["honest"]
    assert row["status"] == "crash" and "stream is capturing" in row["reason"]
    device.setattr(fake_kernels.Honest, "SUPPORTS", fake_kernels.Honest.SUPPORTS - {"full_graph"})
    taken = measured("honest").rows["honest"]["timing"]
    assert taken["timer"] == "events"
    assert taken["note"] == "not captured: RuntimeError: operation not permitted when stream is capturing"


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


def test_an_error_in_a_round_blames_whose_turn_it_was(device):
    device.setattr(Replay, "sick_at", 0)
    wire = Wire()
    with pytest.raises(task.Sick):
        measured("honest", "chatters", wire=wire)
    assert list(wire.rows) == ["honest"] and wire.rows["honest"]["status"] == "crash"


def test_rounds_are_paired_with_the_first_of_the_plan_whichever_runs_first(device):
    for process in range(3):
        wire = measured("honest", "chatters", "eats_new_tokens", process=process)
        taken = {name: row["timing"] for name, row in wire.rows.items() if row["status"] == "ok"}
        assert {t["unit"] for t in taken.values()} == {"fake_kernels:honest"}
        assert len({len(t["samples_us"]) for t in taken.values()}) == 1, "equal indices are pairs"
        first = next(fields["cell"] for event, fields in wire.events if event == "start" and fields["cell"])
        assert first == ("honest", "chatters", "eats_new_tokens")[process]


def test_exact_times_are_precise_and_three_rounds_are_not(device):
    assert measured("honest", "chatters").rows["chatters"]["timing"]["half_width"] == 0.0
    device.setattr(timing, "MIN_ROUNDS", 4)
    device.setattr(timing, "MAX_ROUNDS", 4)
    few = measured("honest", "chatters").rows["chatters"]["timing"]
    assert few["noisy"] and few["half_width"] is None


def test_three_processes_may_each_be_less_precise_than_one():
    assert Contract(precision=0.01, processes=1).precision_each == 0.01
    assert Contract(precision=0.01, processes=4).precision_each == pytest.approx(0.02)
    assert "within 0.87% (0.50% over all)" in Contract().line


def test_a_hot_cache_has_one_page_set_and_only_arithmetic_as_its_floor(device):
    taken = measured("honest", cache="hot").rows["honest"]
    assert (taken["timing"]["cache"], taken["timing"]["page_sets"]) == ("hot", 1)
    cold = measured("honest").rows["honest"]
    assert cold["timing"]["page_sets"] == 2 and taken["derived"]["floor_us"] < cold["derived"]["floor_us"]


def test_events_are_taken_where_they_are_asked_for(device):
    taken = measured("honest", timer="events").rows["honest"]["timing"]
    assert (taken["timer"], taken["note"]) == ("events", "")


def test_the_papers_protocol_runs_one_kernel_after_another_and_keeps_its_mean(device):
    device.setattr(torch.cuda, "Event", TickingEvent)
    wire = measured("honest", "chatters", timer="paper", cache="hot")
    taken = wire.rows["honest"]["timing"]
    assert (taken["timer"], taken["order"], taken["rounds"], taken["samples_us"]) == (
        "paper",
        "sequential",
        100,
        (2.0,),
    )
    assert taken["half_width"] is None and not taken["noisy"]
    turns = [fields["cell"] for event, fields in wire.events if event == "start"]
    assert turns == [None, "honest", "chatters", "honest", "chatters", "honest", "chatters"]


class TickingEvent:
    """A CUDA event on a clock that moves 1 us with every record: start and end of one launch are 2 us apart."""

    now = 0

    def __init__(self, **_):
        self.at = 0

    def record(self):
        TickingEvent.now += 2
        self.at = TickingEvent.now

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.at - self.at) * 1e-3


def test_who_changes_inputs_does_not_spoil_those_behind_it(device):
    rows = measured("eats_inputs", "honest", "chatters").rows
    assert [rows[name]["status"] for name in ("eats_inputs", "honest", "chatters")] == ["incorrect", "ok", "ok"]
    assert "changed one of its inputs" in rows["eats_inputs"]["reason"]
