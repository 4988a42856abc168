"""A GPU on paper that launches nothing: a call costs what it did on an H200, less where its pages are still cached."""

import random

SYNC_US = 40.0  # the host's part of a sample, which its time does not hold, but the budget does
FLUSH_US = 70.0  # reading 256 MiB before it
EDGE_US = 4.0  # between the start event and the first kernel
FIRST_US = 139.0  # at least, of a call estimated by eager launches: the H200's samples had 64, 32, 36 and 3 calls


class Device:
    """A kernel, its runner and a clock. noise: relative, of a sample; apart: of a process's times from the truth."""

    def __init__(self, call_us, set_bytes, llc_bytes, noise, apart):
        self.call_us, self.set_bytes, self.llc_bytes, self.noise = call_us, set_bytes, llc_bytes, noise
        self.apart = 1 + random.gauss(0, apart)
        self.now_us, self.calls = 0.0, []

    def launch(self, batch, features, out, config, workspace, *, lse=None):
        self.calls.append(batch)

    def runner(self, launch, parts):
        graphs = []
        for part in parts:
            self.calls = []
            for number in part:
                launch(number)
            graphs.append([id(batch) for batch in self.calls])
        return Runner(self, parts, graphs)

    def first_us(self, calls):
        """What timing.first_launch_us estimates of a launch that makes so many calls."""
        return calls * max(self.call_us, FIRST_US)


class Runner:
    timer, note = "graph", ""

    def __init__(self, device, parts, graphs):
        self.device, self.parts, self.graphs = device, parts, graphs

    def sample(self, part):
        device, last, took = self.device, {}, EDGE_US
        for at, batch in enumerate(self.graphs[part]):  # the flush before it left nothing in the cache
            distance = (at - last.get(batch, at - 10**9) - 1) * device.set_bytes
            took += device.call_us * (0.6 if distance < device.llc_bytes else 1.0)
            last[batch] = at
        took *= device.apart * (1 + random.gauss(0, device.noise))
        device.now_us += took + FLUSH_US + SYNC_US
        return took / len(self.parts[part])
