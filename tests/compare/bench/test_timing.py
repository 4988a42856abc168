import itertools
import statistics
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from compare.bench import nvidia, timing
from compare.bench.timing import Against, Track, interleave, partition, round_order, summarise, width


class Fake:
    """A runner whose calls last `us` and move a clock."""

    timer, note = "graph", ""

    def __init__(self, clock, us, parts=((0,),), wobble=0.0):
        self.clock, self.us, self.parts, self.wobble = clock, us, list(parts), wobble
        self.seen = []

    def run(self):
        pass

    def sample(self, part):
        self.seen.append(part)
        self.clock[0] += self.us * len(self.parts[part]) * 1e-6
        return self.us * (1 + self.wobble * (len(self.seen) * 0.618034 % 1))  # never the same twice


@pytest.mark.parametrize(
    ("sets", "call_us"), [(1, 700.0), (256, 7.0), (64, 10.0), (4, 14000.0), (16, 1000.0), (512, 500.0), (3, 90.0)]
)
def test_graphs_visit_every_page_set_and_are_long_enough(sets, call_us):
    parts = partition(sets, call_us)
    assert {number for part in parts for number in part} == set(range(sets))
    assert all(len(part) <= timing.MAX_CALLS for part in parts)
    if len(parts) > 1:  # a cut cycle: each graph but the last lasts about a replay
        assert all(len(part) * call_us >= timing.REPLAY_US / 2 for part in parts[:-1])
    else:  # whole cycles only: a page is read again after all the others
        assert len(parts[0]) % sets == 0


def test_a_long_call_visits_few_page_sets():
    assert partition(16, 120_000.0) == [(0,), (1,), (2,), (3,)]


def test_every_order_is_a_permutation_and_neighbours_change():
    orders = [round_order(4, number) for number in range(8)]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    followers = {(a, b) for order in orders for a, b in pairwise(order)}
    assert {(0, 1), (1, 0), (1, 2), (2, 1)} <= followers
    assert len({order[0] for order in orders}) == 4


def test_rounds_stop_at_the_budget_but_not_before_the_least():
    clock = [0.0]
    tracks = [Track("a", Fake(clock, 100_000.0), []), Track("b", Fake(clock, 100_000.0, wobble=0.4), [])]
    assert interleave(tracks, 3.0, now=lambda: clock[0]) == pytest.approx(14, abs=1)
    clock[0] = 0.0
    slow = [Track("a", Fake(clock, 5e6), [])]
    assert interleave(slow, 3.0, now=lambda: clock[0]) == 3


def pair(clock, wobble):
    """Two tracks 5% apart, whose times wobble apart."""
    steady = Track("a", Fake(clock, 10.0), [])
    return [steady, Track("b", Fake(clock, 10.5, wobble=wobble), [])]


def test_precise_pairs_stop_early_and_others_at_the_most_rounds():
    assert interleave(pair([0.0], 0.0), 3.0, now=lambda: 0.0) == timing.MIN_ROUNDS
    noisy = pair([0.0], 0.2)
    assert interleave(noisy, 3.0, now=lambda: 0.0) == timing.MAX_ROUNDS
    assert summarise(noisy[1].runner, noisy[1].samples, 1, Against("a", noisy[0].samples)).noisy
    assert interleave(pair([0.0], 0.2), 3.0, precision=0.5, now=lambda: 0.0) == timing.MIN_ROUNDS


def test_what_moves_all_kernels_alike_costs_no_rounds():
    class Drooping(Fake):
        def sample(self, part):
            return super().sample(part) * (1 + 0.3 * clock[0])

    clock = [0.0]
    tracks = [Track("a", Drooping(clock, 1e4), []), Track("b", Drooping(clock, 1e4), [])]
    rounds = interleave(tracks, 30.0, now=lambda: clock[0])
    assert rounds < timing.MAX_ROUNDS
    assert width(tracks[1].samples, tracks[0].samples) < width(tracks[0].samples, None)


def test_a_kernel_alone_is_judged_by_its_own_times():
    alone = Track("a", Fake([0.0], 10.0), [])
    assert interleave([alone], 3.0, now=lambda: 0.0) == timing.MIN_ROUNDS
    wobbling = Track("a", Fake([0.0], 10.0, wobble=0.2), [])
    assert interleave([wobbling], 3.0, now=lambda: 0.0) == timing.MAX_ROUNDS


def test_patience_buys_the_ten_rounds_that_an_interval_takes():
    clock = [0.0]
    slow = [Track("a", Fake(clock, 5e6, wobble=0.1), [])]
    assert interleave(slow, 6.0, patience=10.0, now=lambda: clock[0]) == timing.MIN_ROUNDS
    clock[0] = 0.0
    slow = [Track("a", Fake(clock, 5e6, wobble=0.1), [])]
    assert interleave(slow, 4.0, patience=10.0, now=lambda: clock[0]) == timing.FEW_ROUNDS


