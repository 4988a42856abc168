"""The default choices are legal for every GPU of the table, every head size and every kind of batch; no GPU needed."""

import pytest
import torch
import triton

from common import gpus
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from dsl_triton.heuristics.generic import default

BATCHES = {
    "one-decode": [(1, 131072)],
    "many-decodes": [(1, 700)] * 256,
    "prompt": [(8192, 8192)],
    "mixed": [(1, 2048)] * 16 + [(512, 1536)] * 16,
    "verify": [(4, 4096)] * 32,
    "empty": [],
}
HEADS = [(8, None), (64, None), (80, None), (128, None), (256, None), (512, None), (192, 128), (64, 512)]  # K's, V's
GPUS = [gpus.resolve(name) for name in gpus.TABLE]


@pytest.mark.parametrize("lens", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("kernel", ["naive", "q_block", "parallel_softmax"])
def test_every_choice_is_legal(kernel: str, lens: list) -> None:
    for gpu in GPUS:
        for head, value in HEADS:
            for dtype in (torch.bfloat16, torch.float32, torch.float8_e4m3fn):
                shape = AttentionShape(32, 8, head, 16, dtype, value)
                config = getattr(default, kernel)(shape, BatchStats.of(lens), gpu)
                assert config.num_warps in (1, 2, 4, 8)
                if kernel == "naive":
                    continue
                assert config.tile_size == triton.next_power_of_2(config.tile_size) >= 16
                lanes = triton.next_power_of_2(head) + triton.next_power_of_2(value or head)
                tile_bytes = config.tile_size * lanes * dtype.itemsize
                assert tile_bytes <= gpu.shared_bytes
                assert 1 <= getattr(config, "num_segments", 1) <= 128


def test_segments_fill_the_gpu_once_at_small_batches() -> None:
    shape, h200 = AttentionShape(), gpus.resolve("h200")
    chosen = [default.parallel_softmax(shape, BatchStats.of([(1, 8192)] * n), h200).num_segments for n in (1, 8, 256)]
    assert chosen == [49, 6, 3]


def test_no_reduction_is_overlapped_where_the_hardware_cannot() -> None:
    shape, stats = AttentionShape(), BatchStats.of([(1, 8192)])
    overlaps = {gpu.name for gpu in GPUS if default.parallel_softmax(shape, stats, gpu).overlap}
    assert overlaps == {"h100", "h200", "b200", "rtx5090"}


@pytest.mark.parametrize(("head", "value"), HEADS)
def test_a_static_grid_has_one_config_that_fits_for_every_batch(head: int, value: int | None) -> None:
    for gpu in GPUS:
        for dtype in (torch.bfloat16, torch.float32):
            shape = AttentionShape(32, 8, head, 16, dtype, value)
            (config,) = {default.static_grid(shape, BatchStats.of(lens), gpu) for lens in BATCHES.values()}
            for part in (config.decode, config.prefill):
                assert part.programs % gpu.units == 0 and part.num_warps in (1, 2, 4, 8)
                assert part.tile_size == triton.next_power_of_2(part.tile_size)
                assert part.tile_size * (head + (value or head)) * dtype.itemsize <= gpu.shared_bytes
