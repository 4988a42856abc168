"""From a run's lines to winners: only what is faster than what is taken unmeasured, by more than noise."""

import dataclasses
import json

import pytest

from common.gpus import resolve
from common.serving import winners
from common.serving.winners import Winner, key
from compare.competitors import registry
from compare.tune import records, tune, won
from compare.tune.space import DEFAULT, TREE, Policy
from compare.tune.won import Fitted
from compare.workloads import Ask

GPU = resolve("h200")
ROWS = [row for row in tune.pick_rows(16) if not row.asked]
KERNELS = [f"triton/{name}" for name in (*won.CHOSEN, "static_grid")]
OTHER = Policy(set=(("num_warps", 8),))
SOURCES = won.stamps(KERNELS)


def takes(row):
    """The rules' kernel."""
    return registry.load("triton/auto").choose(row.shape, row.stats, GPU, heuristics="learned").kernel


def line(row, kernel_id, policy, us, config=None):
    if config is None:
        found, _ = registry.default_config(
            kernel_id, registry.load(kernel_id), row.shape, row.stats, GPU, policy.heuristics
        )
        config = registry.config_dict(found)
    plain = {"arm": "triton", "kernel": kernel_id, "row": row.label, "policy": policy.name, "config": config}
    return plain | {"status": "ok", "screen_us": us, "final_us": us, "t": 1.0}


def rules(us=100.0, skip=()):
    """Lines of every kernel with the rules' config: all as fast, but for parallel_softmax's decodes in segments, which
    the rules take in one where they choose it."""
    found = []
    for row in ROWS:
        chosen = registry.load("triton/auto").choose(row.shape, row.stats, GPU, heuristics="learned")
        for kernel_id in KERNELS:
            if (row.label, kernel_id) not in skip:
                mine = kernel_id == f"triton/{chosen.kernel}"
                config = registry.config_dict(chosen.config) if mine else None
                found.append(line(row, kernel_id, DEFAULT, us, config))
    return found


def changed(row, kernel_id, us, **values):
    plain = line(row, kernel_id, DEFAULT, us)["config"]
    return line(row, kernel_id, OTHER, us, plain | values)


def fitted(lines, rows=ROWS):
    return Fitted("triton", lines, rows, SOURCES, GPU)


def test_where_nothing_is_faster_there_is_no_winner():
    noise = [changed(row, "triton/q_block", 98.0, num_warps=8) for row in ROWS]
    found = fitted(rules() + noise)
    assert not found.winners and max(found.lost["auto"]) == pytest.approx(100 / 98)


def test_a_faster_config_wins_its_kernel_and_the_fastest_kernel_the_row():
    first, second = [row for row in ROWS if takes(row) == "parallel_softmax"][:2]
    faster = [
        changed(first, "triton/q_block", 50.0, num_warps=8),
        changed(second, "triton/parallel_softmax", 50.0, num_warps=8),
        line(second, "triton/q_block", DEFAULT, 40.0),
    ]
    found = fitted(rules() + faster).winners
    one, other = found["auto", key(first.shape, first.stats)], found["auto", key(second.shape, second.stats)]
    assert (one.kernel, one.us, one.first_us, one.row) == ("q_block", 50.0, 100.0, first.label)
    assert one.config["num_warps"] == 8 and one.stamp == SOURCES["triton/q_block"]
    assert other.kernel == "q_block" and other.us == 40.0
    assert {of for of, at in found if at == one.key} == {"auto", "q_block"}
    assert {of for of, at in found if at == other.key} == {"auto", "parallel_softmax"}


def test_what_was_slower_in_the_screening_the_one_graph_and_an_older_config_are_no_winners():
    lucky = changed(ROWS[0], "triton/q_block", 50.0, num_warps=8) | {"screen_us": 101.0}
    graph = [line(row, "triton/static_grid", OTHER, 1.0) for row in ROWS]
    for more in ([lucky], graph, [changed(ROWS[0], "triton/q_block", 1.0, gone=1)]):
        assert not fitted([*rules(), *more]).winners


def test_a_row_on_which_the_unmeasured_pick_has_no_time_gets_no_kernel():
    """They are those that take long: of what was timed the fastest may be far from the best."""
    row = next(row for row in ROWS if takes(row) == "parallel_softmax")
    gone = {(row.label, "triton/parallel_softmax")}
    found = fitted([*rules(skip=gone), changed(row, "triton/q_block", 50.0, num_warps=8)]).winners
    assert set(found) == {("q_block", key(row.shape, row.stats))}


def test_a_row_with_a_window_is_no_winner_of_the_plain_batch_of_its_key():
    """The key has no window: a plain batch of as many keys would find what walks a tenth of them."""
    row = dataclasses.replace(ROWS[0], label="windowed", ask=Ask(sliding_window=64))
    lines = [line(row, "triton/q_block", DEFAULT, 100.0), changed(row, "triton/q_block", 50.0, num_warps=8)]
    found = fitted(lines, [row])
    assert not found.winners and not found.lost


@pytest.fixture
def run(tmp_path):
    """A folder as `study regret` leaves it: both `auto` beside the kernels, no plan and no machine."""
    kernels, first = (*KERNELS[:4], "triton/auto", "triton/native.auto"), ROWS[0]
    autos = [line(first, kernel, TREE, 90.0, {"kernel": "q_block", "config": {}}) for kernel in kernels[4:]]
    mine = [one for one in rules() if one["kernel"] in kernels]
    lines = [*mine, *autos, changed(first, "triton/q_block", 50.0, num_warps=8)]
    (tmp_path / "candidates.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    manifest = {"gpu": "h200", "seed": 7, "commit": "abc", "minutes": 4.0, "started": "2026-11-25T16:00:00+00:00"}
    manifest |= {"versions": {"torch": "1", "triton": "2", "helion": "3"}, "rows": [row.to_dict() for row in ROWS]}
    manifest |= {"policies": {kernel: [DEFAULT.to_dict(), TREE.to_dict()] for kernel in kernels}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"sources": won.stamps(kernels)}))
    return tmp_path


@pytest.mark.parametrize("install", [False, True])
def test_winners_of_a_run_lie_in_its_folder_and_behind_the_users_own(run, tmp_path, monkeypatch, install):
    monkeypatch.setenv(winners.FOLDER, str(tmp_path / "cache"))
    assert won.write(run, install) and won.write(run, install)
    found = [
        Winner.of_plain(json.loads(text))
        for text in (run / "winners-triton-h200.jsonl").read_text().split("\n")
        if text
    ]
    assert {one.key for one in found} == {key(ROWS[0].shape, ROWS[0].stats)} and len(found) <= 2
    family = registry.load("triton/auto").FAMILY
    monkeypatch.setattr(family, "_winners", {})
    shipped = len(family.learned(GPU).winners)
    assert len(family.winners(GPU)) == shipped + install * len(found)


def test_a_folder_without_a_manifest_is_refused(tmp_path):
    with pytest.raises((records.NotThisRun, FileNotFoundError)):
        won.write(tmp_path, install=False)


@pytest.mark.parametrize("dsl", registry.DSLS)
def test_every_kernel_has_a_stamp_of_its_own(dsl):
    found = won.stamps([f"{dsl}/{name}" for name in won.CHOSEN])
    assert len(set(found.values())) == len(won.CHOSEN) == len(found)
