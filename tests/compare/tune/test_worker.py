"""The timing lane: waiting for the GPU is a sign of life, and a row that exceeds a lane's memory has the GPU alone."""

import fcntl
import json
import threading
import time

import pytest
import torch

from compare.tune import worker
from compare.tune.worker import ALONE_SHARE, Bench

SHARE = 0.1


class Channel:
    def __init__(self):
        self.events = []

    def send(self, event, **fields):
        self.events.append((event, fields.get("cell"), fields.get("fields", {}).get("status", "")))


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(worker.timing, "make_clock", lambda device: None)
    monkeypatch.setattr(worker, "device_is_sick", lambda device: False)
    shares = []
    monkeypatch.setattr(Bench, "_most_memory", lambda self, share: shares.append(share))
    task = {"gpu": "h200", "device": "cpu", "lock": str(tmp_path / "lock"), "memory_share": SHARE, "lost": []}
    found = Bench(task | {"deadline": time.time() + 60}, Channel())
    found.shares = shares
    return found


def test_waiting_for_the_gpu_is_a_sign_of_life(bench, monkeypatch):
    monkeypatch.setattr(worker, "SIGN_S", 0.05)
    with open(bench._lock, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        threading.Timer(0.3, lambda: fcntl.flock(other, fcntl.LOCK_UN)).start()
        with bench.device_alone("kernel|row|"):
            with bench.device_alone("kernel|row|"):  # who has it does not wait for itself
                pass
            with open(bench._lock, "w") as third, pytest.raises(BlockingIOError):
                fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert 2 <= bench.channel.events.count(("start", "kernel|row|", "")) <= 8


JOB = {"id": "kernel|row|", "candidates": [{"cell": "kernel|row|default"}, {"cell": "kernel|row|other"}]}


@pytest.mark.parametrize("enough", [True, False])
def test_a_row_beyond_the_lanes_memory_has_the_gpu_alone(bench, monkeypatch, enough):
    def work(self, job):
        if not (enough and self._alone and self.shares[-1] == ALONE_SHARE):
            raise torch.OutOfMemoryError("tried to allocate 9 GB")
        self.channel.send("row", cell=job["id"])

    monkeypatch.setattr(Bench, "_work", work)
    bench.job(json.loads(json.dumps(JOB)))
    assert bench.shares == [SHARE, ALONE_SHARE, SHARE]
    said = [("row", "kernel|row|", "")] if enough else [("row", entry["cell"], "oom") for entry in JOB["candidates"]]
    assert bench.channel.events == [("start", "kernel|row|", ""), *said, ("finished", None, "")]
