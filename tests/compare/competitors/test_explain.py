"""compare.competitors.explain: the choice of the public call, the conditions behind it, and what it says when asked
wrong."""

import importlib.util

import pytest
import torch

from common.gpus import resolve
from common.serving.choice import Choice
from common.serving.grid import decided_by, on_grid
from common.serving.rules import Situation
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from compare.__main__ import main as diptych
from compare.competitors import explain, registry
from compare.workloads import Ask, parse_lens

pytestmark = pytest.mark.filterwarnings("ignore:.*no measured tree")

SHAPE = AttentionShape(32, 8, 128, 16, torch.bfloat16)
SOURCE = """
LIMIT = 16

def pick(n):
    if n <= LIMIT:
        return "short"
    elif n % 2:
        return "odd"
    return helper(n) if n > 100 else "even"

def helper(n):
    return "long"
"""


def heading(lines, dsl):
    """The kernel of the portable choice."""
    return next(line for line in reversed(lines) if line.startswith((f"{dsl}: ", f"{dsl}, "))).partition(": ")[2]


@pytest.fixture
def tree(tmp_path):
    path = tmp_path / "tree_of_a_test.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("tree_of_a_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("n", "expected", "met"),
    [
        (3, "short", [("n <= LIMIT", True)]),
        (17, "odd", [("n <= LIMIT", False), ("n % 2", True)]),
        (18, "even", [("n <= LIMIT", False), ("n % 2", False), ("n > 100", False)]),
        (200, "long", [("n <= LIMIT", False), ("n % 2", False), ("n > 100", True)]),
    ],
)
def test_the_conditions_of_a_tree_are_those_that_it_met(tree, n, expected, met):
    assert explain.conditions(tree, "pick", n) == (expected, met)


@pytest.mark.parametrize("gpu", ["h200", "mi300", None])
@pytest.mark.parametrize("text", ["8q1s2k", "q2k", "q1s2k_16q512s1536", "32q4s4k"])
@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_the_conditions_lead_to_what_auto_chooses(dsl, text, gpu):
    """`path_of` raises where the watched tree gives another config."""
    auto, lens, gpu = registry.load(f"{dsl}/auto"), parse_lens(text), gpu and resolve(gpu)
    told = BatchStats.of(lens)
    stats = decided_by(told)
    choice = auto.choose(SHAPE, told, gpu)
    met = explain.path_of(auto.FAMILY, choice, SHAPE, stats, gpu)
    assert bool(met) == choice.path.startswith("heuristics/fitted/")
    told = dict(explain.rules_of(auto.FAMILY, choice, Situation(SHAPE, stats, gpu)))
    assert "kernel by" in told or met
    lines = explain.explain(dsl, lens, SHAPE, Ask(), gpu)
    assert heading(lines, dsl) == choice.kernel
    assert lines[-1].split(None, 1) == ["provenance", choice.provenance]


@pytest.mark.parametrize("text", ["32q1s32k", "q1s8k", "8q4s4k", "8q8s4k", "q1s2k_16q512s1536"])
@pytest.mark.parametrize("ask", [Ask(sliding_window=256), Ask(chunk=1024)], ids=["window", "chunk"])
@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_a_window_leads_to_what_auto_chooses_for_it(dsl, ask, text):
    auto, lens, gpu = registry.load(f"{dsl}/auto"), parse_lens(text), resolve("h200")
    choice = auto.choose(SHAPE, BatchStats.of(lens), gpu, sees=ask.sees)
    assert heading(explain.explain(dsl, lens, SHAPE, ask, gpu), dsl) == choice.kernel


@pytest.mark.parametrize(("text", "gpu", "first"), [
    ("q8k", "h200", "triton: native.sm90_prefill"),
    ("q8k", "mi300", "triton: "),
    ("32q1s2k", "h200", "triton: q_block"),
])  # fmt: skip
def test_what_the_public_call_takes_comes_first(text, gpu, first):
    lines = explain.explain("triton", parse_lens(text), SHAPE, Ask(), resolve(gpu))
    assert lines[0].startswith(first) and ("native" in lines[0]) == any("portable: " in line for line in lines)


