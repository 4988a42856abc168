"""compare.run.explain: the choice of the public call, what decided it, and what it says when asked wrong."""

import dataclasses

import pytest
import torch

from common.choice import cost
from common.gpus import resolve
from common.serving import winners
from common.serving.winners import Winner
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from compare.__main__ import main as diptych
from compare.competitors import registry
from compare.run import explain
from compare.workloads import Ask, parse_lens, suites

pytestmark = pytest.mark.filterwarnings("ignore:.*no measured winners")

SHAPE = AttentionShape(32, 8, 128, 16, torch.bfloat16)


def public(dsl):
    """The family of the public calls."""
    return registry.load(f"{dsl}/native.auto" if dsl == "triton" else f"{dsl}/auto").FAMILY


@pytest.mark.parametrize("gpu", ["h200", "mi300", None])
@pytest.mark.parametrize("text", ["8q1s2k", "q2k", "q1s2k_16q512s1536", "32q4s4k"])
@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_what_is_told_is_what_the_public_call_chooses(dsl, text, gpu):
    lens, gpu = parse_lens(text), gpu and resolve(gpu)
    choice = public(dsl).choose(SHAPE, BatchStats.of(lens), gpu)
    lines = explain.explain(dsl, lens, SHAPE, Ask(), gpu)
    assert lines[0] == f"{dsl}: {choice.kernel}"
    assert ["provenance", choice.provenance] in [line.split(None, 1) for line in lines]


@pytest.mark.parametrize("text", ["32q1s32k", "q1s8k", "8q4s4k", "8q8s4k", "q1s2k_16q512s1536"])
@pytest.mark.parametrize("ask", [Ask(sliding_window=256), Ask(chunk=1024)], ids=["window", "chunk"])
@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_a_window_leads_to_what_auto_chooses_for_it(dsl, ask, text):
    lens, gpu = parse_lens(text), resolve("h200")
    choice = public(dsl).choose(SHAPE, BatchStats.of(lens), gpu, ask.members(SHAPE), sees=ask.sees)
    assert explain.explain(dsl, lens, SHAPE, ask, gpu)[0] == f"{dsl}: {choice.kernel}"


@pytest.mark.parametrize(("gpu", "native"), [("h200", True), ("mi300", False)])
def test_a_kernel_of_one_gpu_is_told_with_the_portable_one(gpu, native):
    lines = explain.explain("triton", parse_lens("q8k"), SHAPE, Ask(), resolve(gpu))
    assert lines[0].endswith("native.sm90_prefill") == native == any("portable=True" in line for line in lines)


def test_without_native_kernels_the_portable_choice_is_all(monkeypatch):
    monkeypatch.setenv("DIPTYCH_PORTABLE", "1")
    assert "native" not in explain.explain("triton", parse_lens("q8k"), SHAPE, Ask(), resolve("h200"))[0]


def test_what_a_window_leaves_to_choose_for_is_told(capsys):
    for options in ([], ["--window", "256"]):
        assert diptych(["explain", "32q1s32k", "--gpu", "h200", "--dsl", "triton", *options]) == 0
    told = capsys.readouterr().out.split("asked as: ")
    assert "keys up to 32768" in told[1] and "keys up to 384" in told[2]


def test_segments_follow_the_longest_sequence_that_the_part_serves():
    kernel = registry.load("triton/parallel_softmax")
    config = kernel.Config(16, 64, 6)
    assert explain.segments(config, [(1, 2048), (1, 64)], None) == "up to 6; 6 for the longest, 32 tiles of 64 keys"
    assert explain.segments(config, [(1, 2048)], 128) == "up to 6; 3 for the longest, 3 tiles of 64 keys"
    assert explain.segments(config, [(1, 500)], None) == "up to 6; 4 for the longest, 8 tiles of 64 keys"
    assert explain.segments(config, [], None) == "up to 6, for no sequence of this batch"
    unpaged = registry.load("triton/unpaged")
    served = {name: lens for name, _, lens in explain.parts(unpaged.DEFAULT, [(1, 9), (17, 20), (16, 30)])}
    assert served == {"prefill": [(17, 20)], "decode": [(1, 9), (16, 30)]}
    items = dataclasses.replace(registry.load("triton/native.sm90_prefill").DEFAULT, together=True)
    assert explain.parts(items, [(1, 9), (17, 20)]) == [("prefill", items.prefill, [(1, 9), (17, 20)])]


