"""A worker that measures on a CPU: everything is the real thing but the device's clock, its graphs and its GPU."""

import gc
import json
import os
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch

from compare.bench import measure, timing, worker
from compare.bench.arena import Arena
from compare.plan import plan, situation
from compare.process import crew

CALLS = 128  # of one sample, as the rows say
LOG = "MEASURING_WORKER_LOG"  # a file that gets a line per process and job, and one when it ended


def pretend(monkeypatch, tmp_path):
    """An H200 that is not one: runs in `tmp_path` are measured by this file, which says what it did in `log`."""
    h200 = situation.gpus.resolve("h200")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    here = situation.Situation(h200, True, "cpu", "h200 is here: checked and timed")
    monkeypatch.setattr(plan, "situation", lambda asked, device: here)
    monkeypatch.setattr(crew, "COMMAND", (sys.executable, __file__))
    monkeypatch.chdir(tmp_path)


class Replay:
    """A graph that launches when it is replayed; a call takes 100 us and up to 1% more, `slow` kernels 5% more."""

    timer, note = "graph", ""

    def __init__(self, launch, parts, clock, note=""):
        self.launch, self.parts, self.note = launch, [parts[0] * (CALLS // len(parts[0]))], note
        self.slower = 1.05 if "slow" in launch.__self__.kernel_id else 1.0

    def run(self):
        for number in sorted(set(self.parts[0])):
            self.launch(number)

    def sample(self, part):
        self.run()  # a timed launch is judged too
        return 100.0 * self.slower * (1 + 0.01 * random.random())


def fake_device():
    random.seed(os.getpid())
    measure.page_sets = lambda *_: 2
    timing.make_clock = lambda *_: None
    timing.REPLAY_US = 1.0
    timing.GraphRunner = Replay
    timing.first_launch_us = lambda launch, sets: launch(0) or 100.0
    torch.cuda.synchronize = lambda *_: None
    ahead = worker.warm.ahead

    def logged(plain, channel):
        note({"compiles": [job["kernels"] for job in plain["compile"]], "process": plain["process"]})

        def send(event, **fields):
            if event == "compiled":
                note({"ended": "compiles"})  # before the parent hears of it and goes on
            channel.send(event, **fields)

        ahead(plain, SimpleNamespace(send=send))

    worker.warm.ahead = logged
    timed = worker.measure

    def measured(task):
        note({"turns": [kernel for _, kernel in task.turns]})
        timed(task)
        note({"ended": "turns"})

    worker.measure = measured
    free_memory = worker.free_memory

    def rested():
        held = free_memory()
        note({"rests": sum(isinstance(one, Arena) for one in gc.get_objects())})
        return held

    worker.free_memory = rested


def note(plain):
    """A line of the log: what, who, when, and how many rows of the run `run` were there."""
    if LOG in os.environ:
        finished = Path("run/cells.jsonl")
        rows = len(finished.read_bytes().splitlines()) if finished.exists() else 0
        with open(os.environ[LOG], "a") as file:
            file.write(json.dumps(plain | {"pid": os.getpid(), "at": time.time(), "rows": rows}) + "\n")


if __name__ == "__main__":
    fake_device()
    worker.main()
