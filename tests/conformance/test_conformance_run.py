"""conformance_run.py: every cell is answered once, whatever becomes of a process, and a repetition goes on."""

import json
import sys

import pytest

import conformance_child
import conformance_crew
import conformance_run
import planted_children
from common.cases.named import CASES
from common.spec.paged_batch import DTYPES
from compare.competitors import registry
from compare.exits import NO_GPU, USAGE


@pytest.fixture(autouse=True)
def planted(monkeypatch):
    monkeypatch.setattr(conformance_crew, "COMMAND", (sys.executable, planted_children.__file__))


def _met(*names, processes=1, gpus=1, limit_s=60.0, seconds=1e6):
    cells = [("triton/naive", name, "float32") for name in names]
    return list(conformance_crew.meet_all(cells, processes, "cpu", gpus, limit_s, seconds))


def test_each_cell_is_answered_once_by_processes_that_share_the_gpus():
    met = _met(*(f"case-{n}" for n in range(20)), processes=3, gpus=2)
    assert sorted(cell["case"] for cell in met) == sorted(f"case-{n}" for n in range(20))
    assert {cell["gpu"] for cell in met} == {0, 1} and len({cell["pid"] for cell in met}) == 3


def test_a_process_that_dies_is_the_failure_of_its_cell_alone():
    met = _met("before", "dies", "behind")
    assert [cell["outcome"] for cell in met] == ["supported", "failed", "supported"]
    assert met[1]["reason"] == "the process ended with 7" and met[0]["pid"] != met[2]["pid"]


def test_a_process_that_hangs_is_replaced():
    met = _met("before", "hangs", "behind", limit_s=0.5)
    assert [cell["outcome"] for cell in met] == ["supported", "failed", "supported"]
    assert met[1]["reason"] == "no answer within 0.5 s"


def test_a_process_whose_device_is_useless_answers_and_is_replaced():
    met = _met("before", "sick", "behind")
    assert [cell["outcome"] for cell in met] == ["supported"] * 3
    assert met[0]["pid"] == met[1]["pid"] != met[2]["pid"]


def test_no_cell_begins_when_the_time_is_up():
    assert _met("one", "two", seconds=-1.0) == []


def test_named_cells_are_every_kernel_case_and_dtype():
    small = [case for case in CASES if not case.large]
    cells = list(conformance_run.named(registry.OWN, "*", "all", large=False))
    assert len(cells) == len(set(cells)) == len(registry.OWN) * len(small) * len(DTYPES)
    own = list(conformance_run.named(registry.OWN, "*", "own", large=False))
    other = list(conformance_run.named(registry.OWN, "*", "other", large=False))
    assert sorted(own + other) == sorted(cells)


def test_a_random_case_comes_to_one_kernel_of_each_family():
    family = [kernel_id for kernel_id in registry.OWN if kernel_id.startswith("triton/")]
    cells = list(conformance_run.dealt(family, range(60)))
    assert [name for _, name, _ in cells] == [f"random-{seed}" for seed in range(60)]
    assert {kernel for kernel, _, _ in cells} >= set(family) - {"triton/naive"}


def test_what_is_had_is_not_met_again(tmp_path):
    cell = {"kernel": "triton/naive", "case": "page-16", "dtype": "float32"}
    (tmp_path / "out").write_text(json.dumps(cell | {"commit": "new"}) + "\n")
    (tmp_path / "old").write_text(json.dumps({"meta": {}}) + "\n" + json.dumps(cell | {"commit": "old"}) + "\n")
    assert conformance_run.had(tmp_path / "out", [], "new") == {("triton/naive", "page-16", "float32")}
    assert conformance_run.had(tmp_path / "old", [], "new") == set()
    assert len(conformance_run.had(tmp_path / "none", [tmp_path / "old"], "new")) == 1
    assert conformance_run.had(tmp_path / "out", [], "new", "num_stages=5") == set()


def test_a_config_that_was_asked_for_is_what_launches(monkeypatch):
    import kernel_cases

    launched = []
    monkeypatch.setattr(kernel_cases, "conform", lambda kernel, case, config, *_, **__: launched.append(config) or {})
    conformance_child.meet("triton/q_block", CASES[0], "cpu", "tile_size=64,num_stages=5")
    assert [(config.tile_size, config.num_stages) for config in launched] == [(64, 5)]


def test_without_a_gpu_it_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert conformance_run.main(["--out", str(tmp_path / "x")]) == NO_GPU
    assert "--device cpu" in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_an_unknown_kernel_is_named(capsys, tmp_path):
    assert conformance_run.main(["--out", str(tmp_path / "x"), "--device", "cpu", "--kernels", "nobody/*"]) == USAGE
    assert "nobody/*" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["stages=5", "num_stages", "decode.num_stages=5"])
def test_a_config_that_no_kernel_has_is_named_before_any_cell(capsys, tmp_path, words):
    q_block = ["--out", str(tmp_path / "x"), "--device", "cpu", "--kernels", "triton/q_block"]
    assert conformance_run.main([*q_block, "--set", words]) == USAGE
    said = capsys.readouterr().err
    assert words.partition("=")[0] in said and "allowed" in said and not (tmp_path / "x").exists()


def test_a_system_without_affinity_has_a_process_a_core(tmp_path, monkeypatch):
    """macOS: `os` has no sched_getaffinity there."""
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    asked = []
    monkeypatch.setattr(conformance_run, "meet_all", lambda cells, processes, *_: asked.append(processes) or iter(()))
    assert conformance_run.main(["--out", str(tmp_path / "x"), "--device", "cpu", "--kernels", "triton/naive"]) == 0
    assert asked == [3]


def test_the_cells_of_a_kernel_on_a_cpu(tmp_path, monkeypatch):
    monkeypatch.undo()  # the real child
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    arguments = ["--out", str(tmp_path / "x"), "--device", "cpu", "--kernels", "triton/naive"]
    arguments += ["--cases", "query-15-16-17"]
    assert conformance_run.main([*arguments, "--dtypes", "own"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "x").read_text().splitlines()]
    assert [(line["case"], line["outcome"]) for line in lines] == [("query-15-16-17", "supported")]
    assert lines[0]["commit"]


def test_the_gpus_are_those_that_the_caller_left_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5a")
    assert [conformance_child.visible(gpu) for gpu in (0, 1)] == ["3", "GPU-5a"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert [conformance_child.visible(gpu) for gpu in (0, 1)] == ["0", "1"]
