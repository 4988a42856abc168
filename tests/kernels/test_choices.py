"""What is chosen, and the spaces, are legal for every GPU of the table, head size and batch; no GPU needed."""

import dataclasses
import itertools
import warnings

import pytest
import torch
import triton

from common import gpus
from common.cases.named import CASES
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from compare.competitors import registry
from dsls import in_helion
from eight_bit_cases import DECODES, SHAPE, STORED
from kernel_cases import conform

BATCHES = {
    "one-decode": [(1, 131072)], "many-decodes": [(1, 700)] * 256, "prompt": [(8192, 8192)],
    "mixed": [(1, 2048)] * 16 + [(512, 1536)] * 16, "verify": [(4, 4096)] * 32, "empty": [],
}  # fmt: skip
HEADS = [(8, None), (64, None), (80, None), (128, None), (256, None), (512, None), (192, 128), (64, 512)]  # K's, V's
KERNELS = ("naive", "q_block", "parallel_softmax", "adjustable_tile", "unpaged", "split", "static_grid")
DTYPES = (torch.bfloat16, torch.float32, torch.float8_e4m3fn)
GPUS = [gpus.resolve(name) for name in gpus.TABLE]
H200 = gpus.resolve("h200")
NAMED = ("query-15-16-17", "everything-at-once")


def family(dsl):
    return registry.load(f"{dsl.name}/auto").FAMILY


def parts(config):
    """The config, or its parts, that have tiles."""
    nested = [getattr(config, field.name) for field in dataclasses.fields(config)]
    nested = [part for part in nested if dataclasses.is_dataclass(part)]
    return [part for part in nested or [config] if hasattr(part, "tile_size")]


def chosen(dsl, kernel, shape, lens, gpu, heuristics):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a GPU without logs is said once
        return family(dsl).named(kernel, shape, BatchStats.of(lens), gpu, heuristics).config


@pytest.mark.parametrize("number", range(len(BATCHES)), ids=list(BATCHES))
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_choice_is_legal(dsl, kernel, number) -> None:
    """The default of every GPU and head with each batch, and of some GPUs what was learned; the dtype in turn, so that
    two batches meet each of the three."""
    lens = list(BATCHES.values())[number]
    some = {*GPUS[:: len(GPUS) // 4], gpus.resolve("mi300"), H200}
    for turn, (gpu, (head, value)) in enumerate(itertools.product(GPUS, HEADS)):
        dtype = DTYPES[(turn + number) % len(DTYPES)]
        shape = AttentionShape(32, 8, head, 16, dtype, value)
        for heuristics in ("default", "learned")[: 1 + (gpu in some)]:
            ensure_legal(dsl, kernel, chosen(dsl, kernel, shape, lens, gpu, heuristics), shape, gpu)


def ensure_legal(dsl, kernel, config, shape, gpu) -> None:
    assert isinstance(config, dsl.module(kernel).Config)
    for part in parts(config):
        assert getattr(part, "num_warps", getattr(config, "num_warps", 4)) in (1, 2, 4, 8)
        assert part.tile_size == triton.next_power_of_2(part.tile_size) >= 16
        lanes = triton.next_power_of_2(shape.head_size) + triton.next_power_of_2(shape.value_size or shape.head_size)
        assert part.tile_size * lanes * shape.dtype.itemsize <= gpu.shared_bytes
        assert 1 <= getattr(part, "num_segments", 1) <= 128
        assert not getattr(part, "overlap", False) or gpu.tma


def test_all_that_a_portfolio_has_may_be_chosen(dsl) -> None:
    assert {kernel for kernel, _ in family(dsl).learned(H200).portfolio.rows} <= set(family(dsl).kernels)


@in_helion
@pytest.mark.parametrize("gpu", {gpu.arch: gpu for gpu in GPUS}.values(), ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("head", [64, 80, 256])
@pytest.mark.parametrize("kernel", ["q_block", "parallel_softmax"])
def test_a_space_is_wide_distinct_and_fits(dsl, kernel: str, head: int, gpu: gpus.Gpu) -> None:
    shape = AttentionShape(32, 8, head, 16, torch.bfloat16)
    configs = list(dsl.module(kernel).space(shape, gpu))
    assert len(set(configs)) == len(configs) >= 40
    assert all(dsl.fits(config, shape, gpu) for config in configs)
    assert any(config.gather == "page" for config in configs) == (head != 80)


@pytest.mark.parametrize(("head", "value"), HEADS)
def test_a_static_grid_has_one_config_for_every_batch(dsl, head: int, value: int | None) -> None:
    for gpu in GPUS:
        for dtype in (torch.bfloat16, torch.float32):
            shape = AttentionShape(32, 8, head, 16, dtype, value)
            default = dsl.module("static_grid").default
            (config,) = {default(shape, BatchStats.of(lens), gpu) for lens in BATCHES.values()}
            assert config.programs % gpu.units == 0


@pytest.mark.slow_in_helion
@pytest.mark.parametrize("case", [case for case in CASES if case.name in NAMED], ids=lambda case: case.name)
def test_what_a_portfolio_has_is_right(dsl, case) -> None:
    """Of the kernel that serves short queries every third config, in three segments."""
    rows = [part for kernel, part in family(dsl).learned(H200).portfolio.rows if kernel == "parallel_softmax"]
    plain = {"num_segments": 3} | ({"overlap": False} if dsl.name == "triton" else {})
    kernel = dsl.module("parallel_softmax")
    for part in rows[::3]:
        conform(kernel, case, dataclasses.replace(kernel.DEFAULT, **part | plain))


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if n % 3 == 0 else pytest.mark.slow) for n, case in enumerate(STORED)],
)
@pytest.mark.slow_in_helion
def test_what_is_chosen_for_decodes_over_8_bits_is_right(dsl, case) -> None:
    """Other cases of 8 bits tests/conformance has every day, by another config."""
    config = family(dsl).named("parallel_softmax", SHAPE, DECODES, H200, "learned").config
    plain = {"num_segments": 3} | ({"overlap": False} if dsl.name == "triton" else {})
    conform(dsl.module("parallel_softmax"), case, dataclasses.replace(config, **plain))
