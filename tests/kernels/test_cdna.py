"""What a Config says to AMD's data-centre GPUs (common.spec.Cdna): how tiles are dealt and read, no other result."""

import dataclasses
from typing import Any

import pytest
import torch

from calls import judged
from common import gpus
from common.absent import helion_as
from common.cases.batch import make_batch
from common.gpus import resolve
from common.serving.cdna import settled
from common.spec import AttentionShape, Features, cdna
from common.spec.metadata import BatchStats
from common.spec.toolchain import Toolchain
from compare.tune.space import Space, with_levers
from dsl_helion import binding
from dsl_helion.binding import loop_order
from dsl_triton import adjustable_tile, q_block, unpaged
from dsls import in_helion, in_triton, slow_in_helion

SHAPE = AttentionShape(6, 3, 32, 16, torch.float32)
LENS = [(17, 40), (1, 33), (20, 20), (3, 21)]
LEVERS = {"transposed_keys": True, "stream": True, "xcds": 4}  # Helion refuses the last two for a CPU


def changed(config: Any, **levers: Any) -> Any:
    """The config and its parts with these levers."""
    parts = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    found = {name: changed(part, **levers) for name, part in parts.items() if dataclasses.is_dataclass(part)}
    return dataclasses.replace(config, **found, **{name: v for name, v in levers.items() if name in parts})


@pytest.mark.parametrize(
    "name",
    [
        slow_in_helion(name)
        for name in ("q_block", "parallel_softmax", "split", "adjustable_tile", "unpaged", "static_grid")
    ],
)
def test_levers_change_no_result(dsl, name):
    module = dsl.module(name)
    levers = LEVERS if dsl.name == "triton" else {"transposed_keys": True}
    judged(module, make_batch(LENS, SHAPE), Features(), changed(module.DEFAULT, **levers))


@in_triton
@pytest.mark.parametrize("tile_size", [8, 16, 32])
def test_transposed_keys_by_runs(dsl, tile_size):
    """Runs inside a page, of a page, and of several."""
    module = dsl.module("adjustable_tile")
    prefill = module.Prefill(16, max(tile_size, 16), "run", transposed_keys=True)
    shape = dataclasses.replace(SHAPE, block_size=32 if tile_size == 8 else 16, head_size=24)
    judged(module, make_batch(LENS, shape), Features(), dataclasses.replace(module.DEFAULT, prefill=prefill))


@in_helion
@pytest.mark.slow_in_helion
@pytest.mark.parametrize("gather", ["page", "flat", "2idx"])
def test_transposed_keys_in_every_gather_form(dsl, gather):
    module = dsl.module("q_block")
    config = module.Config(tile_size=32, gather=gather, transposed_keys=True)
    judged(module, make_batch(LENS, SHAPE), Features(), config)


@in_triton
@pytest.mark.parametrize("new_kv", [False, True])
def test_tiles_without_descriptors(dsl, new_kv):
    """The last tile of the step's own K ends behind the last row."""
    module = dsl.module("unpaged")
    prefill = module.Prefill(tile_size=32, new_kv=new_kv, descriptors=False, transposed_keys=True)
    batch = make_batch([(17, 17), (20, 20)], SHAPE, new_kv=True)
    judged(module, batch, Features(), dataclasses.replace(module.DEFAULT, prefill=prefill))


@pytest.mark.parametrize("xcds", [1, 2, 8])
def test_every_head_and_block_has_one_program(xcds):
    """Five sequences of one token under seven heads: 35 programs, which no number of dies divides."""
    shape = AttentionShape(7, 7, 16, 16, torch.float32)
    judged(q_block, make_batch([(1, 20)] * 5, shape), Features(), q_block.Config(16, 16, xcds=xcds))


def test_a_launch_asks_amds_compiler_for_what_a_config_sets():
    assert q_block.Config().options() == {}
    asked = q_block.Config(matrix_instr=16, waves_per_eu=2).options()
    assert asked == {"matrix_instr_nonkdim": 16, "waves_per_eu": 2}


