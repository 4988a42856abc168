"""The noise floor on samples whose truth is known: equal twins are same, 5% is found, and the live path on a CPU."""

import json
import random
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import measuring_worker
from common.cases.batch import make_batch
from common.spec import AttentionShape, Features
from common.spec.kernel import Precision, planned
from compare.__main__ import main as diptych
from compare.competitors import registry, twins
from compare.plan import situation
from compare.process import crew
from compare.record.noise import read
from compare.run import doctor
from compare.workloads import Workload, parse_lens
from compare.workloads.cost import info

HERE = Path(__file__).parents[2] / "support"
LOAD = info(Workload("q1s2k", parse_lens("q1s2k")))


def sampled(seed, *, rounds=24, noise=0.005, droop=0.1, apart=0.004, slower=twins.SLOWER, copy=1.0):
    """Twins on a clock that droops over the rounds; `apart`: standard deviation of what differs between processes."""
    random.seed(seed)
    found = {kind: {} for kind in doctor.KINDS}
    for process in range(3):
        base = {kind: 50.0 * (1 + random.gauss(0, apart / 4)) for kind in doctor.KINDS}
        both = 1 + random.gauss(0, apart)
        truths = (1.0, copy, twins.BLOCK, twins.BLOCK * slower)
        for kind, truth in zip(doctor.KINDS, truths, strict=True):
            found[kind][process] = [
                base[kind] * both * truth * (1 + droop * r / rounds) * (1 + random.gauss(0, noise))
                for r in range(rounds)
            ]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_two_copies_are_same_and_five_percent_is_found(seed):
    row = doctor.judge(LOAD, sampled(seed), calls=512)
    assert row["aa"]["outcome"] == "same" and row["planted"]["outcome"] == "slower" and doctor.sound(row)
    assert row["aa"]["low"] <= row["aa"]["ratio"] <= row["aa"]["high"]
    assert 1.03 < row["planted"]["ratio"] < 1.07


def test_a_copy_that_is_no_copy_and_a_slowness_that_is_none_are_wrong_verdicts():
    assert not doctor.sound(doctor.judge(LOAD, sampled(1, copy=1.05), calls=512))
    assert not doctor.sound(doctor.judge(LOAD, sampled(1, slower=1.0), calls=512))


def test_noise_that_hides_a_copy_is_not_called_same():
    row = doctor.judge(LOAD, sampled(3, noise=0.2, rounds=10), calls=512)
    assert row["aa"]["outcome"] == "ambiguous" and not doctor.sound(row)


def test_the_floor_within_ignores_what_moves_both_and_the_floor_between_does_not():
    first = {0: [10.0, 11.0, 12.0], 1: [20.0, 22.0, 24.0]}
    second = {p: [us * 1.01 for us in rounds] for p, rounds in first.items()}
    assert doctor.within(first, second) == pytest.approx(0.01)
    assert doctor.between(first, second) == pytest.approx(1.0)
    assert doctor.between({0: [1.0]}) == 0.0


def test_a_sample_of_few_calls_judges_the_planted_difference_too():
    row = doctor.judge(LOAD, sampled(0), calls=2)
    assert row["planted"]["outcome"] == "slower" and doctor.sound(row)
    assert row["block_us"] == pytest.approx(row["us"], rel=0.02)


class Counting:
    SUPPORTS, CONTRACT, DEFAULT = frozenset({"causal"}), Precision(), None

    def __init__(self):
        self.seen = []

    def workspace(self, shape, capacity, config):
        return None

    def launch(self, batch, features, out, config, workspace, *, lse=None):
        self.seen.append((batch, out))


@pytest.mark.parametrize("sets", [1, 2, 3, 8, 20, 21, 32, 64, 256])
def test_the_slow_twin_makes_21_calls_for_20_and_both_read_cold_pages(sets):
    batches = [make_batch(((1, 16),), AttentionShape(2, 1, 64), fill=False) for _ in range(sets)]
    outs = [torch.empty_like(batch.query) for batch in batches]
    number = {id(batch): at for at, batch in enumerate(batches)}
    for calls in (twins.BLOCK, round(twins.BLOCK * twins.SLOWER)):
        kernel = Counting()
        twin = twins.Block(kernel, calls)
        workspace = twin.workspace(batches[0].shape, None, None)
        for _ in range(2):  # planned again after the values changed
            for batch in batches:
                twin.prepare(batch, Features(), None, workspace)
        for at in range(2 * sets):
            before = len(kernel.seen)
            twin.launch(batches[at % sets], Features(), outs[at % sets], None, workspace)
            asked = [batch for batch, out in kernel.seen[before:] if out is outs[at % sets]]
            assert asked == [batches[at % sets]], "what was asked for, once; the others write elsewhere"
        assert len(kernel.seen) == 2 * sets * calls
        visits, last, gaps = Counter(), {}, []
        for at, (batch, _) in enumerate(kernel.seen):
            visits[number[id(batch)]] += 1
            gaps.append(at - last.get(number[id(batch)], -sets))
            last[number[id(batch)]] = at
        assert max(visits.values()) - min(visits.values()) <= calls // sets + 1
        assert min(gaps) >= min(sets, calls - 1), "a page is read again after about a cycle"


