"""What a person sets for an adapter, and what is said where it is wrong."""

import sys
from pathlib import Path

import pytest
import torch

import children
import stand_in_vllm
from common.engines import options, vllm
from common.engines.options import Options, kernel_of
from common.serving import pack
from common.serving.whole import triton_cache
from common.spec import SpecError


@pytest.mark.parametrize("value", [None, "0"])
def test_without_a_gpu_what_comes_too_late_to_be_interpreted_is_refused(monkeypatch, value):
    """A launch would end in Triton's "0 active drivers"."""
    import triton  # noqa: F401

    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if value:
        monkeypatch.setenv("TRITON_INTERPRET", value)
    with pytest.raises(SpecError, match=r"TRITON_INTERPRET: found .*no GPU is here.*set before triton is imported"):
        kernel_of("triton/auto")


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
        {"DIPTYCH_TYPICAL_SEQ_LEN": "9" * 30},
        {"DIPTYCH_MEASURE": "-1"},
        {"DIPTYCH_CHILDREN": ""},
        {"DIPTYCH_CHILDREN": "257"},
        {"DIPTYCH_PORTABLE": "no"},  # the native kernel's own check knows 1 alone
        {"DIPTYCH_WARM": "some"},
        {"DIPTYCH_WRITER": "vllm"},
        {"DIPTYCH_KERNEL": "triton/native.auto", "DIPTYCH_PORTABLE": "1"},
    ],
    ids=lambda environment: next(iter(environment)),
)
def test_a_wrong_variable_is_named(environment):
    with pytest.raises(SpecError, match=next(iter(environment))):
        Options.of(environment)


def test_a_misspelt_variable_is_named(caplog):
    Options.of({"DIPTYCH_KERNELS": "triton/auto", "DIPTYCH_CACHE": "here"})
    assert "found DIPTYCH_KERNELS, which nothing reads, allowed DIPTYCH_KERNEL" in caplog.text
    assert "DIPTYCH_CACHE" not in caplog.text


def test_the_plugin_registers_ours_and_says_once_where_a_version_was_never_tried(monkeypatch):
    for name, module in stand_in_vllm.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(vllm.metadata, "version", lambda name: "0.99.0")
    with pytest.warns(UserWarning, match=r"0\.99\.0 was never tried"):
        vllm.register()
    assert stand_in_vllm.registered == {
        stand_in_vllm.AttentionBackendEnum.CUSTOM: "common.engines.vllm_backend.DiptychBackend"
    }


_BF16 = """
import torch
from common.engines.options import kernel_of

draw = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(1, 20, heads, 32, generator=draw).bfloat16() for heads in (4, 2, 2))
pages = [torch.zeros(2, 16, 2, 32).bfloat16() for _ in range(2)]
for cache, rows in zip(pages, (k, v)):
    cache.flatten(0, 1)[:20] = rows[0]
table, starts, lens = (torch.tensor(one, dtype=torch.int32) for one in ([[0, 1]], [0, 20], [20]))
out = kernel_of("KERNEL").module.paged_attention(q[0], *pages, table, starts, lens, max_query_len=20, max_seq_len=20)
given = (one.float().transpose(1, 2) for one in (q, k, v))
wanted = torch.nn.functional.scaled_dot_product_attention(*given, is_causal=True, enable_gqa=True)
print(float((out.float() - wanted[0].transpose(0, 1)).abs().max()))
"""


@pytest.mark.slow  # every day one meets a process that has to turn the interpreter on as well
@pytest.mark.parametrize("kernel", ["triton/auto", "helion/auto"])
def test_an_adapter_of_an_interpreted_process_repairs_the_interpreter_itself(kernel):
    """A process of its own: here the tests have repaired it."""
    environment = children.compiling(Path(__file__).resolve().parents[3], TRITON_INTERPRET="1")
    assert children.answer(["-c", _BF16.replace("KERNEL", kernel)], environment) < 0.03


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here: nothing is interpreted")
def test_an_adapter_of_a_process_without_a_gpu_turns_the_interpreter_on():
    environment = children.compiling(Path(__file__).resolve().parents[3])
    environment.pop("TRITON_INTERPRET", None)
    assert children.answer(["-c", _BF16.replace("KERNEL", "triton/auto")], environment) < 0.03


def test_a_file_of_compiled_code_is_for_a_gpu_and_put_where_triton_looks(monkeypatch, tmp_path):
    options = Options.of({"DIPTYCH_PACK": str(tmp_path / "a.pack")})
    with pytest.raises(SpecError, match="a GPU: code is compiled for one"):
        options.unpack(torch.device("cpu"))
    asked = []
    monkeypatch.setattr(pack, "made_with", lambda device: {"gpu": device.type})
    monkeypatch.setattr(pack, "unpack", lambda *args: asked.append(args) or 3)
    options.unpack(torch.device("cuda"))
    Options.of({}).unpack(torch.device("cuda"))
    assert asked == [(tmp_path / "a.pack", triton_cache(), {"gpu": "cuda"})]


def test_an_engine_imports_helion_without_what_only_its_searches_need(monkeypatch):
    """scikit-learn and scipy are half of that import."""
    seen = []
    monkeypatch.setattr(options, "import_module", lambda name: seen.append(sys.modules.get("sklearn", 0)) or sys)
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    kernel_of("triton/auto")
    assert seen == [None] and "sklearn" not in sys.modules
