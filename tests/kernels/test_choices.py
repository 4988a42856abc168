"""What is chosen, and the spaces, are legal for every GPU of the table, head size and batch; no GPU needed. A call runs
what is chosen for a GPU that is not here; and what choices have to be whatever was learned."""

import dataclasses
import itertools
import os
import warnings

import pytest
import torch
import triton

from calls import assert_right, exact, tensors
from common import gpus
from common.cases.batch import make_batch
from common.cases.named import CASES
from common.choice import columns
from common.choice.legal import fits_one
from common.gpus import resolve
from common.serving.call import PagedAttention
from common.serving.choice import NO_GPU
from common.serving.grid import decided_by
from common.spec import AttentionShape, Features
from common.spec.metadata import EVERY_KEY, BatchStats
from compare.competitors import registry
from dsl_helion import auto as helion_auto
from dsl_triton import auto
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


def test_a_static_grid_copies_keys_only_where_a_program_holds_their_tiles(dsl) -> None:
    """Its products hold a tile more than those through pages: K of 256 float32 lanes beside V of 128 fits these."""
    copying, default = 0, dsl.module("static_grid").default
    for gpu, (head, value), dtype in itertools.product(GPUS, [*HEADS, (256, 128), (320, 64)], DTYPES):
        shape = AttentionShape(32, 8, head, 16, dtype, value)
        part = default(shape, BatchStats.of([(2048, 2048)]), gpu).copied
        copying += part.least_tokens > 0
        sizes = part.block_m, part.tile_size, part.num_warps, part.num_stages
        assert not part.least_tokens or fits_one(*sizes, shape, gpu, dense=True), (gpu.name, shape)
    assert copying >= 50


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


BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


@pytest.mark.parametrize(("seqs", "kv_heads", "keys"), [(17, 4, 4582), (13, 1, 2299), (11, 8, 3000), (5, 4, 9000)])
def test_segments_of_few_decodes_never_begin_a_second_wave(seqs, kv_heads, keys):
    """17 decodes of 4 KV heads in 16 segments were 1,088 programs on 1,056 slots: 37.3 us, in 15 34.2."""
    shape = AttentionShape(4 * kv_heads, kv_heads, 128, 16, BF16, kv_dtype=FP8)
    stats = decided_by(BatchStats.of([(1, keys)] * seqs))
    choice = auto.FAMILY.choose(shape, stats, resolve("h200"), frozenset())
    batch = columns.batches([(shape, stats, resolve("h200"))])
    made = columns.configs([(choice.kernel, dataclasses.asdict(choice.config))], "triton")
    _, short = columns.launches(batch, made)
    assert choice.config.num_segments > 1 and short.waves[0] == 1


@pytest.mark.parametrize("lanes", [16, 64, 80, 96, 128, 192, 256, 512])
@pytest.mark.parametrize("lens", [[(1, 9)], [(1, 900)] * 3, [(4, 3000)], [(20, 600)], [(600, 600), (1, 5)], [(40, 40)]])
def test_a_machine_without_a_gpu_gets_a_choice_for_every_size_of_head(lanes, lens):
    shape, stats = AttentionShape(2, 1, lanes, 16, BF16), decided_by(BatchStats.of(lens))
    assert auto.FAMILY.choose(shape, stats, None, frozenset()).provenance == NO_GPU


@pytest.mark.parametrize("lens", [[(40, 4000)] * 300, [(186, 186)] * 300, [(20, 900), (1, 9000)]])
@pytest.mark.parametrize("family", [auto.FAMILY, helion_auto.FAMILY], ids=["triton", "helion"])
def test_a_machine_without_a_gpu_gets_a_choice_for_many_chunks_in_large_pages(family, lens):
    shape = AttentionShape(8, 1, 80, 64, BF16)
    assert family.choose(shape, decided_by(BatchStats.of(lens)), None, frozenset()).provenance == NO_GPU


def interpretable(config):
    """A config without what no CPU does, launches that overlap, and with a grid of few programs."""
    if not dataclasses.is_dataclass(config):
        return config
    plain = {field.name: interpretable(getattr(config, field.name)) for field in dataclasses.fields(config)}
    few = {"overlap": False, "copy_programs": 4}
    return dataclasses.replace(config, **plain | {field: few[field] for field in few if field in plain})


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="compiled kernels: tests/gpu")
def test_the_public_call_runs_what_is_chosen(monkeypatch):
    """As if the H200 were here: decodes, drafts and many short prompts, of few heads."""
    gpu, auto, met = resolve("h200"), registry.load("triton/auto"), set()
    choose = auto.FAMILY.choose

    def chosen(shape, stats, _, needs=frozenset(), heuristics="tree", sees=EVERY_KEY):
        choice = choose(shape, stats, gpu, needs, heuristics, sees)
        met.add(choice.kernel)
        return dataclasses.replace(choice, config=interpretable(choice.config))

    monkeypatch.setattr(auto.FAMILY, "choose", chosen)
    call, shape = PagedAttention(auto.FAMILY), AttentionShape(2, 1, 128, 16, torch.bfloat16)
    many = [(20, 20)] * 33
    for lens in ([(1, 300)] * 9, [(20, 20)] * 2 + [(1, 40)], [(60, 60), (33, 90)], [(17, 40)] * 3, many):
        batch = make_batch(lens, shape)
        out = call(**tensors(batch), **exact(batch))
        assert_right(out, None, batch, Features(), auto.CONTRACT)
    assert met