@pytest.mark.parametrize(("release", "expected"), [
    ((3, 6, 0), {"schedule_hint": "memory-bound-attention"}),
    ((3, 9, 0), {"llvm_fn_attrs": "amdgpu-sched-strategy=iterative-ilp"}),
])  # fmt: skip
def test_the_order_for_parallelism_is_asked_for_in_words_of_the_installed_triton(monkeypatch, release, expected):
    monkeypatch.setattr(cdna, "toolchain", lambda arch: Toolchain(release))
    assert cdna.scheduling(unpaged.Prefill(ilp=True)) == expected
    assert cdna.scheduling(unpaged.Prefill()) == {}


def test_the_installed_triton_knows_the_words():
    from triton.backends.amd.compiler import HIPOptions

    assert cdna.scheduling(unpaged.Prefill(ilp=True)).keys() <= HIPOptions.__dataclass_fields__.keys()


@in_helion
def test_helions_launch_asks_for_it_too(dsl, monkeypatch):
    """Helion has no setting for it: the launcher adds the option."""
    asked = []
    monkeypatch.setattr(cdna, "toolchain", lambda arch: Toolchain((3, 6, 0)))
    monkeypatch.setattr(binding, "default_launcher", lambda *args, **options: asked.append(options))
    binding.launcher(unpaged.Prefill(ilp=True))["_launcher"]("function", (1,), num_warps=4)
    assert asked == [{"num_warps": 4, "schedule_hint": "memory-bound-attention"}]
    assert binding.launcher(unpaged.Prefill()) == {}


def test_heads_are_the_slow_axis_of_helions_grid_on_several_dies():
    assert loop_order(q_block.Config(), 3) == [2, 1, 0]
    assert loop_order(q_block.Config(xcds=8), 3) == [1, 0, 2]


PROMPT, DECODES = BatchStats.of([(512, 512)]), BatchStats.of([(1, 512)] * 4)


@pytest.mark.parametrize(("gpu", "heads", "stats", "expected"), [
    ("h200", 32, PROMPT, (False, False, 1)),
    ("mi300", 8, PROMPT, (True, False, 1)),
    ("mi300", 32, PROMPT, (True, False, 8)),
    ("mi300", 32, DECODES, (True, True, 1)),
    ("mi250", 32, PROMPT, (True, False, 1)),
    ("mi350", 8, PROMPT, (False, False, 1)),
])  # fmt: skip
def test_levers_follow_from_the_gpu_and_the_batch(gpu, heads, stats, expected):
    shape = AttentionShape(heads, heads, 128, 16, torch.bfloat16)
    found = settled(q_block.Config(), shape, stats, resolve(gpu))
    assert (found.transposed_keys, found.stream, found.xcds) == expected


@pytest.mark.parametrize(("tile", "stages", "head_size", "expected"), [
    (16, 2, 128, 3),
    (16, 1, 128, 1),
    (16, 4, 128, 3),
    (32, 5, 128, 3),
    (32, 2, 128, 2),  # two pages of 16
    (16, 2, 256, 2),  # tiles of 16 KiB
])  # fmt: skip
def test_a_page_id_is_loaded_a_tile_ahead(tile, stages, head_size, expected):
    shape = AttentionShape(8, 8, head_size, 16, torch.bfloat16)
    found = settled(q_block.Config(64, tile, 2, stages), shape, PROMPT, resolve("mi300"))
    assert (found.tile_size, found.num_stages) == (tile, expected)
    assert settled(q_block.Config(64, tile, 2, stages), shape, PROMPT, resolve("h200")).num_stages == stages


@pytest.mark.parametrize(("gpu", "expected"), [("mi300", True), ("mi350", False), ("h200", False)])
def test_tiles_of_the_copy_are_loaded_in_the_order_for_parallelism(dsl, gpu, expected):
    found = settled(dsl.module("unpaged").DEFAULT, SHAPE, PROMPT, resolve(gpu))
    assert (found.prefill.ilp, found.prefill.num_stages, found.decode.ilp) == (expected, 2, False)


