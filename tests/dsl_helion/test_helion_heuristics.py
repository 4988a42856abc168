"""The spaces and the default choices are legal for every GPU of the table and every head size; no GPU needed."""

import itertools

import helion
import pytest
import torch

from common import gpus
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from dsl_helion import naive, parallel_softmax, q_block
from dsl_helion.binding import fits
from dsl_helion.heuristics.generic import default

KERNELS = {"naive": naive, "q_block": q_block, "parallel_softmax": parallel_softmax}
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
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_choice_is_legal(kernel: str, lens: list) -> None:
    dtypes = (torch.bfloat16, torch.float32, torch.float8_e4m3fn)
    for gpu, (head, value), dtype in itertools.product(GPUS, HEADS, dtypes):
        shape = AttentionShape(32, 8, head, 16, dtype, value)
        config = getattr(default, kernel)(shape, BatchStats.of(lens), gpu)
        assert isinstance(config, KERNELS[kernel].Config)
        assert config.num_warps in (1, 2, 4, 8)
        if kernel == "naive":
            continue
        assert config.tile_size == helion.next_power_of_2(config.tile_size) >= 16
        lanes = helion.next_power_of_2(head) + helion.next_power_of_2(value or head)
        assert config.tile_size * lanes * dtype.itemsize <= gpu.shared_bytes
        assert 1 <= getattr(config, "num_segments", 1) <= 128


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("head", [64, 80, 256])
@pytest.mark.parametrize("kernel", ["q_block", "parallel_softmax"])
def test_a_space_is_wide_distinct_and_fits(kernel: str, head: int, gpu: gpus.Gpu) -> None:
    shape = AttentionShape(32, 8, head, 16, torch.bfloat16)
    configs = list(KERNELS[kernel].space(shape, gpu))
    assert len(set(configs)) == len(configs) >= 40
    assert all(fits(config, shape, gpu) for config in configs)
    assert any(config.gather == "page" for config in configs) == (head != 80)


def test_segments_fill_the_gpu_once_at_small_batches() -> None:
    shape, h200 = AttentionShape(), gpus.resolve("h200")
    chosen = [default.parallel_softmax(shape, BatchStats.of([(1, 8192)] * n), h200).num_segments for n in (1, 8, 256)]
    assert chosen == [49, 6, 3]


@pytest.mark.parametrize(("head", "value"), HEADS)
def test_a_static_grid_has_one_config_that_fits_for_every_batch(head: int, value: int | None) -> None:
    for gpu in GPUS:
        for dtype in (torch.bfloat16, torch.float32):
            shape = AttentionShape(32, 8, head, 16, dtype, value)
            (config,) = {default.static_grid(shape, BatchStats.of(lens), gpu) for lens in BATCHES.values()}
            for part in (config.decode, config.prefill):
                assert part.programs % gpu.units == 0 and part.num_warps in (1, 2, 4, 8)
                assert part.tile_size == helion.next_power_of_2(part.tile_size)
                assert part.tile_size * (head + (value or head)) * dtype.itemsize <= gpu.shared_bytes


def test_float32_on_an_mi350_has_no_more_keys_than_its_registers_hold() -> None:
    shape, stats = AttentionShape(5, 1, 80, 24, torch.float32), BatchStats.of([(4, 50), (1, 30)])
    assert default.parallel_softmax(shape, stats, gpus.resolve("mi350")).tile_size == 32


@pytest.mark.parametrize(("head", "value", "rows"), [(128, None, 128), (80, None, 64), (128, 96, 64), (64, 128, 128)])
def test_a_prompt_without_descriptors_has_rows_that_do_not_spill(head: int, value: int | None, rows: int) -> None:
    """By pointers 128 rows of 80 lanes spill 26 registers (Triton 3.6.0, sm_90), 64 rows none."""
    shape = AttentionShape(32, 8, head, 16, torch.bfloat16, value)
    config = default.unpaged(shape, BatchStats.of([(8192, 8192)]), gpus.resolve("h200"))
    assert (config.prefill.block_m, config.prefill.tile_size) == (rows, 64)
