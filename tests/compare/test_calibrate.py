"""Calibration: what it writes, and that a wrong kernel ends it with 1."""

from __future__ import annotations

import json
import random
import sys
import types
from collections import deque

import pytest

from common.spec.kernel import Precision
from compare import calibrate, calibrate_cases, calibrate_lanes
from compare.competitors.baselines import sdpa


def test_writes_the_worst_ratios(tmp_path, capsys):
    out = tmp_path / "deep" / "calibration.json"
    assert calibrate.main(["--cases", "12", "--kernels", "baseline/sdpa", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["cases"] == 12 and found["gpu"] is None and len(found["spec_hash"]) == 16
    kernel = found["kernels"]["baseline/sdpa"]
    assert kernel["cases"] == {"ok": 9, "unsupported": 3}  # softcap and sinks
    for dtype in ("bfloat16", "float16"):
        for rule in ("S element", "S row", "W"):
            ratios = kernel["ratios"][dtype][rule]
            assert 0.2 < ratios["p99"] <= ratios["worst"] < 1.0
    assert "baseline/sdpa" in capsys.readouterr().out


@pytest.fixture
def wrong_kernel(monkeypatch):
    module = types.ModuleType("wrong_package.wrong_kernel")
    for name in ("SUPPORTS", "DEFAULT", "workspace", "prepare"):
        setattr(module, name, getattr(sdpa, name))
    module.CONTRACT = Precision()

    def launch(batch, features, out, config, workspace, *, lse=None):
        sdpa.launch(batch.replace(softmax_scale=batch.softmax_scale * 1.1), features, out, config, workspace, lse=lse)

    module.launch = launch
    monkeypatch.setitem(sys.modules, "wrong_package", types.ModuleType("wrong_package"))
    monkeypatch.setitem(sys.modules, "wrong_package.wrong_kernel", module)
    return "wrong_package.wrong_kernel"


def test_a_wrong_kernel_is_counted_and_ends_it_with_1(wrong_kernel, tmp_path):
    out = tmp_path / "calibration.json"
    assert calibrate.main(["--cases", "2", "--kernels", wrong_kernel, "--out", str(out)]) == 1
    kernel = json.loads(out.read_text())["kernels"][wrong_kernel]
    assert kernel["cases"] == {"incorrect": 2}
    assert "of its budget" in kernel["problems"][0] and kernel["problems"][0].startswith("case 0 (")


def test_an_absent_gpu_is_exit_3_and_writes_nothing(tmp_path):
    out = tmp_path / "calibration.json"
    assert calibrate.main(["--gpu", "mi355", "--cases", "1", "--out", str(out)]) == 3
    assert not out.exists()


@pytest.mark.parametrize(
    "arguments", [["--gpu", "h9000"], ["--kernels", "triton/nave"], ["--out", "/proc/diptych/calibration.json"]]
)
def test_unknown_names_and_a_folder_of_nobody_are_exit_2(arguments):
    assert calibrate.main(arguments) == 2


@pytest.mark.parametrize("arguments", [["--cases", "0"], ["--jobs", "0"], ["--longest", "1"], ["--kernels", ","]])
def test_nothing_to_calibrate_is_exit_2(arguments):
    with pytest.raises(SystemExit) as caught:
        calibrate.main(arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize("longest", [16, 64, 4096])
def test_random_lengths_are_well_formed(longest):
    for seed in range(200):
        for query_len, seq_len in calibrate_cases.random_lens(random.Random(seed), longest):
            assert 1 <= query_len <= seq_len <= longest


def no_more(*_):
    raise AssertionError("a case was judged again")


def test_the_same_command_goes_on_and_more_cases_are_added(tmp_path, capsys, monkeypatch):
    out = tmp_path / "calibration.json"
    run = ["--kernels", "baseline/sdpa", "--out", str(out), "--cases"]
    assert calibrate.main([*run, "7"]) == 0
    first = json.loads(out.read_text())["kernels"]
    with open(out.with_suffix(".jsonl"), "a") as file:
        file.write('{"seeds": [7], "kern')  # what a killed process leaves
    with monkeypatch.context() as again:
        again.setattr(calibrate.Calibration, "case", no_more)
        assert calibrate.main([*run, "7"]) == 0
    assert json.loads(out.read_text())["kernels"] == first
    assert "7 of 7 cases were judged before" in capsys.readouterr().err
    assert calibrate.main([*run, "12"]) == 0
    together = json.loads(out.read_text())
    out.unlink()
    out.with_suffix(".jsonl").unlink()
    assert calibrate.main([*run, "12"]) == 0
    assert together["cases"] == 12 and together["kernels"] == json.loads(out.read_text())["kernels"]


def test_lines_of_another_calibration_are_not_added_to(tmp_path, capsys):
    run = ["--kernels", "baseline/sdpa", "--out", str(tmp_path / "found.json"), "--cases", "1"]
    assert calibrate.main([*run, "--longest", "16"]) == 0
    assert calibrate.main([*run, "--longest", "17"]) == 2
    assert "with longest 16; allowed the same calibration, or a new file" in capsys.readouterr().err


def test_no_case_begins_when_the_time_is_up(tmp_path, capsys):
    out = tmp_path / "found.json"
    assert calibrate.main(["--kernels", "baseline/sdpa", "--out", str(out), "--cases", "3", "--minutes", "0"]) == 130
    assert "3 cases are left" in capsys.readouterr().err and json.loads(out.read_text())["cases"] == 0


@pytest.mark.parametrize("jobs", [1, 5, 12, 14, 30])
def test_every_case_has_one_process_and_a_process_few_classes(jobs):
    queues = calibrate_lanes.lanes(range(3, 400), 12, jobs)
    seeds = [seed for queue in queues for part in queue for seed in part]
    assert sorted(seeds) == list(range(3, 400)) and len(queues) == jobs
    for queue in queues:
        of_queue = [{seed % 12 for seed in part} for part in queue]
        assert all(len(classes) == 1 for classes in of_queue)
        assert len(set().union(*of_queue)) <= -(-12 // jobs)
        turns = calibrate_lanes.alternating(queue, 12)
        assert sorted(turns) == sorted(queue)
        assert {part[0] % 12 for part in list(turns)[: len(set().union(*of_queue))]} == set().union(*of_queue)


def lost(seeds):
    """The work of a process: a device that one of its cases loses."""
    if 2 in seeds:
        raise RuntimeError("kernel lost the device")
    return seeds, {"kernel": ({"ok": len(seeds)}, {}, [])}


def test_a_process_that_is_lost_costs_its_slice_alone():
    found = dict(calibrate_lanes.run([deque([(2, 3), (4,)])], lost))
    assert found.keys() == {(2, 3), (4,)}
    assert str(found[2, 3]) == "kernel lost the device"
    assert found[4,] == {"kernel": ({"ok": 1}, {}, [])}
