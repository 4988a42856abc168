"""Calibration: what it writes, and that a wrong kernel ends it with 1."""

from __future__ import annotations

import json
import random
import sys
import types

import pytest

from common.kernel import Precision
from compare import calibrate
from compare.baselines import sdpa


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
        for query_len, seq_len in calibrate.random_lens(random.Random(seed), longest):
            assert 1 <= query_len <= seq_len <= longest
