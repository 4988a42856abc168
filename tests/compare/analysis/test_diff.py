"""Run against run: a slowed kernel is named, identical code is not, and what cannot be compared is refused by name."""

import dataclasses
import math

import pytest

import synthetic_run
from compare.__main__ import main as diptych
from compare.analysis import diff
from compare.analysis.diff import Change
from compare.analysis.runs import read
from compare.record.noise import Noise
from compare.record.records import Status
from sampled_run import DECODE, LOADS, MIXED, PREFILL, rows

FA3 = "baseline/flash_attn3"
GPU = {"asked": "h200", "name": "h200", "title": "NVIDIA H200 SXM 141 GB", "present": True}
CONTRACT = "graph-cold-interleaved/2"
SPEEDS = {"triton/auto": 0.9, "helion/auto": 1.0, FA3: 1.0}


def run_at(folder, records, **manifest):
    known = {"gpu": GPU, "spec": "5bec", "timing_contract": CONTRACT}
    return synthetic_run.write(folder, records, **known | manifest)


def measured(seed=0, slow=1.0, loads=LOADS, within=0.004, **changes):
    """Every row of LOADS; triton/auto is `slow` times as slow on the prompt."""
    records = []
    for number, load in enumerate(loads):
        speeds = SPEEDS | ({"triton/auto": 0.9 * slow} if load is PREFILL else {})
        how = {"seed": 100 * seed + number, "within": within, "between": 0.002, "fingerprint": "f"}
        records += rows(load, speeds, **how | changes)
    return records


@pytest.fixture
def two(tmp_path):
    """Two runs of one commit."""
    return run_at(tmp_path / "before", measured(1)), run_at(tmp_path / "after", measured(2))


def found(before, after, **how):
    return {(d.workload.label, d.kernel): d for d in diff.differences(read(before), read(after), **how)}


def test_two_runs_of_one_commit_have_no_regression(two, capsys):
    assert diptych(["diff", *map(str, two), "--fail-on", "regress"]) == 0
    out = capsys.readouterr().out
    assert "REGRESS" not in out and "nothing changed" in out and "12 of 12 common cells have one fingerprint" in out


@pytest.mark.parametrize("seed", range(8))
def test_identical_code_is_no_regression_whatever_the_seed(tmp_path, seed):
    one, other = (run_at(tmp_path / str(s), measured(s)) for s in (2 * seed, 2 * seed + 1))
    assert not [d for d in found(one, other).values() if d.change in (Change.REGRESS, Change.IMPROVED)]


def test_a_slowed_kernel_is_named_and_fails_the_gate(tmp_path, two, capsys):
    slowed = run_at(tmp_path / "slowed", measured(3, slow=1.15, source_sha="f00d", fingerprint="g"))
    assert diptych(["diff", str(two[0]), str(slowed), "--fail-on", "regress"]) == 4
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "REGRESS " in line and "q8k" in line]
    assert "triton/auto" in line and "source 0123456789abcdef -> f00d" in line
    assert diptych(["diff", str(two[0]), str(slowed)]) == 0, "the gate is asked for"
    assert found(slowed, two[0])["q8k", "triton/auto"].change is Change.IMPROVED


def test_a_kernel_that_was_right_and_fails_now_fails_the_gate(tmp_path, two, capsys):
    broken = [r for r in measured(2) if (r.workload, r.kernel) != (DECODE, "helion/auto")]
    broken += rows(DECODE, {"helion/auto": None}, processes=1)
    after = run_at(tmp_path / "broken", broken)
    assert diptych(["diff", *map(str, (two[0], after)), "--fail-on", "regress"]) == 4
    assert "STATUS_CHANGED" in capsys.readouterr().out
    assert diptych(["diff", *map(str, (after, two[0])), "--fail-on", "regress"]) == 0, "mended"


def test_new_and_removed_cells_are_said_and_fail_nothing(tmp_path, two, capsys):
    after = run_at(tmp_path / "fewer", measured(2, loads=(DECODE,)) + rows(DECODE, {"triton/split": 1.0}))
    changes = {key: d.change for key, d in found(two[0], after).items()}
    assert changes["q8k", FA3] is Change.REMOVED and changes[DECODE.label, "triton/split"] is Change.NEW
    assert diptych(["diff", str(two[0]), str(after), "--fail-on", "regress"]) == 0


def test_a_change_of_less_than_the_absolute_threshold_is_none(tmp_path, monkeypatch):
    """Ten percent of 3 us are below the resolution of an event."""
    one, other = (run_at(tmp_path / str(f), rows(DECODE, {"triton/auto": f}, us=3.0, within=0.001)) for f in (1.0, 1.1))
    assert [d.change for d in found(one, other).values()] == [Change.SAME]
    monkeypatch.setattr(diff, "ABSOLUTE_US", 0.01)
    assert [d.change for d in found(one, other).values()] == [Change.REGRESS]