def test_a_kernel_that_plans_is_planned_under_its_twins_and_gets_each_page_sets_own_plan():
    class Planning(Counting):
        def prepare(self, batch, features, config, workspace):
            return f"plan of {id(batch)}"

        def launch(self, batch, features, out, config, workspace, *, lse=None):
            self.seen.append((batch, workspace))

    kernel, batches = Planning(), [make_batch(((1, 16),), AttentionShape(2, 1, 64), fill=False) for _ in range(3)]
    twin = twins.Block(kernel, 20)
    twin.workspace(batches[0].shape, None, None)
    plans = [twin.prepare(batch, Features(), None, None) for batch in batches]
    twin.launch(batches[1], Features(), torch.empty_like(batches[1].query), None, plans[1])
    assert all(plan == f"plan of {id(batch)}" for batch, plan in kernel.seen) and len(kernel.seen) == 20
    assert planned(twins.Twin(kernel), batches[0], Features(), None, None) == plans[0]
    assert planned(twins.Twin(Counting()), batches[0], Features(), None, "as it was") == "as it was"


def test_twins_are_kernels_of_the_registry_and_strangers_are_not():
    first, slow = (registry.load(twins.name_of(kind, "baseline/sdpa")) for kind in ("first", "slow"))
    assert first.SUPPORTS == slow.SUPPORTS == registry.load("baseline/sdpa").SUPPORTS
    assert registry.load(twins.name_of("slow", "baseline/sdpa")) is slow
    with pytest.raises(registry.Unavailable):
        registry.load("compare.competitors.twins:third__baseline__sdpa")


@pytest.fixture
def measuring(monkeypatch, tmp_path):
    """An H200 that is not one: tests/support/measuring_worker.py times twins of a kernel that runs on a CPU."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    here = situation.Situation(situation.gpus.resolve("h200"), True, "cpu", "h200 is here: checked and timed")
    monkeypatch.setattr(doctor, "situation", lambda asked, device: here)
    monkeypatch.setattr(doctor, "of_gpu", lambda gpu, device: {"GPU": gpu.title})
    monkeypatch.setattr(doctor, "warnings", lambda device: ["nobody is looking"])
    monkeypatch.setattr(crew, "COMMAND", (sys.executable, str(HERE / "measuring_worker.py")))
    monkeypatch.chdir(tmp_path)


def test_live_twins_make_a_floor_that_can_be_read(measuring, capsys):
    assert measuring_worker.CALLS % twins.BLOCK, "nothing depends on how many calls a sample has"
    argv = ["--kernel", "baseline/sdpa", "--workload", "q1s40", "--processes", "2", "--max-time", "0.2"]
    assert diptych(["doctor", *argv, "--out", "floor/noise.json"]) == 0
    floor = read(Path("floor/noise.json"))
    assert (floor.gpu, floor.contract, floor.processes) == ("h200", "graph-cold-interleaved/2", 2)
    (row,) = floor.rows
    assert row["aa"]["outcome"] == "same" and row["planted"]["outcome"] == "slower"
    assert 0 < floor.within < 0.02 and 0 < floor.between < 0.02
    said = capsys.readouterr().out
    assert "nobody is looking" in said and "noise floor:" in said and "A/A" in said


def test_a_twin_that_does_not_run_is_named_and_exit_1(measuring, capsys):
    assert diptych(["doctor", "--kernel", "triton/naive", "--workload", "q1s40", "--processes", "1"]) == 1
    assert "triton/naive (first twin) on q1s40:" in capsys.readouterr().err


def test_without_a_gpu_it_says_what_it_cannot_do(monkeypatch, capsys):
    monkeypatch.setattr(situation.gpus, "detect", lambda index=0: None)
    assert diptych(["doctor", "--gpu", "mi300"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("mi300 is not here") and "cannot: time anything" in said
    assert diptych(["doctor", "--gpu", "auto", "--require-gpu"]) == 3


def test_variables_that_change_what_is_measured_are_named(monkeypatch):
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    assert any("TRITON_ALWAYS_COMPILE=1" in line for line in doctor.warnings(None))
    assert json.dumps(doctor.versions())
