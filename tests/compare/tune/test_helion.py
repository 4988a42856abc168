"""The arm of Helion's own autotuner, interpreted: what it captures, what it puts in its place, what it refuses."""

from types import SimpleNamespace

import pytest

from common.gpus import resolve
from compare.bench import gate
from compare.bench.arena import Arena
from compare.bench.subject import Subject
from compare.competitors import registry
from compare.tune import helion as tune_helion
from compare.tune.space import DEFAULT, start
from compare.workloads import Ask, Workload, parse_lens
from compare.workloads.suites import pick, suite

ROW = pick(suite("smoke"), "speculative-4")[0]


@pytest.fixture(scope="module")
def arena():
    return Arena(ROW, 1, "cpu")


def subject(kind, kernel_id, arena):
    kernel = registry.load(kernel_id)
    config, _ = registry.default_config(kernel_id, kernel, ROW.shape, ROW.stats, resolve("h200"), "default")
    return kernel, kind(kernel_id, arena, resolve("h200"), config, "tuning")


@pytest.mark.slow
def test_another_helion_config_runs_in_its_place_and_is_right(arena):
    kernel, plain = subject(Subject, "helion/q_block", arena)
    ((bindable, args),) = tune_helion.launches(kernel, lambda: plain.launch(0))
    _, tuned = subject(tune_helion.Tuned, "helion/q_block", arena)
    spec = bindable.bind(args).config_spec
    tuned.helion_config = type(spec.default_config())(**spec.default_config().config | {"block_sizes": [32, 16]})
    gate.once(arena, lambda: tuned.launch(0), [0], kernel.CONTRACT)
    assert kernel.run.__module__ == "dsl_helion.binding"  # put back


@pytest.mark.slow
def test_kernels_of_several_launches_are_counted(arena):
    kernel = registry.load("helion/parallel_softmax")
    two = Subject("helion/parallel_softmax", arena, resolve("h200"), kernel.DEFAULT, "given")
    assert len(tune_helion.launches(kernel, lambda: two.launch(0))) == 2


def test_the_search_asks_helion_for_its_budget_and_seed():
    asked = {}

    class Bound:
        def __init__(self):
            self.settings = type("Settings", (), {})()

        def autotune(self, args, force):
            asked.update(vars(self.settings), force=force)
            return "found"

    bindable = type("Kernel", (), {"bind": lambda self, args: Bound()})()
    assert tune_helion.autotune(bindable, (), 12.7, 3) == "found"
    assert asked["autotune_budget_seconds"] == 12 and asked["autotune_random_seed"] == 3 and asked["force"]


def test_helion_still_has_these_settings():
    helion = pytest.importorskip("helion")
    settings = helion.Settings()
    for name, value in (tune_helion.OPTIONS | {"autotune_budget_seconds": 9, "autotune_random_seed": 1}).items():
        assert hasattr(settings, name)
        setattr(settings, name, value)


def test_the_default_of_a_windowed_row_is_the_one_for_the_keys_that_it_sees(monkeypatch):
    """On an H200 6 segments of parallel_softmax, which a call gets; 12 without the window."""
    configs, kernel_id = [], "helion/parallel_softmax"
    row = Workload("windowed", parse_lens("4q1s16k"), ask=Ask(sliding_window=256))
    monkeypatch.setattr(tune_helion, "launches", lambda kernel, launch: [])
    for kind in ("Subject", "Tuned"):
        monkeypatch.setattr(tune_helion, kind, lambda *asked: configs.append(asked[3]))
    lane = object.__new__(tune_helion.Autotuner)
    lane.gpu, lane.channel, lane._alone = resolve("h200"), SimpleNamespace(send=lambda *_, **__: None), True
    lane._arena_of = lambda row: None
    lane.job({"row": row.to_dict(), "kernel": kernel_id, "id": "windowed|"})
    assert configs == [start(DEFAULT, kernel_id, registry.load(kernel_id), row, resolve("h200"))] * 2