def test_the_noise_floor_of_the_run_raises_the_threshold(tmp_path, two, capsys):
    slowed = run_at(tmp_path / "slowed", measured(3, slow=1.15))
    Noise("h200", CONTRACT, "triton/q_block", 3, 0.01, 0.2).write(slowed / "noise.json")
    assert diptych(["diff", str(two[0]), str(slowed), "--fail-on", "regress"]) == 0
    assert "20.00% between processes" in capsys.readouterr().out
    Noise("mi300", CONTRACT, "triton/q_block", 3, 0.01, 0.2).write(slowed / "noise.json")
    assert diptych(["diff", str(two[0]), str(slowed), "--fail-on", "regress"]) == 4
    assert "that of mi300" in capsys.readouterr().out


def test_a_machine_that_is_slower_altogether_is_no_regression_by_the_unit(tmp_path, two):
    slower = run_at(tmp_path / "slower", measured(4, us=115.0))
    assert {d.change for d in found(two[0], slower).values()} == {Change.REGRESS}
    by_unit = found(two[0], slower, unit=FA3)
    assert {d.change for (_, kernel), d in by_unit.items() if kernel != FA3} == {Change.SAME}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"timing_contract": "graph-hot-interleaved/2"}, "timing contract"),
        ({"spec": "0dd"}, "spec"),
        ({"gpu": GPU | {"name": "h100"}}, "GPU"),
    ],
)
def test_what_means_something_else_is_refused_and_both_are_named(tmp_path, two, capsys, changes, named):
    other = run_at(tmp_path / "other", measured(2), **changes)
    assert diptych(["diff", str(two[0]), str(other)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(named) and str(two[0]) in said and str(other) in said
    values = [v["name"] if isinstance(v, dict) else v for v in changes.values()]
    assert all(value in said for value in values)


def test_versions_and_configs_that_changed_are_said(tmp_path, two, capsys):
    records = measured(2, config={"block_m": 32, "tile_size": 64}, config_origin="tree")
    after = run_at(tmp_path / "newer", records, versions=synthetic_run.VERSIONS | {"triton": "3.7.1"}, commit="beef")
    assert diptych(["diff", str(two[0]), str(after), "--all"]) == 0
    out = capsys.readouterr().out
    assert "commit abc1234 -> beef" in out and "triton 3.6.0 -> 3.7.1" in out
    assert diff.differences(read(two[0]), read(after))[0].why == ("block_m 16 -> 32", "config of DEFAULT -> tree")


def test_nothing_selected_is_exit_5(tmp_path, two, capsys):
    assert diptych(["diff", *map(str, two), "--kernels", "baseline/sdpa"]) == 5
    empty = run_at(tmp_path / "empty", [])
    assert diptych(["diff", str(two[0]), str(empty)]) == 5
    assert "no selected cell in common" in capsys.readouterr().err


def test_cells_without_times_are_compared_by_status(tmp_path):
    load = DECODE
    one, other = (
        run_at(tmp_path / name, [synthetic_run.checked(load, "triton/naive", ratio)], gpu=None)
        for name, ratio in (("a", 0.3), ("b", 0.5))
    )
    (cell,) = found(one, other).values()
    assert (cell.change, cell.before, cell.after, cell.ratio) == (Change.SAME, Status.OK, Status.OK, None)


@pytest.mark.parametrize("other", ["another run", "the same run", "no cell in common"])
def test_lines_that_could_not_be_read_are_said(two, other, capsys):
    """Whatever a reader is told of the rest."""
    with open(two[1] / "cells.jsonl", "a") as file:
        file.write('{"schema": 2}\n')
    chosen = ["--kernels", "nobody/*"] if other == "no cell in common" else []
    diptych(["diff", str(two[other != "another run"]), str(two[1]), *chosen])
    assert f"{two[1]}: cells.jsonl: 1 line left out" in capsys.readouterr().err


def test_one_process_that_failed_is_a_changed_status(tmp_path, two):
    records = [r for r in measured(2) if (r.workload, r.kernel, r.process) != (MIXED, FA3, 1)]
    records += [dataclasses.replace(r, process=1) for r in rows(MIXED, {FA3: None}, processes=1)]
    after = run_at(tmp_path / "once", records)
    assert found(two[0], after)[MIXED.label, FA3].change is Change.STATUS_CHANGED


def test_one_sample_has_no_interval_and_no_verdict(tmp_path):
    one, other = (run_at(tmp_path / str(us), [synthetic_run.timed(DECODE, FA3, us)]) for us in (100.0, 300.0))
    (cell,) = found(one, other).values()
    assert cell.change is Change.AMBIGUOUS and cell.ratio.high == math.inf
    assert diptych(["diff", str(one), str(other)]) == 0


def test_a_run_against_itself_or_a_copy_is_the_same_run(tmp_path, two, capsys):
    copy = run_at(tmp_path / "copy", measured(1))
    for other in (two[0], copy):
        assert diptych(["diff", str(two[0]), str(other)]) == 0
        assert "hold the same run: 12 cells, none changed" in capsys.readouterr().out
    assert {d.change for d in found(two[0], copy).values()} == {Change.SAME}
    assert diptych(["diff", str(two[0]), str(two[1])]) == 0 and "same run" not in capsys.readouterr().out
