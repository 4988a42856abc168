"""A canary for each private hook of Triton and of Helion: what a release that renames one breaks first."""

import dataclasses
import inspect

import pytest
import torch
from compiled_child import compiled

from common.absent import gpu_target
from common.gpus import resolve
from compare.static import jit
from compare.static.compiled import Argument

pytestmark = pytest.mark.lane


@pytest.fixture(scope="module")
def probe():
    return compiled(["gfx942"])["gfx942"]


def test_the_jit_function_that_ends_every_launch_is_still_the_one():
    from triton.runtime.jit import JITFunction

    names = list(inspect.signature(JITFunction.run).parameters)
    assert names == ["self", "args", "grid", "warmup", "kwargs"]


def test_a_launch_is_intercepted_and_the_hook_put_back():
    from triton.runtime.jit import JITFunction

    before, seen = JITFunction.run, []
    with jit.intercepted(seen.append):
        JITFunction.run(dataclasses.make_dataclass("F", ["params"])([]), 1, 2, grid=(3, 4), warmup=False, num_warps=8)
    assert JITFunction.run is before
    assert (seen[0].grid, seen[0].args, seen[0].kwargs) == ((3, 4), (1, 2), {"num_warps": 8})


def test_the_binder_is_still_there_with_its_parameters():
    from triton.runtime.jit import JITFunction, create_function_from_signature

    assert list(inspect.signature(create_function_from_signature).parameters) == ["sig", "kparams", "backend"]
    wanted = ["self", "backend", "kwargs", "bound_args", "specialization", "options"]
    assert list(inspect.signature(JITFunction._pack_args).parameters) == wanted


def test_arguments_are_leaves_in_launch_order_with_the_binders_types(probe):
    """Three pointers, the scale, strides of Q and K; a stride of 1 is a constant and None is gone."""
    assert [one.name for one in probe.arguments[:4]] == ["q_ptr", "k_ptr", "out_ptr", "scale"]
    assert [one.type for one in probe.arguments[:4]] == ["*bf16", "*bf16", "*bf16", "fp32"]
    strides = [one for one in probe.arguments[4:]]
    assert {one.name.split(".")[0] for one in strides} == {"q_strides", "k_strides"}
    assert all(one.type in ("i32", "i64") and not one.is_pointer for one in strides)


def test_alignment_and_the_2_gib_of_a_pointer_reach_the_code(probe):
    """What a signature made by hand misses: 16-byte loads through a buffer's descriptor."""
    assert "tt.divisibility = 16" in probe.ttgir and "tt.pointer_range = 32" in probe.ttgir
    assert "buffer_load_dwordx4" in probe.assembly


def test_a_compiled_launch_is_plain_values(probe):
    assert probe.arch == "gfx942" and probe.warp_size == 64 and probe.is_amd and len(probe.grid) == 3
    assert len(probe.sha256) == 64 and probe.code.startswith(b"\x7fELF")
    assert "target" not in probe.metadata and probe.metadata["num_warps"] == probe.num_warps


@pytest.mark.parametrize(("arch", "lanes"), [("gfx942", 64), ("gfx90a", 64), ("gfx1100", 32), ("sm_120", 32)])
def test_lanes_of_a_wave(arch, lanes):
    assert gpu_target(arch).warp_size == lanes


def test_a_tuple_is_opened_by_the_kinds_that_the_binder_gives():
    tensor = torch.empty(1)
    leaves = jit._arguments("f", (None, tensor, (3, 1)), ("constexpr", "*fp32", ("i32", "constexpr")))
    assert leaves == [Argument("f.1", "*fp32", tensor), Argument("f.2.0", "i32", 3)]


@pytest.mark.parametrize("gpu", ["mi300", "rx7900xtx", "l40s", "rtx5090"])
def test_every_hook_of_helion_exists_and_is_put_back(gpu):
    compat = pytest.importorskip("helion._compat")
    import helion.runtime

    from common.absent import helion_as

    before = compat._is_hip, helion.runtime.get_num_sm
    with helion_as(resolve(gpu)):
        assert compat._is_hip() == (resolve(gpu).vendor == "amd")
        assert helion.runtime.get_num_sm(None) == resolve(gpu).units
    assert (compat._is_hip, helion.runtime.get_num_sm) == before
