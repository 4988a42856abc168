"""What docs/ablations.md claims of compiled code, and that nobody meets an ablation who did not name it."""

import os
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from common.gpus import resolve
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from compare.competitors import registry
from compare.static.compile import compile_in_child
from compare.studies import generated
from compilations import compilation

ROOT = Path(__file__).parents[3]
FACTS = ROOT / "docs" / "ablation-facts.md"


@pytest.mark.parametrize("pattern", ["*", "triton/*", "helion/*", "*/*", "triton/*,helion/*"])
def test_no_glob_takes_an_ablation_unasked(pattern):
    assert not set(registry.select(pattern)) & set(registry.ABLATIONS)


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("*/ablations.*", 10), ("triton/ablations.*", 4), ("helion/ablations.barrier", 1), ("*/ablation*.fused", 2)],
)
def test_a_glob_that_names_them_does(pattern, count):
    assert len(registry.select(pattern)) == count


def test_nothing_outside_the_folder_knows_them():
    for package in ("dsl_triton", "dsl_helion"):
        for path in (ROOT / package).rglob("*.py"):
            assert path.parent.name == "ablations" or "ablations" not in path.read_text(), path


@pytest.mark.parametrize("kernel_id", registry.ABLATIONS)
def test_an_ablation_is_a_kernel_and_fits_where_its_space_says(kernel_id):
    kernel, gpu, shape = registry.load(kernel_id), resolve("h200"), generated.LLAMA_3_8B
    assert next(kernel.space(shape, gpu), None) is not None
    config, origin = registry.default_config(kernel_id, kernel, shape, BatchStats.of(generated.DECODE), gpu, "learned")
    assert (type(config), origin) == (type(kernel.DEFAULT), "heuristics")


@pytest.mark.slow
def test_the_claims_about_compiled_code():
    """On sm_90: sums of products are no matrix product and pipeline nothing; a fused kernel pipelines both branches."""
    wanted = {"triton/q_block, 16 keys", "triton/ablations.elementwise", "triton/ablations.fused"}
    chosen = [entry for entry in generated.entries("triton") if entry.kernel + entry.note in wanted]
    found = {entry.kernel: outcome.facts[0] for entry, outcome in generated.ablated(resolve("h200"), chosen)}
    product, sums, fused = (found[f"triton/{name}"] for name in ("q_block", "ablations.elementwise", "ablations.fused"))
    assert product["pipelined"] == 2 and product["matrix"]  # K and V in the one loop of 16 rows
    assert sums["pipelined"] == 0 and not sums["matrix"]
    assert fused["pipelined"] == 6 and fused["spills"] == 0  # in a loop of the decodes, in two of the prompts


def test_a_sum_over_the_middle_axis_becomes_a_product_in_tf32(monkeypatch):
    """Of float32, for which tf32 is another precision; the last axis, which the ablation sums over, does not."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "support" / "probes"), prepend=os.pathsep)
    shape = AttentionShape(1, 1, 16, 16, torch.float32)
    jobs = [compilation("diptych_probe.triton_sums", ((16, 16),), shape, {"middle": way}) for way in (True, False)]
    middle, last = compile_in_child(jobs, resolve("h200"))
    assert set(middle.facts[0]["matrix"]) == {"HMMA 1688"}  # 16 x 8 x 8: the shape of tf32
    assert not last.facts[0]["matrix"]


def test_the_facts_hold_a_line_for_every_entry():
    text = FACTS.read_text()
    for entry in generated.entries("triton") + generated.entries("helion"):
        assert text.count(f"| {entry.kernel}{entry.note} |") == len(generated.ABLATED_FOR)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", generated.ABLATED_FOR)
def test_the_facts_are_those_of_these_sources(gpu):
    text = FACTS.read_text()
    if generated.versions() not in text:
        pytest.skip(f"docs/ablation-facts.md is of other versions than triton {version('triton')}")
    section = text.split(f"## {resolve(gpu).arch}\n")[1].split("## ")[0]
    assert section.strip() == "\n".join(generated.table(resolve(gpu))), (
        "run `python -m compare study generated --ablations`"
    )
