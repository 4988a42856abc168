"""From a run's lines to a table: only what is faster than the rules wins, and a table never loses what it had."""

import dataclasses
import json

import pytest

from common.gpus import resolve
from common.serving.measured import LABEL, Table, key
from compare.__main__ import main as diptych
from compare.competitors import registry
from compare.tune import fit, tune
from compare.tune.fit import Fitted
from compare.tune.space import DEFAULT, TREE, Policy
from compare.workloads import Ask

GPU = resolve("h200")
ROWS = [row for row in tune.pick_rows(16) if not row.asked]
KERNELS = [f"triton/{name}" for name in (*fit.CHOSEN, "static_grid")]
OTHER = Policy(set=(("num_warps", 8),))
SOURCES = fit.stamps(KERNELS)


def takes(row):
    """The rules' kernel."""
    return registry.load("triton/auto").choose(row.shape, row.stats, GPU, heuristics="default").kernel


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
        chosen = registry.load("triton/auto").choose(row.shape, row.stats, GPU, heuristics="default")
        for kernel_id in KERNELS:
            if (row.label, kernel_id) not in skip:
                mine = kernel_id == f"triton/{chosen.kernel}"
                config = registry.config_dict(chosen.config) if mine else None
                found.append(line(row, kernel_id, DEFAULT, us, config))
    return found


def changed(row, kernel_id, us, **values):
    plain = line(row, kernel_id, DEFAULT, us)["config"]
    return line(row, kernel_id, OTHER, us, plain | values)


def fitted(lines):
    return Fitted("triton", lines, ROWS, KERNELS, GPU)


def test_where_the_rules_are_as_fast_there_is_no_winner():
    noise = [changed(row, "triton/q_block", 98.0, num_warps=8) for row in ROWS]
    found = fitted(rules() + noise)
    assert not found.winners and len(found.timed) == len({key(r.shape, r.stats) for r in ROWS})
    assert max(found.rules["auto"]) == pytest.approx(100 / 98)


def test_a_faster_config_wins_its_kernel_and_the_fastest_kernel_the_row():
    first, second = [row for row in ROWS if takes(row) == "parallel_softmax"][:2]
    faster = [
        changed(first, "triton/q_block", 50.0, num_warps=8),
        changed(second, "triton/parallel_softmax", 50.0, num_warps=8),
        line(second, "triton/q_block", DEFAULT, 40.0),
    ]
    found = fitted(rules() + faster).winners
    one, other = found[key(first.shape, first.stats)], found[key(second.shape, second.stats)]
    assert (one.kernel, one.us, one.rules_us, set(one.configs)) == ("q_block", 50.0, 100.0, {"q_block"})
    assert one.configs["q_block"]["num_warps"] == 8
    assert other.kernel == "q_block" and set(other.configs) == {"q_block", "parallel_softmax"}
    assert len(found) == 2


def test_what_was_slower_in_the_screening_was_lucky_the_second_time():
    row = ROWS[0]
    lucky = changed(row, "triton/q_block", 50.0, num_warps=8) | {"screen_us": 101.0}
    assert not fitted([*rules(), lucky]).winners


def test_a_row_on_which_the_rules_pick_has_no_time_gets_no_kernel():
    """They are those that take long: of what was timed the fastest may be far from the best."""
    row = next(row for row in ROWS if takes(row) == "parallel_softmax")
    gone = {(row.label, "triton/parallel_softmax")}
    found = fitted([*rules(skip=gone), changed(row, "triton/q_block", 50.0, num_warps=8)])
    won = found.winners[key(row.shape, row.stats)]
    assert won.kernel is None and set(won.configs) == {"q_block"}


def test_the_one_graph_for_all_batches_has_no_winner_of_one():
    found = fitted([*rules(), *(line(row, "triton/static_grid", OTHER, 1.0) for row in ROWS)])
    assert not found.winners


