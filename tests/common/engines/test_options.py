"""What a person sets for an adapter, and what is said where it is wrong."""

import sys

import pytest

import stand_in_vllm
from common.engines import vllm
from common.engines.options import Options, kernel_of
from common.spec import SpecError


@pytest.mark.parametrize(
    ("kernel_id", "name"),
    [("triton/auto", None), ("triton/native.auto", None), ("triton/static_grid", "static_grid")],
)
def test_a_kernel_is_found_by_its_id(kernel_id, name):
    found = kernel_of(kernel_id)
    assert found.name == name and "causal" in found.supports and found.module.plan_paged_attention


@pytest.mark.parametrize("kernel_id", [
    "auto", "cuda/auto", "triton/", "triton/none", "triton/heuristics", "", "triton/cache", "triton/../x",
    "triton/.auto", "triton/auto.", "triton/x y",
])  # fmt: skip
def test_another_id_is_refused_with_the_variable_and_what_is_allowed(kernel_id):
    with pytest.raises(SpecError, match=r"DIPTYCH_KERNEL: found .*, allowed "):
        kernel_of(kernel_id)


@pytest.mark.parametrize(
    "environment",
    [
        {"DIPTYCH_TYPICAL_SEQ_LEN": "0"},
        {"DIPTYCH_TYPICAL_SEQ_LEN": "long"},
        {"DIPTYCH_WARM": "some"},
        {"DIPTYCH_WRITER": "vllm"},
        {"DIPTYCH_KERNEL": "triton/native.auto", "DIPTYCH_PORTABLE": "1"},
    ],
    ids=lambda environment: next(iter(environment)),
)
def test_a_wrong_variable_is_named(environment):
    with pytest.raises(SpecError, match=next(iter(environment))):
        Options.of(environment)


def test_the_plugin_registers_ours_and_says_once_where_a_version_was_never_tried(monkeypatch):
    for name, module in stand_in_vllm.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(vllm.metadata, "version", lambda name: "0.99.0")
    with pytest.warns(UserWarning, match=r"0\.99\.0 was never tried"):
        vllm.register()
    assert stand_in_vllm.registered == {
        stand_in_vllm.AttentionBackendEnum.CUSTOM: "common.engines.vllm_backend.DiptychBackend"
    }
