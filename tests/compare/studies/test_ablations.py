"""What docs/ablations.md claims of compiled code, and that nobody meets an ablation who did not name it."""

import os
from pathlib import Path

import pytest
import torch

from common.gpus import resolve
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from compare.competitors import registry
from compare.static.compile import compile_in_child
from compilations import compilation

ROOT = Path(__file__).parents[3]


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
    kernel, gpu, shape = registry.load(kernel_id), resolve("h200"), AttentionShape()
    assert next(kernel.space(shape, gpu), None) is not None
    config, origin = registry.default_config(kernel_id, kernel, shape, BatchStats.of(((1, 2048),) * 8), gpu, "learned")
    assert (type(config), origin) == (type(kernel.DEFAULT), "heuristics")


def test_a_sum_over_the_middle_axis_becomes_a_product_in_tf32(monkeypatch):
    """Of float32, for which tf32 is another precision; the last axis, which the ablation sums over, does not."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "support" / "probes"), prepend=os.pathsep)
    shape = AttentionShape(1, 1, 16, 16, torch.float32)
    jobs = [compilation("diptych_probe.triton_sums", ((16, 16),), shape, {"middle": way}) for way in (True, False)]
    middle, last = compile_in_child(jobs, resolve("h200"))
    assert set(middle.facts[0]["matrix"]) == {"HMMA 1688"}  # 16 x 8 x 8: the shape of tf32
    assert not last.facts[0]["matrix"]