def test_a_row_with_a_window_is_no_winner_of_the_plain_batch_of_its_key():
    """The key has no window: a plain batch of as many keys would find what walks a tenth of them."""
    row = dataclasses.replace(ROWS[0], label="windowed", ask=Ask(sliding_window=64))
    lines = [line(row, "triton/q_block", DEFAULT, 100.0), changed(row, "triton/q_block", 50.0, num_warps=8)]
    found = Fitted("triton", lines, [row], KERNELS, GPU)
    assert not found.winners and not found.timed


def test_a_config_of_which_a_field_is_gone_is_left_out():
    row = ROWS[0]
    assert not fitted([*rules(), changed(row, "triton/q_block", 1.0, gone=1)]).winners


def test_a_table_is_read_again_and_keeps_what_nobody_timed_anew(tmp_path):
    first, second = [row for row in ROWS if takes(row) == "parallel_softmax"][:2]
    path = tmp_path / "h200.json"

    def written(rows, before):
        lines = rules() + [changed(row, "triton/q_block", 50.0, num_warps=8) for row in rows]
        mine = Fitted("triton", lines, rows, KERNELS, GPU)
        fit.write(path, fit.text(mine.table({"commit": "abc"}, SOURCES, before)))
        return Table(path, "triton", GPU, fit.folder_of("triton"))

    one = written([first], None)
    both = written([second], one)
    assert set(both.winners) == {key(row.shape, row.stats) for row in (first, second)} and not both.stale
    assert both.provenance == "commit abc, rows 1 timed, 1 kept" and json.loads(path.read_text())["label"] == LABEL
    assert both.find(first.shape, first.stats).configs["q_block"]["num_warps"] == 8
    old = json.loads(path.read_text())
    old["sources"]["q_block"] = "0" * 16
    path.write_text(json.dumps(old))
    stale = Table(path, "triton", GPU, fit.folder_of("triton"))
    assert stale.stale == ("q_block",) and not stale.find(first.shape, first.stats).configs
    assert set(written([second], stale).winners) == {key(second.shape, second.stats)}


def test_times_of_nobody_knows_which_code_are_stale(tmp_path):
    row = ROWS[0]
    mine = Fitted("triton", [*rules(), changed(row, "triton/q_block", 50.0, num_warps=8)], ROWS, KERNELS, GPU)
    path = tmp_path / "h200.json"
    fit.write(path, fit.text(mine.table({}, dict.fromkeys(KERNELS, ""), None)))
    assert set(Table(path, "triton", GPU, fit.folder_of("triton")).stale) == set(fit.CHOSEN)


def test_a_run_of_regret_is_fitted_too(tmp_path, capsys):
    """Its plan has both `auto` beside the kernels, its manifest no plan and no machine."""
    kernels, (first, *_) = (*KERNELS[:4], "triton/auto", "triton/native.auto"), ROWS
    autos = [line(first, kernel, TREE, 90.0, {"kernel": "q_block", "config": {}}) for kernel in kernels[4:]]
    mine = [one for one in rules() if one["kernel"] in kernels]
    lines = [*mine, *autos, changed(first, "triton/q_block", 50.0, num_warps=8)]
    (tmp_path / "candidates.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    manifest = {"gpu": "h200", "seed": 7, "commit": "abc", "minutes": 4.0, "started": "2026-11-25T16:00:00+00:00"}
    manifest |= {"versions": {"torch": "1", "triton": "2", "helion": "3"}, "rows": [row.to_dict() for row in ROWS]}
    manifest |= {"policies": {kernel: [DEFAULT.to_dict(), TREE.to_dict()] for kernel in kernels}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"sources": fit.stamps(kernels)}))
    assert diptych(["tune", "--fit", str(tmp_path), "--no-install"]) == 0
    table = Table(tmp_path / fit.name_of("triton", GPU), "triton", GPU, fit.folder_of("triton"))
    assert not table.stale and set(table.winners) == {key(first.shape, first.stats)}
    assert "seed 7" in table.provenance and "triton/auto" in capsys.readouterr().out


@pytest.mark.parametrize("dsl", registry.DSLS)
def test_every_kernel_has_a_stamp_of_its_own(dsl):
    found = fit.stamps([f"{dsl}/{name}" for name in fit.CHOSEN])
    assert len(set(found.values())) == len(fit.CHOSEN) == len(found)