def test_somebody_may_look_at_the_clocks_around_every_round():
    clock, seen = [0.0], []
    rounds = interleave(pair(clock, 0.0), 3.0, now=lambda: clock[0], between=lambda: seen.append(clock[0]))
    assert len(seen) == rounds + 1 and sorted(set(seen)) == seen


def test_the_warm_up_is_dropped_and_rounds_rotate_over_parts():
    clock = [0.0]
    runner = Fake(clock, 10.0, parts=[(0, 1), (2, 3), (4,)])
    track = Track("a", runner, [])
    rounds = interleave([track], 3.0, now=lambda: clock[0])
    assert len(track.samples) == rounds == len(runner.seen) - 1
    assert runner.seen[:5] == [0, 0, 1, 2, 0]


def test_whose_turn_it_is_is_told_before_each_sample():
    clock, told = [0.0], []
    tracks = [Track("a", Fake(clock, 10.0), []), Track("b", Fake(clock, 10.0), [])]
    rounds = interleave(tracks, 1.0, now=lambda: clock[0], before=told.append)
    assert told[:6] == ["a", "b", "a", "b", "b", "a"]  # warm-up, first round, second round reversed
    assert len(told) == 2 * (rounds + 1)


def test_nothing_to_time_takes_no_round():
    assert interleave([], 1.0) == 0


def test_a_summary_counts_distinct_page_sets():
    runner = Fake([0.0], 10.0, parts=[(0, 1, 2, 0, 1, 2)])
    taken = summarise(runner, [10.0, 11.0, 12.0], 1 << 29, Against("", None))
    assert (taken.page_sets, taken.calls_per_sample, taken.median_us, taken.rounds) == (3, 6, 11.0, 3)


def test_a_slow_cell_is_timed_by_its_own_checks():
    slow = timing.SlowRunner(Fake([0.0], 300_000.0))
    for _ in range(3):
        slow.run()
    assert slow.samples == [300_000.0] * 3 and "three launches" in slow.note


class Drooping(Fake):
    """A kernel on a GPU that gets slower by 15% over the first ten seconds of work."""

    def sample(self, part):
        slower = 1 + 0.15 * min(self.clock[0] / 10, 1)
        self.clock[0] += 0.05
        return 100.0 * slower


def test_one_after_another_takes_sides_and_turns_do_not():
    clock = [0.0]
    first, second = (Drooping(clock, 100.0) for _ in range(2))
    means = [sum(runner.sample(0) for _ in range(100)) / 100 for runner in (first, second)]
    clock[0] = 0.0
    tracks = [Track(name, Drooping(clock, 100.0), []) for name in "ab"]
    interleave(tracks, 10.0, precision=1e-9, now=lambda: clock[0])
    ratio = statistics.median(b / a for a, b in zip(tracks[0].samples, tracks[1].samples, strict=True))
    print(f"equal kernels on a clock that droops by 15%: {means[1] / means[0] - 1:.1%} apart one after another,")
    print(f"{ratio - 1:.2%} in turns")
    assert means[1] / means[0] > 1.05 and abs(ratio - 1) < 0.002


def test_a_host_that_stops_once_is_not_taken_for_a_slow_call(monkeypatch):
    """The estimate says how many calls a graph has: 30 ms too long, and each sample pays the launch of its graph."""
    now, stops = [0.0], iter([0.0, 0.03, 0.0, 0.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing.torch.cuda, "synchronize", lambda: None)
    numbers = []

    def launch(number):
        numbers.append(number)
        now[0] += 0.0001 + next(stops)

    assert timing.first_launch_us(launch, 6) == pytest.approx(100)
    assert set(numbers) == {0, 5}


def test_energy_is_a_calls_share_of_the_counter(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    counter, clock = itertools.count(100.0, 30.0), itertools.count(0.0, 0.25)
    runs = []
    runner = SimpleNamespace(run=lambda: runs.append(1), parts=[(0, 1), (2,)])
    found = timing.joules(runner, lambda: next(counter), 1.0, lambda: next(clock))
    assert (len(runs), found) == (1 + 3, 30.0 / 9)  # one warms up; each later one is three calls


def test_nvml_has_the_energy_in_millijoules(monkeypatch):
    fake = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: {"GPU-1": 2500}[handle],
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(nvidia, "address", lambda device: "GPU-1")
    assert nvidia.energy(torch.device("cuda"))() == 2.5
