"""From logs to a net: a point a candidate, nothing of a fold in its own judges, and a portfolio that covers."""

import json
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from common.choice.learned import read
from common.gpus import resolve
from compare.competitors import registry
from compare.exits import NOTHING
from compare.tune import learn, learned
from compare.tune.space import DEFAULT, model, start
from compare.workloads import Workload, parse_lens, suites

GPU = resolve("h200")
ROWS = suites.unseen(3, 12)
KERNEL = registry.load("triton/parallel_softmax")


def time_of(config):
    """A made-up truth: smaller tiles are faster, and four warps."""
    return 10.0 + config["tile_size"] / 16 + 3 * abs(config["num_warps"] - 4)


def lines(rows=ROWS):
    found = []
    for row in rows:
        for tile_size in (16, 32, 64, 128):
            for warps in (1, 2, 4, 8):
                config = registry.config_dict(KERNEL.DEFAULT) | {"tile_size": tile_size, "num_warps": warps}
                us = time_of(config)
                plain = {"arm": "triton", "kernel": "triton/parallel_softmax", "row": row.label, "t": 1.0}
                plain |= {"policy": f"{tile_size} {warps}", "config": config, "status": "ok", "reason": ""}
                found.append(plain | {"screen_us": us, "final_us": us})
        chosen = {"kernel": "parallel_softmax", "config": registry.config_dict(KERNEL.DEFAULT) | {"num_warps": 1}}
        plain = {"arm": "triton", "kernel": "triton/auto", "row": row.label, "t": 1.0, "policy": "tree"}
        found.append(plain | {"config": chosen, "status": "ok", "reason": "", "screen_us": 99.0, "final_us": 21.0})
    return found


