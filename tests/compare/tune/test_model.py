"""A model's own batches, measured: what is printed, what is kept, and what is refused."""

import argparse

import pytest

import common.serving.measure
import common.serving.reach
from common import gpus
from common.serving import winners
from compare.__main__ import main as diptych
from compare.competitors import registry
from compare.exits import NOTHING, OK
from compare.tune import model

H200 = gpus.resolve("h200")
ASKED = argparse.Namespace(model="4:2:32", block_size=16, dtype="fp32", minutes=1.0)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Plans of a few tokens on the CPU that choose as on an H200; each candidate is faster than the one before."""
    monkeypatch.setenv(winners.FOLDER, str(tmp_path))
    for module in (common.serving.measure, common.serving.reach, model):
        monkeypatch.setattr(module, "gpu_of", lambda device: H200)
    for name, value in (("MAX_TOKENS", 64), ("MAX_SEQS", 4), ("MAX_KEYS", 256)):
        monkeypatch.setattr(model, name, value)
    monkeypatch.setattr(model, "points", lambda: [model.Point(2, 128), model.Point(1, 48, 40)])
    times = iter(100.0 * 0.9**n for n in range(1000))
    monkeypatch.setattr(common.serving.measure, "graph_us", lambda launch: next(times))
    family = registry.load("triton/auto").FAMILY
    monkeypatch.setattr(family, "_winners", {})
    monkeypatch.setattr(family, "_chosen", {})
    return family


def test_its_batches_are_measured_once_and_the_winners_are_said(small, capsys):
    assert model.measure(ASKED, ["triton/q_block"], "cpu") == OK
    told = capsys.readouterr().out
    assert "2 of 2 batches measured" in told.replace("\n", " ") and "2 of up to 1" in told
    kept = {(one.of, one.key) for one in small.winners(H200)}
    kept = {(of, at) for of, at in kept if at.startswith("4:2:32 ")}  # others came with the project
    assert {of for of, _ in kept} == {"auto", "native.auto"} and len(kept) == 4
    assert model.measure(ASKED, ["triton/q_block"], "cpu") == NOTHING


def test_batches_are_those_that_servers_have_common_ones_first():
    found = model.points()
    assert len(set(found)) == len(found) and found[0] == model.Point(1, 2048)
    assert {one.max_query_len for one in found} >= {1, 4, 512, 2048, 8192}
    assert any(0 < (one.num_decodes or 0) < one.num_seqs for one in found)
    assert all(one.num_seqs <= model.MAX_SEQS and one.max_seq_len <= model.MAX_KEYS for one in found)


@pytest.mark.parametrize("dsl", ["naive", "nothing"])
def test_kernels_of_no_dsl_are_nothing_to_measure(small, dsl):
    assert model.measure(ASKED, [f"{dsl}/q_block"], "cpu") == NOTHING


def test_without_the_gpu_it_says_so(capsys):
    assert diptych(["tune", "--model", "32:8:128", "--gpu", "h200"]) == 3
    assert "tuning needs the GPU itself" in capsys.readouterr().err
