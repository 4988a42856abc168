"""Adapters of Triton kernels in others' wheels: each gives its library what it asks, over stand-ins written here."""

import dataclasses
import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

import fake_libraries
from common.cases.named import BY_NAME
from common.spec import UnsupportedFeature
from fake_libraries import HERE, keeps
from stand_in_peers import dense

STAND_IN = """
from stand_in_peers import {names}


class _Kernel:
    def __getitem__(self, grid):
        return lambda *given: None


get_num_kv_splits_triton = _Kernel()
"""


SGLANG = "sglang/kernels/ops/attention/{}.py"
LMDEPLOY = "lmdeploy/pytorch/kernels/cuda/{}.py"
FILES = {  # adapter -> the files that it loads, and which of the functions above each has
    "sglang": {
        SGLANG.format("score_mod"): "dense",
        SGLANG.format("decode_attention"): "decode_attention_fwd",
        SGLANG.format("extend_attention"): "extend_attention_fwd_unified",
        SGLANG.format("metadata"): "dense",
    },
    "lmdeploy": {
        LMDEPLOY.format("turbo_quant"): "dense",
        LMDEPLOY.format("pagedattention"): "flash_attn_with_kvcache",
        LMDEPLOY.format("flashattention"): "flash_attn_varlen_func",
        LMDEPLOY.format("flatten_kv_cache"): "flatten_kv_cache",
    },
    "aiter_decode": {
        "aiter/ops/triton/_triton_kernels/pa_decode.py": "dense",
        "aiter/ops/triton/pa_decode.py": "paged_attention_decode",
    },
    "conch": {"conch/ops/attention/varlen_attention.py": "varlen_attention"},
    "conch_decode": {"conch/ops/attention/paged_attention.py": "paged_attention"},
}


@pytest.fixture
def peer(monkeypatch, tmp_path):
    """A function: the adapter over files written here."""

    def made(name):
        for path, names in FILES[name].items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(STAND_IN.format(names=names))
        package = next(iter(FILES[name])).split("/")[0]
        monkeypatch.syspath_prepend(str(tmp_path))
        held = [one for one in sys.modules if one.split(".")[0] == package]
        fake_libraries.forget(monkeypatch, HERE + name, *held)
        importlib.invalidate_caches()
        return importlib.import_module(HERE + name)

    return made


@pytest.mark.parametrize(
    ("name", "case"),
    [("sglang", case) for case in ("query-15-16-17", "all-decode", "window-page-plus-1", "sinks-with-window",
                                   "softcap-15", "non-causal", "cache-interleaved", "padded-tokens")]
    + [("lmdeploy", case) for case in ("query-15-16-17", "all-decode", "window-page-plus-1", "sinks-with-window",
                                       "softcap-15", "non-causal", "cache-interleaved")]
    + [("conch", "query-15-16-17"), ("conch", "softcap-15"), ("conch", "non-causal"), ("conch_decode", "all-decode"),
       ("aiter_decode", "all-decode")],
)  # fmt: skip
def test_a_library_is_given_what_it_asks(peer, monkeypatch, name, case):
    kernel = peer(name)
    if name == "aiter_decode":  # it has no fp32
        monkeypatch.setitem(BY_NAME, case, dataclasses.replace(BY_NAME[case], dtype=torch.float16))
    keeps(kernel, case)


@pytest.mark.parametrize(
    ("names", "case", "why"),
    [(("conch_decode", "aiter_decode"), "query-15-16-17", "query lengths other than 1"),
     (("lmdeploy", "sglang"), "window-1", "own key")],  # they count the keys before the query's
    ids=["decodes", "windows"],
)  # fmt: skip
def test_what_a_library_lacks_is_refused(peer, names, case, why):
    for name in names:
        with pytest.raises(UnsupportedFeature, match=why):
            keeps(peer(name), case)


def test_nothing_of_a_package_stays_behind(peer):
    peer("sglang")
    assert not [name for name in sys.modules if name.split(".")[0] == "sglang"]


def test_xformers_is_given_pages_and_lengths(monkeypatch):
    class Operator:
        @staticmethod
        def apply(asked, needs_gradient):
            bias, (keys, values) = asked.attn_bias, (one[0, :, :, 0] for one in (asked.key, asked.value))
            query = asked.query[0].flatten(1, 2)
            out, at = torch.empty_like(query), 0
            for i, (queries, count) in enumerate(zip(*bias.lens, strict=True)):
                slots = (bias.table[i, :, None].long() * bias.page + torch.arange(bias.page)).flatten()[:count]
                rows = slice(at, at := at + queries)
                out[rows] = dense(query[rows], keys[slots], values[slots], asked.scale)
            return out[None], None

    def from_seqlens(queries, keys, table, page, device):
        return SimpleNamespace(lens=(queries, keys), table=table, page=page)

    inputs = lambda q, k, v, attn_bias, scale: SimpleNamespace(  # noqa: E731
        query=q, key=k, value=v, attn_bias=attn_bias, scale=scale
    )
    kind = SimpleNamespace(from_seqlens=from_seqlens)
    fmha = ModuleType("xformers.ops.fmha")
    fmha.attn_bias = SimpleNamespace(PagedBlockDiagonalCausalWithOffsetPaddedKeysMask=kind)
    fmha.triton_splitk = SimpleNamespace(FwOp=Operator, Inputs=inputs)
    for name in ("xformers", "xformers.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "xformers.ops.fmha", fmha)
    fake_libraries.forget(monkeypatch, HERE + "xformers_splitk")
    kernel = importlib.import_module(HERE + "xformers_splitk")
    keeps(kernel, "all-decode")
    with pytest.raises(UnsupportedFeature, match="query lengths 15 to 17"):
        keeps(kernel, "query-15-16-17")
