"""HIP's streams, events and graphs with a clock of their own: what is launched takes 50 us of it, and up to 1% more.

A captured launch is not run until its graph is replayed. As hipGraph, a capture refuses whatever waits for the device,
work on a stream that it did not fork to, and one that was not joined; WALK_GRAPHS=refused refuses all of it.
Between two timed events a graph runs once, however often it is replayed: every replay would compute the same again.
"""

import contextlib
import functools
import os
import random
from types import SimpleNamespace

CALL_US = 50.0
CAPTURING = "HIP error: operation not permitted when stream is capturing"
STATE = SimpleNamespace(now_us=0.0, timed=False, graph=None, stream=None, ahead=False, ran=set())


def unless_capturing(function):
    @functools.wraps(function)
    def guarded(*args, **kwargs):
        if STATE.graph is not None:
            raise RuntimeError(CAPTURING)
        return function(*args, **kwargs)

    return guarded


def passes(launches=1):
    """Time on the device."""
    STATE.now_us += launches * CALL_US * (1 + 0.01 * random.random())


def launched(work):
    """A kernel on the current stream: run or captured."""
    if STATE.graph is not None:
        STATE.graph.captured(work)
    else:
        passes()
        work()


class Stream:
    """Everything runs at once, in order of launch: a stream is a name that a capture keeps apart."""

    numbers = iter(range(0, 1 << 20, 0x100))

    def __init__(self, device=None, priority=0, **_):
        self.device, self.cuda_stream = device, next(self.numbers)

    def wait_stream(self, other):
        if STATE.graph is not None:
            STATE.graph.waited(self, other)

    def wait_event(self, event):
        self.wait_stream(event.stream)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    @property
    def stream_id(self):
        return self.cuda_stream

    def query(self):
        return True

    synchronize = unless_capturing(lambda self: None)


DEFAULT = STATE.stream = Stream()


@contextlib.contextmanager
def on_stream(stream):
    before, STATE.stream = STATE.stream, stream or STATE.stream
    try:
        yield
    finally:
        STATE.stream = before


class Event:
    def __init__(self, enable_timing=False, **_):
        self.enable_timing, self.at, self.stream = enable_timing, None, None

    def record(self, stream=None):
        self.at, self.stream = STATE.now_us, stream or STATE.stream
        if self.enable_timing:
            STATE.timed = not STATE.timed
            STATE.ran.clear()

    def wait(self, stream=None):
        (stream or STATE.stream).wait_event(self)

    def elapsed_time(self, end):
        return (end.at - self.at) / 1e3

    def query(self):
        return True

    synchronize = unless_capturing(lambda self: None)


class Graph:
    """hipGraph: a list of what was launched."""

    def __init__(self, keep_graph=False):
        self.work, self.streams, self.open = [], [], []

    def capture_begin(self, pool=None, capture_error_mode="global"):
        if os.environ.get("WALK_GRAPHS") == "refused":
            raise RuntimeError("HIP error: operation not supported")
        if STATE.stream is DEFAULT:
            raise RuntimeError("HIP error: operation not permitted on the legacy stream")
        STATE.graph, self.streams, self.work = self, [STATE.stream], []

    def capture_end(self):
        STATE.graph = None
        if self.open:
            raise RuntimeError("HIP error: a stream forked from the capture was not joined")

    def captured(self, work):
        if STATE.stream not in self.streams:
            raise RuntimeError("HIP error: dependency created on uncaptured work in another stream")
        if STATE.stream is not self.streams[0] and STATE.stream not in self.open:
            self.open.append(STATE.stream)
        self.work.append(work)

    def waited(self, stream, other):
        if other in self.streams and stream not in self.streams:
            self.streams.append(stream)
        if other in self.open and stream is not other:
            self.open.remove(other)

    def replay(self):
        passes(len(self.work))
        for work in self.work if self not in STATE.ran else ():
            work()
        if STATE.timed:
            STATE.ran.add(self)

    def reset(self):
        self.work = []
