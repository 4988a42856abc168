"""The arm of Helion's own autotuner, with a stand-in for its search: lines of the log, and what runs in its place."""

from types import SimpleNamespace

import pytest
import simulated_tuning

from common.gpus import resolve
from compare.bench import gate
from compare.bench.arena import Arena
from compare.bench.subject import Subject
from compare.competitors import registry
from compare.tune import helion as tune_helion
from compare.tune.records import done, latest, read
from compare.workloads.suites import pick, suite

ROW = pick(suite("smoke"), "speculative-4")[0]


@pytest.mark.timeout(300)
def test_each_row_has_the_default_and_what_was_found_in_its_share_of_the_time(tmp_path, capsys):
    kernels = "triton/q_block,helion/q_block"
    assert simulated_tuning.run(tmp_path, "--arm", tune_helion.ARM, kernels=kernels, most=2) == 0
    lines, rows = read(tmp_path / "candidates.jsonl"), simulated_tuning.rows()[:2]
    last = latest(lines, tune_helion.ARM)
    named = [kernel for kernel in kernels.split(",") if kernel.startswith("helion/")]
    assert set(last) == {(k, r.label, p) for k in named for r in rows for p in ("default", tune_helion.ARM)}
    assert all(line["status"] == "ok" and "final_us" in line for line in last.values())
    found = [line for (_, _, policy), line in last.items() if policy == tune_helion.ARM]
    assert all(line["config"]["asked_s"] >= tune_helion.LEAST_S and "search_s" in line for line in found)
    assert {line["config"]["block_m"] for line in last.values() if line["policy"] == "default"}
    assert len(done(lines, tune_helion.ARM)) == len(named) * len(rows)
    assert not list(tmp_path.glob("winners*")) and "(1.00x) after" in capsys.readouterr().out


@pytest.fixture(scope="module")
def arena():
    return Arena(ROW, 1, "cpu")


def subject(kind, kernel_id, arena):
    kernel = registry.load(kernel_id)
    return kernel, kind(kernel_id, arena, resolve("h200"), kernel.DEFAULT, "given")


def test_another_helion_config_runs_in_its_place_and_is_right(arena):
    kernel, plain = subject(Subject, "helion/ablations.idiomatic", arena)
    ((bindable, args),) = tune_helion.launches(kernel, lambda: plain.launch(0))
    _, tuned = subject(tune_helion.Tuned, "helion/ablations.idiomatic", arena)
    default = bindable.bind(args).config_spec.default_config()
    tuned.helion_config = type(default)(**default.config | {"block_sizes": [2, 64, 16]})
    gate.once(arena, lambda: tuned.launch(0), [0], kernel.CONTRACT)
    assert kernel.run.__module__ == "dsl_helion.binding"  # put back


def test_a_kernel_of_several_launches_is_refused_by_name(arena, monkeypatch):
    monkeypatch.setattr(tune_helion, "launches", lambda kernel, launch: [(None, ())] * 2)
    lane = object.__new__(tune_helion.Autotuner)
    with pytest.raises(gate.Rejected, match="2 launches share block sizes"):
        lane._search(SimpleNamespace(kernel=None, launch=None), "cell")


def test_the_search_asks_helion_for_its_budget_and_seed():
    asked = {}

    class Bound:
        settings = SimpleNamespace()

        def autotune(self, args, force):
            asked.update(vars(self.settings), force=force)
            return "found"

    bindable = SimpleNamespace(bind=lambda args: Bound())
    assert tune_helion.autotune(bindable, (), 12.7, 3) == "found"
    assert asked == tune_helion.OPTIONS | {"autotune_budget_seconds": 12, "autotune_random_seed": 3, "force": True}


def test_helion_still_has_these_settings():
    settings = pytest.importorskip("helion").Settings()
    for name, value in (tune_helion.OPTIONS | {"autotune_budget_seconds": 9, "autotune_random_seed": 1}).items():
        assert hasattr(settings, name)
        setattr(settings, name, value)
