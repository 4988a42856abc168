"""native.sm90_prefill without an sm_90: what it refuses, where its boxes lie, its segments, and that it compiles."""

import re
import subprocess
import sys

import pytest
import torch

from common.cases.batch import make_batch
from common.gpus import resolve
from common.spec import AttentionShape, Features, UnsupportedFeature
from common.spec.kernel import Capacity
from common.spec.metadata import BatchStats
from compare.competitors import registry
from compare.process.crew import environment
from compare.static.compile import compile_in_child
from compilations import compilation
from dsl_triton.heuristics.generic import default
from dsl_triton.native import sm90_prefill as native

H200 = resolve("h200")
KERNEL_ID = "triton/native.sm90_prefill"
PRINT_TTGIR = """
import torch
from common.cases.batch import make_batch
from common.gpus import resolve
from common.spec import AttentionShape, Features
from compare.static.crosscompile import executing
from dsl_triton.native import sm90_prefill as native

batch, config = make_batch([(512, 512)], AttentionShape(), fill=False), native.DEFAULT.prefill
with executing(resolve("h200"), lambda launch: None) as launches:
    native._attend_long(batch, Features(), torch.empty_like(batch.query), config, None, None, 1)
print(launches[0].ttgir)
"""


def launch(shape, lens=((40, 60),), **options):
    batch = make_batch(lens, shape, **options)
    config = native.DEFAULT
    workspace = native.workspace(shape, Capacity.of(batch), config)
    native.launch(batch, Features(), torch.empty_like(batch.query), config, workspace)


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        (AttentionShape(8, 2, 64, 16, torch.bfloat16), "head_size 64"),
        (AttentionShape(8, 2, 128, 16, torch.float32), "dtype torch.float32"),
        (AttentionShape(8, 2, 128, 16, torch.bfloat16), "device of a CPU"),
    ],
    ids=["head", "dtype", "device"],
)
def test_what_it_does_not_do_is_refused_by_name_before_any_launch(shape, named, monkeypatch):
    if "device" not in named:  # as on the GPU: only the shape is wrong
        monkeypatch.setattr("triton.knobs.runtime.interpret", False)
    with pytest.raises(UnsupportedFeature, match=named):
        launch(shape)


@pytest.mark.parametrize("style", ["nhd", "hnd", "stacked", "interleaved"])
def test_a_box_begins_where_the_keys_are(style):
    shape = AttentionShape(8, 2, 128, 16, torch.bfloat16)
    batch = make_batch([(40, 60)], shape, style=style)
    for cache in (batch.key_cache, batch.value_cache):
        descriptor, (page_rows, head_rows, head_lanes) = native._boxes(cache, 16)
        rows, row = descriptor.shape
        for page, slot, head in ((0, 0, 0), (1, 3, 1), (cache.shape[0] - 1, 15, 1)):
            at = page * page_rows + head * head_rows + slot
            offset = at * row + head * head_lanes
            assert offset == page * cache.stride(0) + slot * cache.stride(1) + head * cache.stride(2)
            assert at < rows and head * head_lanes + 128 <= row


def test_the_native_folder_is_in_a_column_of_its_own():
    assert KERNEL_ID not in registry.select("triton/*")
    assert registry.select("triton/native*") == (KERNEL_ID, "triton/native.auto")


@pytest.mark.parametrize(("lens", "segments"), [([(128, 8192)], 4), ([(512, 8192)], 1), ([(8192, 8192)], 1)], ids=str)
def test_segments_fill_the_units_that_q_blocks_leave_idle(lens, segments):
    config, _ = registry.default_config(KERNEL_ID, native, AttentionShape(), BatchStats.of(lens), H200, "default")
    assert config.prefill.num_segments == segments
    assert config == native.default(default, AttentionShape(), BatchStats.of(lens), H200)


@pytest.mark.slow
def test_it_compiles_for_sm90_and_its_loop_keeps_everything_in_registers():
    (outcome,) = compile_in_child([compilation(KERNEL_ID, ((512, 512),), AttentionShape())], H200)
    assert outcome.status == "ok", outcome.reason
    facts = next(fact for fact in outcome.facts if "sm90" in fact["kernel"])
    assert sum(facts["matrix"].values()) == 144 and facts["spill_bytes"] <= 64


@pytest.mark.slow
def test_no_warp_hands_on_how_many_items_there_are_while_another_reads_the_sum():
    asked = [sys.executable, "-c", PRINT_TTGIR]
    done = subprocess.run(asked, env=environment("compile"), capture_output=True, text=True, check=True, timeout=180)
    before, specialised, _ = done.stdout.partition("ttg.warp_specialize(")
    assert specialised and re.search(r"\b(gpu|ttg)\.barrier\b", before[before.rindex("tt.reduce") :])