def test_the_command_prints_both_dsls(capsys):
    assert diptych(["explain", "q1s2k_16q512s1536", "--gpu", "h200"]) == 0
    told = capsys.readouterr().out
    assert "on h200" in told and "\ntriton: " in told and "\nhelion: " in told
    assert "dsl_triton/heuristics/" in told


def test_a_row_of_a_suite_is_found_by_the_name_that_reports_have(capsys):
    assert diptych(["explain", "16q4s4k~@8:1:128", "--gpu", "h200", "--dsl", "helion"]) == 0
    assert "; 8:1:128, pages of 16, bfloat16\n" in capsys.readouterr().out
    row = next(row for row in suites.suite("unseen", 5) if row.kind == "mixed")
    assert diptych(["explain", row.label, "--gpu", "h200", "--dsl", "helion", "--seed", "5"]) == 0
    assert f"batch: sequences {len(row.lens)}," in capsys.readouterr().out
    assert diptych(["explain", row.label, "--gpu", "h200", "--seed", "6"]) == 2
    assert diptych(["explain", "32q1s2k~", "--gpu", "h200", "--dsl", "helion", "--shape", "28:4:128"]) == 0
    assert "; 28:4:128, pages of 16" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["--shape=32:8:128", "--block-size=16", "--dtype=bf16"])
def test_a_form_beside_a_row_of_a_suite_is_refused(capsys, form):
    assert diptych(["explain", "16q4s4k~@8:1:128", "--gpu", "h200", form]) == 2
    said = capsys.readouterr().err
    assert f"{form.replace('=', ': found ')}, allowed none beside 16q4s4k~@8:1:128" in said


def test_a_dsl_that_is_not_here_is_said(monkeypatch, capsys):
    def absent(kernel_id):
        raise registry.Unavailable("ImportError: no such compiler")

    monkeypatch.setattr(registry, "load", absent)
    assert diptych(["explain", "q1s2k"]) == 5
    assert capsys.readouterr().out.count("unavailable: ImportError: no such compiler") == 2


@pytest.mark.parametrize("code", ["same", "other"])
def test_a_measured_winner_is_told_with_its_row_and_other_code_as_stale(monkeypatch, tmp_path, capsys, code):
    monkeypatch.setenv(winners.FOLDER, str(tmp_path))
    auto, gpu = registry.load("triton/auto"), resolve("h200")
    at = winners.key(SHAPE, BatchStats.of(parse_lens("8q1s2k")))
    config = registry.config_dict(auto.FAMILY.kernel("q_block").DEFAULT)
    stamp = auto.FAMILY.stamp("q_block") if code == "same" else "0" * 16
    winners.append(winners.path("triton", gpu), Winner(at, "auto", "q_block", config, 10.0, 12.0, stamp, "w0"))
    monkeypatch.setattr(auto.FAMILY, "_winners", {})
    monkeypatch.setattr(auto.FAMILY, "_chosen", {})
    assert diptych(["explain", "8q1s2k", "--gpu", "h200", "--dsl", "triton"]) == 0
    told = capsys.readouterr().out
    row = "chosen by   measured on w0, 10.0 us, without it 12.0"
    assert (row in told and f"provenance  {tmp_path}" in told) == (code == "same")
    assert ("stale       q_block: timed with other code" in told) == (code == "other")


def test_candidates_have_predicted_times_and_what_limits_them(capsys):
    assert diptych(["explain", "8q1s2k", "--gpu", "h200", "--dsl", "triton"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith("candidates"))
    told = [line.split()[:3] for line in lines[at + 1 : at + 6]]
    times = [float(us) for us, *_ in told]
    assert times[0] == min(times) > 0
    assert {limit for _, limit, _ in told} <= set(cost.TERMS) and all(kernel.endswith(":") for *_, kernel in told)
    assert lines[at + 6].strip().startswith("measuring")