def test_without_native_kernels_the_portable_choice_is_all(monkeypatch):
    monkeypatch.setenv("DIPTYCH_PORTABLE", "1")
    assert explain.explain("triton", parse_lens("q8k"), SHAPE, Ask(), resolve("h200"))[0] == "triton: unpaged"


def test_what_a_window_leaves_to_choose_for_is_told(capsys):
    for options in ([], ["--window", "256"]):
        assert diptych(["explain", "32q1s32k", "--gpu", "h200", "--dsl", "triton", *options]) == 0
    told = capsys.readouterr().out.split("asked as: ")
    assert "keys up to 32768" in told[1] and "triton: parallel_softmax" in told[1]
    assert "keys up to 384" in told[2] and "triton: q_block" in told[2]


def test_a_tree_that_gives_another_config_is_an_error():
    auto, gpu = registry.load("triton/auto"), resolve("h200")
    stats = on_grid(8, 8, 1, 2048)
    other = Choice(
        "parallel_softmax", auto.FAMILY.kernel("parallel_softmax").DEFAULT, "heuristics/fitted/h200.py: auto"
    )
    with pytest.raises(RuntimeError, match="when it was watched"):
        explain.path_of(auto.FAMILY, other, SHAPE, stats, gpu)


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


def test_the_command_prints_both_dsls(capsys):
    assert diptych(["explain", "q1s2k_16q512s1536", "--gpu", "h200"]) == 0
    told = capsys.readouterr().out
    assert "on h200" in told and "\ntriton: " in told and "\nhelion: " in told
    assert "dsl_triton/heuristics/" in told


def test_only_what_held_is_said(capsys):
    assert diptych(["explain", "64q1s100~", "--gpu", "h200"]) == 0
    told = capsys.readouterr().out
    assert "because max_query_len <= 64 and max_seq_len <= 192" in told and "not covers" not in told


@pytest.mark.parametrize(
    ("options", "said"),
    [(["q1s2k", "--gpu", "h20"], "h200"), (["q1x2k"], "q1x2k"), (["q1s2k", "--dtype", "fp4"], "fp4")],
    ids=["gpu", "batch", "dtype"],
)
def test_what_cannot_be_read_is_exit_2_and_names_it(options, said, capsys):
    assert diptych(["explain", *options]) == 2
    assert said in capsys.readouterr().err


def test_a_dsl_that_is_not_here_is_said(monkeypatch, capsys):
    def absent(kernel_id):
        raise registry.Unavailable("ImportError: no such compiler")

    monkeypatch.setattr(registry, "load", absent)
    assert diptych(["explain", "q1s2k"]) == 5
    assert capsys.readouterr().out.count("unavailable: ImportError: no such compiler") == 2


def test_the_rule_that_decided_is_told_in_a_line_with_its_runner_up(capsys):
    assert diptych(["explain", "10q4s3000~", "--shape", "64:8:128", "--gpu", "h100", "--dsl", "triton"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    at = next(i for i, line in enumerate(lines) if line.startswith("kernel by"))
    assert lines[at].startswith(
        "kernel by   short queries: parallel_softmax reads keys as decode does (8 times 8 tokens"
    )
    assert lines[at + 1].startswith("runner-up") and "unpaged" in lines[at + 1]
    assert lines[at + 2].startswith("config by   short queries: as many segments as end soonest")


def test_a_fitted_table_of_other_sources_is_said_to_be_stale(monkeypatch):
    auto, gpu, stats = registry.load("triton/auto"), resolve("h200"), decided_by(BatchStats.of(parse_lens("8q1s2k")))
    choice = auto.choose(SHAPE, stats, gpu)
    assert "yes: fitted with sources" in explain.stale(auto.FAMILY, "triton", choice)
    module = auto.FAMILY.load("heuristics.fitted.h200")
    monkeypatch.setitem(module.PROVENANCE, "sources", explain.sources.of_rules("triton"))
    assert explain.stale(auto.FAMILY, "triton", choice) == ""