def folder(path, made, seed=3, rows=ROWS, gpu="h200"):
    path.mkdir(parents=True)
    manifest = {"gpu": gpu, "seed": seed, "rows": [row.to_dict() for row in rows], "started": "2026-01-01"}
    (path / "manifest.json").write_text(json.dumps(manifest))
    (path / "candidates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made))
    return path


@pytest.fixture(autouse=True)
def a_smaller_net(monkeypatch):
    for name, value in (("NETS", 1), ("HIDDEN", 16), ("EPOCHS", 150), ("ROWS", 4), ("RATE", 0.02)):
        monkeypatch.setattr(learn, name, value)


def test_a_point_a_config_with_its_second_time_and_what_the_rules_took(tmp_path):
    first = lines(ROWS[:1])[0]
    again = [first | {"final_us": 99.0}, {k: v for k, v in first.items() if k != "final_us"} | {"screen_us": 1.0}]
    found = learn.points([folder(tmp_path / "a", [*lines(ROWS[:1]), *again])], "triton")
    assert len(found) == 16 and sum(p.rules for p in found) == 1
    assert min(p.us for p in found if p.config == first["config"]) == time_of(first["config"])


def test_what_was_refused_is_as_bad_as_any_and_other_failures_are_none(tmp_path):
    made = lines(ROWS[:1])[:3]
    bad = [made[0] | {"status": status, "config": made[0]["config"] | {"block_m": m}} for status, m in
           (("hopeless", 32), ("shared_memory", 64), ("oom", 128), ("spills", 256))]  # fmt: skip
    found = learn.points([folder(tmp_path / "a", [*made, *bad])], "triton")
    assert sorted(p.config["block_m"] for p in found if p.us is None) == [32, 64]
    assert learn.Data(found).loss.max() == learn.CLIP


def test_a_config_of_an_older_log_teaches_and_is_none_of_a_portfolio(tmp_path):
    made = lines()
    older = [line | {"config": line["config"] | {"gone": 1}} for line in made if "kernel" not in line["config"]]
    data = learn.Data(learn.points([folder(tmp_path / "a", [*made, *older])], "triton"))
    assert any("gone" in p.config for p in data.points)
    found = learn.portfolio(data, "triton")
    assert found["parallel_softmax"] and all("gone" not in part for part in found["parallel_softmax"])


def test_runs_that_timed_nothing_are_said_to_teach_nothing(tmp_path, capsys):
    refused = [line | {"status": "hopeless", "final_us": None} for line in lines(ROWS[:1])]
    assert learn.write([folder(tmp_path / "a", refused)], ["triton/q_block"], False, None) == NOTHING
    assert capsys.readouterr().out == "nothing was timed\n"


def test_lines_of_another_dsl_are_left_out(tmp_path):
    assert learn.points([folder(tmp_path / "a", lines(ROWS[:1]))], "helion") == []


def test_the_net_finds_what_made_the_times(tmp_path):
    data = learn.Data(learn.points([folder(tmp_path / "a", lines())], "triton"))
    every = np.arange(len(data.points))
    with ThreadPoolExecutor(1) as pool:
        (net,) = data.fit([every], pool)
    lost = data.told(net, every)
    for row in np.unique(data.row):
        at = np.flatnonzero(data.row == row)
        assert data.loss[at[np.argmin(lost[at])]] < 0.02
    table = np.where(np.ptp(data.table, axis=0) == 0, data.table + 3, data.table)  # as on a GPU that no log is of
    assert (table != data.table).any() and np.allclose(net.answers(table), net.answers(data.table), atol=1e-6)


def test_a_row_is_judged_by_a_net_that_saw_nothing_of_its_fold(tmp_path, monkeypatch):
    runs = [folder(tmp_path / str(n), lines(rows), n, rows) for n, rows in enumerate((ROWS[:6], ROWS[6:]))]
    data, seen = learn.Data(learn.points(runs, "triton")), []
    fit = learn.Data.fit

    def noted(self, parts, pool):
        seen.extend({self.points[i].seed for i in at} for at in parts)
        return fit(self, parts, pool)

    monkeypatch.setattr(learn.Data, "fit", noted)
    with ThreadPoolExecutor(1) as pool:
        found = learn.held_out(data, "triton", GPU, learn.unseen(data, learn.by_seed, pool))
    assert sorted(map(tuple, seen)) == [(0,), (1,)]
    assert len(found["rules"]) == 12 and np.mean(found["first pick"]) < np.mean(found["rules"])


def test_a_portfolio_covers_what_no_single_config_does_and_each_head_size():
    of = {"many": "1234", "like it": "123", "few": "56", "one": "7"}
    near = {name: {(128, int(row)) for row in rows} for name, rows in of.items()}
    assert learn._covering(near, []) == ["many", "few"]
    assert learn._covering({"one": {(128, 7)}}, []) == ["one"]
    assert learn._covering(near, ["one"]) == ["one", "many", "few"]
    assert learn._covering({"many": {(128, 1), (128, 2), (128, 3)}, "wide": {(512, 4)}}, []) == ["many", "wide"]


def test_what_was_best_in_one_dsl_is_offered_to_the_other_in_its_fields(tmp_path):
    data = learn.Data(learn.points([folder(tmp_path / "a", lines())], "triton"))
    given, taken = (learn.portfolio(data, dsl)["parallel_softmax"] for dsl in ("triton", "helion"))
    sizes = [[(part["block_m"], part["tile_size"], part["num_warps"]) for part in parts] for parts in (given, taken)]
    assert sizes[0] and sizes[0] == sizes[1]
    assert {part["gather"] for part in taken} == {"page"} and "overlap" not in taken[0]


def test_beside_the_gluon_kernel_the_others_are_rows_of_their_own(tmp_path):
    row = ROWS[:1]
    native = lines(row)[0] | {"kernel": "triton/native.sm90_prefill", "final_us": 5.0, "screen_us": 5.0}
    native["config"] = registry.config_dict(registry.load("triton/native.sm90_prefill").DEFAULT) | {"together": True}
    data = learn.Data(learn.points([folder(tmp_path / "a", [*lines(row), native], rows=row)], "triton"))
    least = {p.row: min(data.us[data.row == number]) for number, p in zip(data.row, data.points, strict=True)}
    assert sorted(least.values()) == [5.0, min(time_of(p.config) for p in data.points if "tile_size" in p.config)]


def test_what_is_written_is_read_and_ranks(tmp_path, monkeypatch):
    path = folder(tmp_path / "a", lines())
    family = registry.load("triton/auto").FAMILY
    monkeypatch.setattr(family, "learned_path", lambda gpu: tmp_path / "learned" / "triton" / f"{gpu.name}.json")
    assert learn.write([path], ["triton/q_block"], True, tmp_path / "page") == 0
    assert "best of the first 5" in (tmp_path / "page" / "learned.md").read_text()
    monkeypatch.setattr(learned, "of", lambda dsl, gpu: read(tmp_path / "learned" / dsl / f"{gpu.name}.json", dsl, gpu))
    row, plain = ROWS[0], [registry.config_dict(KERNEL.Config(16, t, 1, w)) for t, w in ((128, 8), (16, 4), (128, 1))]
    assert learned.ranked("triton/parallel_softmax", [[one] for one in plain], [row], GPU)[0] == 1
    assert learned.ranked("triton/naive", [[{}], [{}]], [row], GPU) == [0, 1]
    assert learned.ranked("triton/parallel_softmax", [[plain[0]], [plain[1]]], [row], resolve("mi300")) == [0, 1]


def test_the_order_of_runs_is_none_of_what_they_teach(tmp_path, monkeypatch):
    monkeypatch.setattr(learn, "EPOCHS", 5)  # a net of few steps has no order either
    monkeypatch.setattr(
        learn, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1)
    )  # processes train in another test
    runs = [folder(tmp_path / str(n), lines(rows), n, rows) for n, rows in enumerate((ROWS[:6], ROWS[6:]))]
    for name, given in (("one", runs), ("other", runs[::-1])):
        assert learn.write(given, ["triton/q_block"], False, tmp_path / name) == 0
    assert (tmp_path / "one" / "learned.md").read_bytes() == (tmp_path / "other" / "learned.md").read_bytes()


def test_policies_of_the_model_are_configs_of_the_kernel_and_choices_of_auto():
    row = Workload("q1s8k", parse_lens("q1s8k"))
    auto = registry.load("triton/auto")
    made = [start(model(n), "triton/auto", auto, row, GPU) for n in (1, 2)]
    assert made[0] != made[1] and made[0].kernel in ("q_block", "parallel_softmax")
    mine = start(model(1), "triton/parallel_softmax", KERNEL, row, GPU)
    assert isinstance(mine, KERNEL.Config) and model(1).config(mine) == mine and model(1) != DEFAULT
    with warnings.catch_warnings(record=True):  # said once in a process
        nearest = start(model(1), "triton/q_block", registry.load("triton/q_block"), row, resolve("mi300"))
    assert isinstance(nearest, registry.load("triton/q_block").Config)
