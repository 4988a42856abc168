"""Runs of `compare run` are logs too: a point a kernel and row, under the launch that the batch got."""

import dataclasses
from dataclasses import replace

import pytest
import torch

import synthetic_run
from compare.competitors import registry
from compare.tune import learned, records
from compare.tune.points import points, runs_in
from compare.workloads import Ask, Workload, parse_lens
from compare.workloads.cost import info
from dsl_triton import parallel_softmax, unpaged
from dsl_triton.native import sm90_config

GPU = {"asked": "h200", "name": "h200", "title": "NVIDIA H200 SXM 141 GB", "present": True}
DECODES, PROMPT = (Workload(text, parse_lens(text)) for text in ("8q1s2k", "q2k"))
TOGETHER = sm90_config.Config(together=True)


def cell(row, kernel, us, chosen=None, config=None):
    """A timed cell; chosen: the kernel that an auto took."""
    plain = registry.config_dict(config)
    timed = synthetic_run.timed(info(row), kernel, us)
    return timed.replace(gpu="h200", config={"kernel": chosen, "config": plain} if chosen else plain)


def run(folder, *cells, **manifest):
    return synthetic_run.write(folder, list(cells), gpu=GPU, **manifest)


def test_a_kernel_that_an_auto_took_is_that_kernel(tmp_path):
    folder = run(tmp_path / "a", cell(PROMPT, "triton/auto", 90.0, "unpaged", unpaged.DEFAULT))
    (point,) = points([folder], "triton")
    assert (point.kernel, point.us, point.gpu.name) == ("unpaged", 90.0, "h200")
    assert point.shape == PROMPT.shape and not points([folder], "helion")


def test_a_run_older_than_parts_of_heads_is_counted_as_its_code_was(tmp_path):
    row = Workload("p", PROMPT.lens, replace(PROMPT.shape, head_size=96))
    taken = cell(row, "triton/unpaged", 90.0, config=unpaged.DEFAULT)
    folders = [run(tmp_path / day, taken, started=day) for day in ("2026-11-28", "2026-11-30", "2026-12-01")]
    assert [point.launched[1]["whole_heads"] for point in points(folders, "triton")] == [2, 1, 0]


def test_decodes_beside_a_kernel_of_prompts_are_of_the_kernel_that_serves_them(tmp_path):
    (point,) = points([run(tmp_path / "a", cell(DECODES, "triton/unpaged", 20.0, config=unpaged.DEFAULT))], "triton")
    assert (point.kernel, point.config) == ("parallel_softmax", registry.config_dict(unpaged.DEFAULT.decode))


def test_decodes_that_the_gluon_kernel_takes_together_are_its_own(tmp_path):
    taken = cell(DECODES, "triton/native.auto", 20.0, "native.sm90_prefill", TOGETHER)
    assert [p.kernel for p in points([run(tmp_path / "a", taken)], "triton")] == ["native.sm90_prefill"]


def test_an_older_config_of_the_gluon_kernel_teaches_nothing(tmp_path):
    older = dataclasses.asdict(TOGETHER)
    del older["together"]
    taken = cell(DECODES, "triton/native.auto", 20.0, "native.sm90_prefill", TOGETHER)
    folder = run(tmp_path / "a", taken.replace(config={"kernel": "native.sm90_prefill", "config": older}))
    assert points([folder], "triton") == []


def test_a_torn_last_line_is_left_out_with_a_word(tmp_path, capsys):
    folder = run(tmp_path / "a", cell(PROMPT, "triton/unpaged", 90.0, config=unpaged.DEFAULT))
    whole = points([folder], "triton")
    with (folder / "cells.jsonl").open("a") as file:
        file.write('{"kernel": "tri')
    assert points([folder], "triton") == whole != []
    assert "line 2: no newline behind it" in capsys.readouterr().err


def test_times_of_processes_are_one_point_and_rows_with_other_features_none(tmp_path):
    cells = [cell(DECODES, "triton/parallel_softmax", us, config=parallel_softmax.DEFAULT) for us in (9.0, 10.0, 30.0)]
    cells = [one.replace(process=number) for number, one in enumerate(cells)]
    capped = dataclasses.replace(info(DECODES), label="c", features=("sliding_window=17", "softcap=30.0"))
    cells.append(cells[0].replace(workload=capped))
    assert [p.us for p in points([run(tmp_path / "a", *cells)], "triton")] == [10.0]


def test_a_window_is_fewer_keys_and_a_scaled_cache_one_of_8_bits(tmp_path):
    row = Workload(
        "w", DECODES.lens, replace(DECODES.shape, kv_dtype=torch.float8_e4m3fn), Ask(sliding_window=64, scales="one")
    )
    taken = cell(row, "triton/parallel_softmax", 9.0, config=parallel_softmax.DEFAULT)
    (point,) = points([run(tmp_path / "a", taken)], "triton")
    assert (point.shape, point.stats) == learned.asked(row)


def test_a_manifest_that_is_none_is_named(tmp_path):
    folder = run(tmp_path / "a", cell(DECODES, "triton/q_block", 9.0, config=registry.load("triton/q_block").DEFAULT))
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(records.NotThisRun, match="a"):
        points([folder], "triton")


def test_a_folder_of_runs_is_those_whose_gpu_was_there(tmp_path):
    timed = cell(DECODES, "triton/q_block", 9.0, config=registry.load("triton/q_block").DEFAULT)
    here = run(tmp_path / "runs" / "here", timed)
    absent = synthetic_run.write(tmp_path / "runs" / "absent", [], gpu=GPU | {"present": False})
    with pytest.raises(records.NotThisRun, match="absent"):
        runs_in(absent)
    synthetic_run.write(tmp_path / "runs" / "none", [])
    assert runs_in(here) == runs_in(tmp_path) == [here]
    (here / "manifest.json").write_text("{")
    with pytest.raises(records.NotThisRun, match="here"):
        runs_in(tmp_path)
