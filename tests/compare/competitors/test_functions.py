"""One interface for a stranger's kernel: what the kit takes is a kernel of a run, and the other way round."""

import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from common.cases.case import named
from common.cases.named import BY_NAME
from common.cases.trial import tried
from common.kit.isolate import Isolated
from common.kit.kit import Kit
from common.spec import SpecError, UnsupportedFeature
from compare.competitors import registry
from compare.run import command as run

TESTS = Path(__file__).parents[2]
SOURCE = """
    import torch
    from kit_callables import right

    SUPPORTS = {"causal", "lse", "sliding_window"}
    CONTRACT = {"dot": "tf32"}

    def writes(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale, out,
               sliding_window=None, lse=None):
        right(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, softmax_scale=softmax_scale,
              sliding_window=sliding_window, out=out, lse=lse)

    def returns(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale,
                sliding_window=None, return_lse=False):
        out, lse = torch.empty_like(query), torch.empty(query.shape[:2])
        writes(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, softmax_scale=softmax_scale,
               sliding_window=sliding_window, out=out, lse=lse)
        return (out, lse) if return_lse else out

    returns.LIMITS = {"head_size": [32, 128]}

    def zeros(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, out):
        out.zero_()

    zeros.SUPPORTS = {"causal"}
    zeros.CONTRACT = {}

    def odd(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, out): ...

    odd.CONTRACT = {"accumulator": "float8_e8m0fnu"}
"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A module at the top of a stranger's folder, for this process and its children."""
    (tmp_path / "strangers_kernel.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(
        "PYTHONPATH", ":".join(map(str, [tmp_path, TESTS / "common/kit", TESTS / "support", TESTS.parent]))
    )
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("strangers_kernel", None)


@pytest.mark.parametrize("name", ["writes", "returns"])
def test_a_function_is_a_kernel_of_the_protocol(outside, name):
    kernel = registry.load(f"strangers_kernel:{name}")
    assert sorted(kernel.SUPPORTS) == ["causal", "lse", "sliding_window"] and str(kernel.CONTRACT) == "dot tf32"
    for case in ("query-15-16-17", "window-page", "padded-tokens"):
        found = tried(kernel, BY_NAME[case].but(head_size=32), kernel.DEFAULT)
        assert found.ok, found.reason


def test_a_wrong_function_is_wrong_and_one_beyond_its_limits_says_so(outside):
    kernel = registry.load("strangers_kernel:zeros")
    assert not tried(kernel, BY_NAME["batch-1"], None, lse=False).ok
    with pytest.raises(UnsupportedFeature, match="LIMITS, head_size: 40 is not among 32, 128"):
        tried(registry.load("strangers_kernel:returns"), named("plain", head_size=40), None)
    with pytest.raises(SpecError, match=r"contract\.accumulator"):
        registry.load("strangers_kernel:odd")


def test_a_run_takes_a_function_and_a_module_at_the_top(outside):
    kernels = "strangers_kernel:writes,strangers_kernel:zeros"
    options = ["--workload", "q1s40", "--shape", "4:2:32", "--kernels", kernels, "--out", str(outside / "run")]
    assert run.main(options) == 1
    text = (outside / "run" / "report.md").read_text()
    assert "`strangers_kernel:writes`: dot tf32" in text and "`strangers_kernel:zeros` on q1s40: incorrect" in text
    assert registry.select("strangers_kernel") == ("strangers_kernel",)
    with pytest.raises(registry.UnknownKernel, match="nearest"):
        registry.select("trton")


def test_the_kit_takes_a_kernel_of_the_protocol_as_it_is(outside):
    (outside / "of_the_protocol.py").write_text(
        "from fake_kernels import honest\n"
        "SUPPORTS, CONTRACT, DEFAULT = honest.SUPPORTS, honest.CONTRACT, honest.DEFAULT\n"
        "launch, workspace = honest.launch, honest.workspace\n"
    )
    assert registry.select("of_the_protocol") == ("of_the_protocol",) and registry.load("of_the_protocol").launch
    with closing(Isolated(threads=1)) as child:
        for name in ("of_the_protocol", "strangers_kernel:returns"):
            assert Kit(name, 5, child).once("batch-1").status == "ok"