@pytest.mark.parametrize(("gpu", "expected"), [("mi300", True), ("mi350", True), ("h200", False)])
def test_prompts_through_pages_are_loaded_in_that_order_and_decodes_are_not(gpu, expected):
    found = settled(adjustable_tile.DEFAULT, SHAPE, PROMPT, resolve(gpu))
    assert (found.prefill.ilp, found.decode.ilp) == (expected, False)


def test_page_ids_of_two_pages_are_loaded_a_tile_ahead_where_lds_has_room():
    shape = AttentionShape(8, 8, 128, 16, torch.bfloat16)
    asked = q_block.Config(64, 32, 2, 2)
    assert settled(asked, shape, PROMPT, resolve("mi300")).num_stages == 2
    assert settled(asked, shape, PROMPT, resolve("mi350")).num_stages == 3


@pytest.mark.parametrize(("head_size", "expected"), [(128, (128, 4)), (192, (64, 2)), (256, (64, 2)), (512, (128, 4))])
def test_rows_of_wide_heads_leave_room_for_two_programs(head_size, expected):
    """Of 512 lanes, parts of 256 ask for 128 rows."""
    shape = AttentionShape(8, 8, head_size, 16, torch.bfloat16)
    found = settled(unpaged.Prefill(block_m=128), shape, PROMPT, resolve("mi355"))
    assert (found.block_m, found.num_warps) == expected


def test_a_tile_of_the_copy_leaves_registers_for_two_programs():
    shape = AttentionShape(8, 8, 128, 16, torch.bfloat16)
    assert settled(unpaged.Prefill(128, 64), shape, PROMPT, resolve("mi355")).tile_size == 32


def test_tiles_of_several_pages_are_read_by_keys():
    prefill = adjustable_tile.Prefill(tile_size=32, gather="run")
    for page, expected in ((16, "key"), (32, "run")):
        shape = dataclasses.replace(SHAPE, block_size=page)
        assert settled(prefill, shape, PROMPT, resolve("mi350")).gather == expected


@pytest.mark.parametrize(("rows", "expected"), [(16, (1, 32)), (64, (2, 32)), (128, (2, 32))])
def test_a_program_of_few_waves_has_small_tiles(rows, expected):
    shape = AttentionShape(8, 8, 128, 16, torch.bfloat16)
    found = settled(q_block.Config(rows, 64, 8), shape, PROMPT, resolve("mi300"))
    assert (found.num_warps, found.tile_size) == expected


def test_kernels_choose_warps_as_on_the_gpu_that_is_compiled_for():
    cpu = torch.device("cpu")
    with helion_as(resolve("mi300")):
        assert gpus.warp_size(cpu) == 64
    assert gpus.warp_size(cpu) == 32


def test_the_decode_of_a_mixed_batch_streams(dsl):
    module = dsl.module("adjustable_tile")
    found = settled(module.DEFAULT, SHAPE, PROMPT, resolve("mi300"))
    assert found.decode.stream and not found.prefill.stream


@pytest.mark.parametrize("rung", ("q_block", "parallel_softmax", "split", "adjustable_tile", "unpaged", "static_grid"))
def test_a_space_has_the_levers_of_a_gpu_that_has_them(dsl, rung):
    """Of a rung's first config, in each of its parts; a GPU of NVIDIA's has none."""
    shape = AttentionShape(8, 2, 128, 16, torch.bfloat16)
    amd, nvidia = (
        Space(with_levers(dsl.module(rung).space(shape, gpu), gpu)) for gpu in map(resolve, ("mi300", "h200"))
    )
    waves = [name for name in amd.axes if name.endswith("waves_per_eu")]
    assert waves and all(amd.axes[name] == [0, 1, 2, 3, 4] for name in waves)
    assert all(len(nvidia.axes[name]) == 1 for name in waves)
    assert not [part for part in nvidia.parts if part.endswith("levers")]
