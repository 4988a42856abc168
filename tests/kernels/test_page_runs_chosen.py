"""Where the heuristics read 16 bits by page runs on an H200, and that each such config is right."""

from dataclasses import replace

import pytest
import torch

from common import gpus
from common.cases.named import CASES
from common.serving.rules import Situation
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from dsl_triton import parallel_softmax
from dsl_triton.heuristics.generic import default, page_runs
from kernel_cases import conform

H200 = gpus.resolve("h200")
LLAMA, ONE_KV_HEAD = AttentionShape(32, 8, 128, 16), AttentionShape(16, 1, 128, 16)
TAKE = {
    "one-long-decode": (LLAMA, [(1, 131072)], (16, 64, 128)),
    "decodes-of-256": (AttentionShape(16, 8, 256, 16), [(1, 4096)] * 64, (16, 16, 4)),
    "verification-of-64-rows": (ONE_KV_HEAD, [(4, 4096)] * 16, (64, 128, 8)),
    "verification-of-32-rows": (LLAMA, [(8, 4096)] * 8, (32, 64, 6)),
    "few-of-32-rows-as-64": (AttentionShape(8, 1, 128, 16), [(4, 4096)] * 16, (64, 128, 8)),
    "chunk-of-128": (LLAMA, [(128, 8192)], (64, 64, 4)),
    "chunk-of-64": (LLAMA, [(64, 8192)], (64, 64, 8)),
    "chunk-over-few-tiles": (AttentionShape(64, 32, 128, 16), [(22, 806)] * 2, (64, 64, 3)),
}
LEAVE = {
    "decodes": (LLAMA, [(1, 8192)] * 32),
    "few-long-decodes": (LLAMA, [(1, 32768)] * 8),
    "short-segments": (LLAMA, [(1, 4096)]),
    "units-filled": (LLAMA, [(1, 8192)] * 128),
    "few-of-32-rows-short": (AttentionShape(8, 1, 128, 16), [(4, 1024)] * 16),
    "heads-of-64": (AttentionShape(64, 8, 64, 16), [(1, 8192)] * 32),
    "pages-of-24": (AttentionShape(32, 8, 128, 24), [(1, 8192)] * 32),
    "float32": (AttentionShape(32, 8, 128, 16, torch.float32), [(1, 8192)] * 32),
    "prompt-of-8-bits": (AttentionShape(32, 8, 128, 16, kv_dtype=torch.float8_e4m3fn), [(64, 500)]),
    "prompt-of-few-keys": (LLAMA, [(64, 100)]),
}
ONE_SEGMENT = {
    "long-chunk": (LLAMA, [(256, 8192)]),
    "short-context": (LLAMA, [(64, 500)]),
}
NAMED = ("query-15-16-17", "everything-at-once", "window-page", "all-sequences-empty", "page-48")
PLAIN = [case for case in CASES if case.name in NAMED]


@pytest.mark.parametrize(("shape", "lens", "sizes"), TAKE.values(), ids=TAKE)
def test_these_rows_take_runs(shape: AttentionShape, lens: list, sizes: tuple[int, int, int]) -> None:
    config = default.parallel_softmax(shape, BatchStats.of(lens), H200)
    assert (config.block_m, config.tile_size, config.num_segments) == sizes
    assert config.gather == "run"
    assert default.auto(shape, BatchStats.of(lens), H200) == ("parallel_softmax", config)


@pytest.mark.parametrize(("shape", "lens"), LEAVE.values(), ids=LEAVE)
def test_other_rows_are_read_as_before(shape: AttentionShape, lens: list) -> None:
    assert default.parallel_softmax(shape, BatchStats.of(lens), H200).gather == "key"


@pytest.mark.parametrize(("shape", "lens"), ONE_SEGMENT.values(), ids=ONE_SEGMENT)
def test_other_prompts_take_runs_in_one_segment(shape: AttentionShape, lens: list) -> None:
    config = default.parallel_softmax(shape, BatchStats.of(lens), H200)
    assert (config.block_m, config.tile_size, config.num_segments, config.gather) == (64, 64, 1, "run")


def test_a_few_blocks_beside_a_decode_are_cut() -> None:
    config = default.parallel_softmax(LLAMA, BatchStats.of([(64, 8192), (1, 100)]), H200)
    assert (config.num_segments, config.gather) == (7, "run")


@pytest.mark.parametrize(("keys", "stages"), [(400, 2), (4000, 5)])
def test_long_loops_have_two_tiles_ahead(keys: int, stages: int) -> None:
    stats = BatchStats.of([(40, keys)] * 64)
    assert default.parallel_softmax(LLAMA, stats, H200).num_stages == stages


def test_no_gpu_that_was_not_measured_takes_runs() -> None:
    takes = {
        gpu.arch
        for gpu in map(gpus.resolve, gpus.TABLE)
        if page_runs.applies(Situation(LLAMA, BatchStats.of([(1, 9)]), gpu))
    }
    assert takes == {"sm_90"}


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
@pytest.mark.parametrize("shape, lens", [take[:2] for take in TAKE.values()][::2], ids=[*TAKE][::2])
def test_every_config_is_right(shape: AttentionShape, lens: list, case) -> None:
    config = default.parallel_softmax(shape, BatchStats.of(lens), H200)
    conform(parallel_softmax, case, replace(config, num_segments=3, overlap=False))
