"""Baselines from outside: each is unavailable with its reason, or keeps the spec and gives its library what it asks."""

import dataclasses
import importlib
import sys
from types import ModuleType

import pytest
import torch
from torch.nn.attention import SDPBackend

import fake_libraries
from common.cases.named import BY_NAME, build
from common.cases.trial import Trial
from common.spec import UnsupportedFeature
from common.spec.kernel import Capacity
from compare.competitors import registry
from fake_libraries import HERE, keeps

ALWAYS_HERE = ("/sdpa", "/sdpa_dense", "/flex")
ABSENT = [name for name in registry.BASELINES + registry.ON_REQUEST if not name.endswith(ALWAYS_HERE)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize("name", ABSENT)
def test_a_baseline_that_cannot_run_says_why(name):
    if name == "baseline/vllm_triton" and importlib.util.find_spec("vllm_triton_025"):
        pytest.skip("vLLM's files are on the path")
    with pytest.raises(registry.Unavailable, match=r"GPU|vllm|no package|No module named"):
        registry.load(name)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(
    "case",
    ["query-15-16-17", "all-sequences-empty", "one-empty-sequence", "page-24", "head-80", "ratio-5", "softcap-15",
     "window-page-plus-1", "non-causal-with-window", "cache-interleaved", "no-tokens-but-padding"],
)  # fmt: skip
def test_flex_attention_keeps_the_spec(case):
    keeps(registry.load("baseline/flex"), case)


@pytest.fixture
def vllm(monkeypatch, tmp_path):
    """The adapter, over a bare package of two files that this test wrote."""
    fake_libraries.write_vllm(tmp_path, "vllm_triton_025")
    monkeypatch.syspath_prepend(str(tmp_path))
    fake_libraries.forget(monkeypatch, HERE + "vllm_triton", HERE + "vllm_files", "vllm_triton_025", "vllm_triton_033")
    return importlib.import_module(HERE + "vllm_triton")


@pytest.mark.parametrize(
    "case", ["query-15-16-17", "sinks-with-window", "softcap-15", "non-causal", "no-tokens", "padded-tokens", "head-80"]
)
def test_vllm_is_given_what_its_backend_gives(vllm, case):
    keeps(vllm, case)


def test_vllm_cuts_decodes_into_16_segments_below_its_threshold(vllm):
    batch, features = build(BY_NAME["all-decode"])
    kv_heads, heads = batch.shape.num_kv_heads, batch.shape.num_query_heads
    scratch = vllm.workspace(batch.shape, Capacity.of(batch), vllm.DEFAULT)
    vllm.launch(batch, features, torch.empty_like(batch.query), vllm.DEFAULT, scratch)
    given = vllm._interface().calls[-1]
    assert (given["seq_threshold_3D"], given["num_par_softmax_segments"]) == (128 // kv_heads, 16)
    padded = 1 << (batch.shape.head_size - 1).bit_length()
    assert given["softmax_segm_output"].shape == (batch.num_tokens, heads, 16, padded)
    vllm.launch(batch, features, torch.empty_like(batch.query), vllm.Config(0), None)
    assert "seq_threshold_3D" not in vllm._interface().calls[-1]


def test_the_stand_ins_for_vllm_last_no_longer_than_the_import(vllm):
    assert not [name for name in sys.modules if name.split(".")[0] == "vllm"]
    assert vllm._interface().__name__ == "vllm_triton_025.triton_unified_attention"


def test_the_newer_of_two_bare_packages_is_taken(vllm, monkeypatch, tmp_path):
    fake_libraries.write_vllm(tmp_path, "vllm_triton_033")
    fake_libraries.forget(monkeypatch, HERE + "vllm_triton", HERE + "vllm_files")
    importlib.invalidate_caches()
    assert importlib.import_module(HERE + "vllm_files").find().__name__.startswith("vllm_triton_033")


def test_vllm_is_asked_for_heads_of_512_and_for_fp8(vllm):
    keeps(vllm, "head-512")
    trial = Trial.of(BY_NAME["fp8-one-scale"], lse=False)
    vllm.launch(trial.batch, trial.features, trial.out, vllm.Config(0), None)
    given = vllm._interface().calls[-1]
    assert given["k_descale"].shape == (trial.batch.num_seqs, trial.batch.shape.num_kv_heads)
    assert given["k_descale"].data_ptr() == trial.features.key_scale.data_ptr()
    with pytest.raises(UnsupportedFeature, match="one scale for each tensor"):
        keeps(vllm, "fp8-scales-of-heads")


@pytest.fixture
def fa3(monkeypatch):
    """The adapter over a stand-in of vLLM's build, whose calls it keeps; it refuses what that build does."""
    fake_libraries.pretend_gpu(monkeypatch)
    package, module = ModuleType("vllm_fa3"), fake_libraries.flash_attn3()
    monkeypatch.setitem(sys.modules, "vllm_fa3", package)
    monkeypatch.setitem(sys.modules, "vllm_fa3.flash_attn_interface", module)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    fake_libraries.forget(monkeypatch, HERE + "flash_attn3")
    return importlib.import_module(HERE + "flash_attn3")


def run_fa3(fa3, case):
    trial = Trial.of(BY_NAME[case], lse=False)
    plan = fa3.prepare(trial.batch, trial.features, fa3.DEFAULT, None)
    fa3.launch(trial.batch, trial.features, trial.out, fa3.DEFAULT, plan)
    return trial, fa3._interface.calls[-1]


def test_flash_attn3_is_given_the_scales_of_fp8(fa3):
    trial, given = run_fa3(fa3, "fp8-query-fp16-out-scales")
    assert trial.judge(fa3.CONTRACT).ok
    size = trial.batch.num_seqs, trial.batch.shape.num_kv_heads
    assert [given[f"{x}_descale"].shape for x in "qkv"] == [size] * 3
    assert given["v_descale"].data_ptr() == trial.features.value_scale.data_ptr()
    trial, given = run_fa3(fa3, "query-15-16-17")
    assert trial.judge(fa3.CONTRACT).ok and not [name for name in given if name.endswith("descale")]


@pytest.mark.parametrize(("case", "words"), [("head-512", "at most 256"), ("fp8-one-scale", "have the same dtype")])
def test_flash_attn3_refuses_in_its_own_words(fa3, case, words):
    with pytest.raises(UnsupportedFeature, match=words):
        run_fa3(fa3, case)


def test_other_errors_of_a_library_are_no_refusals(fa3, monkeypatch):
    def fail(error):
        def call(*given, **named):
            raise error

        monkeypatch.setattr(fa3._interface, "flash_attn_varlen_func", call)

    fail(RuntimeError("CUDA error: an illegal memory access"))
    with pytest.raises(RuntimeError, match="illegal"):
        run_fa3(fa3, "fp8-query-fp16-out-scales")
    fail(RuntimeError("what a plain batch meets"))
    with pytest.raises(RuntimeError, match="plain batch"):
        run_fa3(fa3, "query-15-16-17")


@pytest.mark.parametrize("case", ["fp8-one-scale", "fp8-query-fp16-out-scales"])
def test_torch_refuses_8_bits_in_its_own_words(case):
    with pytest.raises(UnsupportedFeature, match=r"same dtype|not implemented"):
        keeps(registry.load("baseline/sdpa"), case)


def test_vllm_refuses_what_its_backend_refuses(vllm):
    for case in ("page-24", "page-544"):
        with pytest.raises(UnsupportedFeature, match=r"block_size|head_size"):
            keeps(vllm, case)


@pytest.mark.skipif(importlib.util.find_spec("vllm_triton_025") is None, reason="vLLM's two files are not on the path")
@pytest.mark.parametrize("case", ["query-15-16-17", "all-decode", "window-page-plus-1", "sinks-near-the-mass"])
def test_vllms_own_files_keep_the_spec(case):
    from common import interpreter

    kernel = registry.load("baseline/vllm_triton")
    interpreter.install()
    keeps(kernel, case)


@pytest.fixture
def flashinfer(monkeypatch):
    """A function: the module of one of FlashInfer's paths, over the stand-in."""
    fake_libraries.pretend_gpu(monkeypatch)
    monkeypatch.setitem(sys.modules, "flashinfer", fake_libraries.flashinfer())
    paths = [f"{HERE}flashinfer_{name}" for name in ("paths", "decode", "fa2", "fa3", "pod")]
    fake_libraries.forget(monkeypatch, *paths)
    return lambda name: importlib.import_module(f"{HERE}flashinfer_{name}")


@pytest.mark.parametrize("path", ["fa2", "fa3"])
@pytest.mark.parametrize("case", ["head-64", "head-128"])
def test_flashinfer_is_given_the_pages(flashinfer, path, case):
    keeps(flashinfer(path), case)
    with pytest.raises(UnsupportedFeature, match="head_size 80"):
        keeps(flashinfer(path), "head-80")


def widened(name, **changes):
    """A named case with a head size that FlashInfer has."""
    return dataclasses.replace(BY_NAME[name], head_size=64, dtype=torch.bfloat16, **changes)


@pytest.mark.parametrize(
    ("path", "case"),
    [
        ("decode", widened("all-decode")),
        ("decode", widened("table-tail-garbage", lens=((1, 45), (1, 20)))),
        ("pod", widened("prefill-and-decode-alternate")),
        ("pod", widened("decode-then-prefill")),
        ("fa2", widened("window-page-plus-1")),
        ("fa2", widened("softcap-15")),
        ("fa2", widened("non-causal")),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_each_path_of_flashinfer_keeps_the_spec(flashinfer, monkeypatch, path, case):
    monkeypatch.setitem(BY_NAME, case.name, case)
    keeps(flashinfer(path), case.name)


def test_flashinfers_decode_and_pod_refuse_other_batches(flashinfer, monkeypatch):
    for path, name in (("decode", "query-15-16-17"), ("pod", "all-decode")):
        monkeypatch.setitem(BY_NAME, name, widened(name))
        with pytest.raises(UnsupportedFeature, match=r"query lengths|one kind"):
            keeps(flashinfer(path), name)


@pytest.mark.parametrize("case", ["query-15-16-17", "window-page-plus-1", "softcap-15", "non-causal"])
def test_flag_gems_is_given_flash_attentions_arguments(monkeypatch, case):
    fake_libraries.pretend_gpu(monkeypatch)
    module = fake_libraries.varlen(ModuleType("flag_gems"), "flash_attn_varlen_func")
    monkeypatch.setitem(sys.modules, "flag_gems", module)
    fake_libraries.forget(monkeypatch, HERE + "flag_gems")
    monkeypatch.setitem(BY_NAME, case, dataclasses.replace(BY_NAME[case], dtype=torch.bfloat16))
    keeps(importlib.import_module(HERE + "flag_gems"), case)


@pytest.mark.parametrize("case", ["query-15-16-17", "sinks-with-window", "softcap-15", "padded-tokens"])
def test_aiter_is_given_what_vllms_backend_gives(monkeypatch, case):
    fake_libraries.pretend_gpu(monkeypatch, "amd")
    module = ModuleType("aiter.ops.triton.unified_attention")
    module.unified_attention = lambda **given: fake_libraries.vllm_attend(given)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("aiter", "aiter.ops", "aiter.ops.triton"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    fake_libraries.forget(monkeypatch, HERE + "aiter_triton")
    keeps(importlib.import_module(HERE + "aiter_triton"), case)


def test_a_backend_of_torch_that_refuses_a_batch_is_unsupported(monkeypatch):
    fake_libraries.pretend_gpu(monkeypatch)
    fake_libraries.forget(monkeypatch, HERE + "cudnn")
    cudnn = importlib.import_module(HERE + "cudnn")
    with pytest.raises(UnsupportedFeature, match="refuses"):
        keeps(cudnn, "query-15-16-17")  # on a CPU torch has no cuDNN kernel
    monkeypatch.setattr(cudnn, "BACKEND", SDPBackend.MATH)
    keeps(cudnn, "query-15-16-17")


def test_aiters_two_files_are_enough(monkeypatch, tmp_path):
    """They import what stands in for AITER while they are loaded, and nothing of it stays."""
    from compare.competitors.baselines import aiter_files

    folder = tmp_path / "aiter_triton"
    folder.mkdir()
    (folder / "kernels.py").write_text("from aiter.ops.triton.utils.types import e4m3_dtype\nkernel = e4m3_dtype\n")
    lines = (
        "from aiter.ops.triton.utils.device_info import get_num_sms",
        "from aiter.ops.triton._triton_kernels.attention.unified_attention import kernel",
        "def unified_attention(): return get_num_sms(), kernel",
    )
    (folder / "unified_attention.py").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert aiter_files.load().unified_attention() == (aiter_files.UNITS, torch.float8_e4m3fnuz)
    assert not [name for name in sys.modules if name.split(".")[0] == "aiter"]
    (folder / "kernels.py").unlink()
    with pytest.raises(ImportError, match=r"has no kernels\.py"):
        aiter_files.load()
