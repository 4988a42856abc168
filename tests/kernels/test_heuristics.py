"""The spaces and the default choices are legal for every GPU of the table, head size and batch; no GPU needed."""

import itertools

import pytest
import torch
import triton

from common import gpus
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from dsls import in_helion, in_triton

BATCHES = {
    "one-decode": [(1, 131072)],
    "many-decodes": [(1, 700)] * 256,
    "prompt": [(8192, 8192)],
    "mixed": [(1, 2048)] * 16 + [(512, 1536)] * 16,
    "verify": [(4, 4096)] * 32,
    "empty": [],
}
HEADS = [(8, None), (64, None), (80, None), (128, None), (256, None), (512, None), (192, 128), (64, 512)]  # K's, V's
KERNELS = ("naive", "q_block", "parallel_softmax")
DTYPES = (torch.bfloat16, torch.float32, torch.float8_e4m3fn)
GPUS = [gpus.resolve(name) for name in gpus.TABLE]


@pytest.mark.parametrize("lens", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_choice_is_legal(dsl, kernel: str, lens: list) -> None:
    choose, of = getattr(dsl.module("heuristics.generic.default"), kernel), dsl.module(kernel).Config
    for gpu, (head, value), dtype in itertools.product(GPUS, HEADS, DTYPES):
        shape = AttentionShape(32, 8, head, 16, dtype, value)
        config = choose(shape, BatchStats.of(lens), gpu)
        assert isinstance(config, of)
        assert config.num_warps in (1, 2, 4, 8)
        if kernel == "naive":
            continue
        assert config.tile_size == triton.next_power_of_2(config.tile_size) >= 16
        lanes = triton.next_power_of_2(head) + triton.next_power_of_2(value or head)
        assert config.tile_size * lanes * dtype.itemsize <= gpu.shared_bytes
        assert 1 <= getattr(config, "num_segments", 1) <= 128


@in_helion
@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("head", [64, 80, 256])
@pytest.mark.parametrize("kernel", ["q_block", "parallel_softmax"])
def test_a_space_is_wide_distinct_and_fits(dsl, kernel: str, head: int, gpu: gpus.Gpu) -> None:
    shape = AttentionShape(32, 8, head, 16, torch.bfloat16)
    configs = list(dsl.module(kernel).space(shape, gpu))
    assert len(set(configs)) == len(configs) >= 40
    assert all(dsl.fits(config, shape, gpu) for config in configs)
    assert any(config.gather == "page" for config in configs) == (head != 80)


def test_segments_fill_the_gpu_once_at_small_batches(dsl) -> None:
    default = dsl.module("heuristics.generic.default")
    shape, h200 = AttentionShape(), gpus.resolve("h200")
    chosen = [default.parallel_softmax(shape, BatchStats.of([(1, 8192)] * n), h200).num_segments for n in (1, 8, 256)]
    assert chosen == [48, 6, 3]


@in_triton
def test_no_reduction_is_overlapped_where_the_hardware_cannot(dsl) -> None:
    default = dsl.module("heuristics.generic.default")
    shape, stats = AttentionShape(), BatchStats.of([(1, 8192)])
    overlaps = {gpu.name for gpu in GPUS if default.parallel_softmax(shape, stats, gpu).overlap}
    assert overlaps == {"h100", "h200", "gh200", "h800", "h20", "b200", "rtx5090"}


@pytest.mark.parametrize(("head", "value"), HEADS)
def test_a_static_grid_has_one_config_that_fits_for_every_batch(dsl, head: int, value: int | None) -> None:
    default = dsl.module("heuristics.generic.default")
    for gpu in GPUS:
        for dtype in (torch.bfloat16, torch.float32):
            shape = AttentionShape(32, 8, head, 16, dtype, value)
            (config,) = {default.static_grid(shape, BatchStats.of(lens), gpu) for lens in BATCHES.values()}
            assert config.programs % gpu.units == 0 and config.num_warps in (1, 2, 4, 8)
            for part in (config.decode, config.prefill):
                assert part.tile_size == triton.next_power_of_2(part.tile_size)
                assert part.tile_size * (head + (value or head)) * dtype.itemsize <= gpu.shared_bytes


@in_helion
def test_float32_on_an_mi350_has_no_more_keys_than_its_registers_hold(dsl) -> None:
    default = dsl.module("heuristics.generic.default")
    shape, stats = AttentionShape(5, 1, 80, 24, torch.float32), BatchStats.of([(4, 50), (1, 30)])
    assert default.parallel_softmax(shape, stats, gpus.resolve("mi350")).tile_size == 32


@in_helion
@pytest.mark.parametrize(("head", "value", "rows"), [(128, None, 128), (80, None, 64), (128, 96, 64), (64, 128, 128)])
def test_a_prompt_without_descriptors_has_rows_that_do_not_spill(dsl, head: int, value: int | None, rows: int) -> None:
    """By pointers 128 rows of 80 lanes spill 26 registers (Triton 3.6.0, sm_90), 64 rows none."""
    shape = AttentionShape(32, 8, head, 16, torch.bfloat16, value)
    default = dsl.module("heuristics.generic.default")
    config = default.unpaged(shape, BatchStats.of([(8192, 8192)]), gpus.resolve("h200"))
    assert (config.prefill.block_m, config.prefill.tile_size) == (rows, 64)
