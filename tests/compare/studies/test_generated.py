"""What Helion generates beside ours: rows become pairs; a real kernel of each DSL is compiled and its source kept."""

import json

import pytest

import children
from compare.__main__ import main as diptych
from compare.studies import generated


def row(kernel, workload="32q1s2k", status="ok", **more):
    facts = {"registers": 100, "spills": 1, "shared_bytes": 64, "instructions": 10, "loads": {"128": 4}, "matrix": {}}
    return {"kernel": kernel, "workload": workload, "status": status} | (facts | more if status == "ok" else more)


def test_a_pair_sums_a_launchs_kernels_and_keeps_the_worst():
    parts = [row("triton/q_block"), row("triton/q_block", registers=200, matrix={"HMMA 16816": 8})]
    (pair,) = generated.pairs([*parts, row("helion/q_block", generated_tokens=3000)])
    assert (pair["triton_kernels"], pair["triton_registers"], pair["triton_spills"]) == (2, 200, 2)
    assert pair["triton_matrix"] == "none; 8 x HMMA 16816" and pair["helion_loads"] == "4 x 128"
    assert pair["generated_tokens"] == 3000 and pair["helion_tokens"] > 1000


def test_a_side_that_failed_has_its_reason_and_no_figures():
    failed = row("helion/q_block", status="compile_error", reason="PdlPlacement: no")
    (pair,) = generated.pairs([row("triton/q_block"), failed])
    assert pair["helion_failed"] == "PdlPlacement: no" and "helion_registers" not in pair


@pytest.mark.parametrize(
    ("words", "said"),
    [("--gpu nosuch", "nosuch"), ("--gpu h200 --rungs q_blok", "--rungs: found q_blok"),
     ("--gpu h200 --sources auto", "--sources: found auto"), ("--gpu h200 --workload q1x", "workload")],
)  # fmt: skip
def test_the_command_refuses_by_name(words, said, tmp_path, capsys):
    assert diptych(["study", "generated", *words.split(), "--out", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_both_sources_are_compiled_and_the_generated_one_is_kept(tmp_path):
    words = ["--gpu", "h200", "--rungs", "naive", "--workload", "q1s16", "--out", str(tmp_path)]
    children.said(["-m", "compare", "study", "generated", *words], children.compiling(), 300)
    (pair,) = generated.pairs(generated.read(tmp_path))
    assert pair["triton_registers"] > 0 and pair["generated_tokens"] > pair["helion_tokens"]
    source = (tmp_path / "naive.q1s16.txt").read_text()
    assert source.startswith("# _naive_kernel: ") and "def _helion__naive_kernel(" in source
    assert json.loads((tmp_path / "code.jsonl").read_text().splitlines()[0])["heuristics"] == "default"
