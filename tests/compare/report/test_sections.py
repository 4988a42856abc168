"""Sections about a GPU that is not here, whose figures are no times; what such a run shows of measured speed, marked as
another machine's; and seats."""

from pathlib import Path

import pytest

from compare.analysis import committed
from compare.analysis.runs import RunData, read
from compare.record.records import Evidence, Status
from compare.report import report
from compare.report.blocks import Fold
from compare.report.sections import absent, seats
from synthetic_run import checked, failed, timed_run, workload, write

GPU = {"name": "mi300", "title": "AMD Instinct MI300X", "present": False}
LOOP = {"matrix": {"mfma 32x32x8": 32}, "loads": {"128": 4, "32": 4}, "barriers": 2, "waits": 18}
FACT = {
    "kernel": "_q_block_kernel", "arch": "gfx942", "sha256": "a" * 64, "registers": 211, "spills": 0,
    "scratch_bytes": 0, "shared_bytes": 32768, "code_bytes": 19200, "matrix": {"mfma 32x32x8": 128},
    "matrix_redundancy": 1.5, "loops": [LOOP], "occupancy": {"programs": 2, "waves": 8, "limit": "registers"},
    "num_warps": 4, "num_stages": 2,
    "executed": {
        "workgroups": 3, "instructions": 1200, "loads": 10, "load lines": 85, "matrix flops": 4000, "load bytes": 100,
        "wide bytes": 90, "waits": 2, "ahead": 3, "lds clocks": 12, "lds fewest": 8, "lines": 20, "fetched": 22,
    },
}  # fmt: skip


def _run(tmp_path, *records, present=False):
    return RunData(tmp_path, {"gpu": GPU | {"present": present}}, list(records))


@pytest.fixture
def executed():
    load = workload("row", "prefill", 1, 33, 33)
    evidence = (Evidence.EXECUTED_IN_MODEL, Evidence.COMPILED)
    return checked(load, "triton/q_block", 0.5).replace(evidence=evidence, facts=(FACT,))


def _tables(section):
    return {block.title: block.blocks[0] for block in section.blocks if isinstance(block, Fold)}


def test_counts_of_the_model(tmp_path, executed):
    section = absent(_run(tmp_path, executed))
    tables = _tables(section)
    (ran,) = tables["Executed in the model of the ISA"].body
    useful = executed.workload.flops
    assert ran[1:] == [1, "3", "1,200", f"{4000 / useful:.1f}", "8.5", "90%", "1.5", "1.50", "1.10", "ok"]


def test_it_says_that_nothing_was_timed_and_names_what_the_model_lacks(tmp_path, executed):
    unknown = failed(executed.workload, "helion/q_block", Status.NOT_EXECUTABLE)
    unknown = unknown.replace(reason="the model of gfx942 does not know v_dance_b32")
    words = str(absent(_run(tmp_path, executed, unknown)).blocks)
    assert "No figure here is a time" in words and "v_dance_b32" in words


def test_a_gpu_that_was_here_has_no_such_section(tmp_path, executed):
    assert absent(_run(tmp_path, executed, present=True)) is None


def test_the_report_says_which_gpu_timed_what():
    seat = {"address": "GPU-1", "rows": 12, "noise": {"mean": 0.0012, "most": -0.004, "cells": 9}}
    fleet = {
        "seats": {"a:0": seat, "b:0": {"address": "", "rows": 3, "noise": None}},
        "losses": ["b:0: died"],
        "unfit": {},
    }
    made = seats(RunData(Path("run"), {"fleet": fleet}, []))
    assert ["`a:0`", "GPU-1", 12, "+0.12%", "-0.40%", 9] in made.blocks[2].body
    assert "b:0: died" in made.blocks[3].lines[0]
    assert seats(RunData(Path("run"), {}, [])) is None


@pytest.fixture
def interpreted(tmp_path):
    return write(tmp_path / "run", [checked(workload("q1s512", "decode", 1, 1, 512), "triton/naive", 0.5)])


def test_a_run_without_a_gpu_shows_the_committed_speeds_on_one_page(interpreted):
    found = committed.headline()
    text = report.write(interpreted).read_text()
    assert f"\n# Correctness on this machine; speeds measured on an {found.gpu} on {found.day}\n" in text
    assert "**Not of this machine.**" in text
    for kind, *cells in found.body:
        assert f"| {kind} | {' | '.join(cells)} |" in text


def test_the_committed_speeds_are_those_of_the_table():
    assert [line[0] for line in committed.headline().body] == list(committed.KINDS)
    assert committed.headline().day.startswith("20")


def test_a_run_with_times_shows_its_own_alone(tmp_path):
    timed_run(tmp_path / "run")
    assert read(tmp_path / "run").elsewhere is None
    assert "Not of this machine" not in report.write(tmp_path / "run").read_text()


def test_without_the_sources_there_is_nothing_to_show(interpreted, tmp_path, monkeypatch):
    monkeypatch.setattr(committed, "TABLE", tmp_path / "none.toml")
    committed.headline.cache_clear()
    assert "\n# Paged attention: peers on no GPU\n" in report.write(interpreted).read_text()
    committed.headline.cache_clear()
