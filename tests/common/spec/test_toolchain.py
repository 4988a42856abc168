"""Compilers that get a kernel wrong: the table's rule, and that `auto`, `require` and `explain` obey it."""

import re

import pytest
import torch

from common import gpus
from common.cases.batch import make_batch
from common.spec import AttentionShape, Features, UnsupportedFeature
from common.spec import toolchain as module
from common.spec.kernel import require
from common.spec.metadata import EVERY_KEY, BatchStats
from common.spec.toolchain import ANY, REFUSED, Refused, RefusedCompiler, Toolchain, refusal, toolchain, version
from compare.__main__ import main as diptych
from compare.competitors import registry
from compare.workloads import parse_lens
from dsls import HELION_SLOWLY

H200, MI300 = gpus.resolve("h200"), gpus.resolve("mi300")
HERE = Toolchain((3, 6, 0), (12, 8, 93), "TRITON_PTXAS_PATH")


def planted(monkeypatch, *kernels, triton=((3, 6), (3, 7)), ptxas=ANY):
    """The table has an entry for each of these kernels, and this is what compiles here."""
    entries = tuple(Refused(one, "sm_90", "bits change", "org/repo#1", triton, ptxas) for one in kernels)
    monkeypatch.setattr(module, "REFUSED", entries)
    monkeypatch.setattr(module, "toolchain", lambda arch: HERE)


@pytest.mark.parametrize(
    ("triton", "ptxas", "held"),
    [
        (ANY, ANY, True),
        (((3, 6), (3, 7)), ANY, True),
        (((3, 6, 0), (3, 6, 1)), ANY, True),
        (((), (3, 6)), ANY, False),
        (((3, 6, 1), (4,)), ANY, False),
        (ANY, ((12, 9), (13, 3)), False),
        (ANY, ((), (13, 3)), True),
        (((3, 6), (3, 7)), ((13, 3), (14,)), False),
    ],
)
def test_an_entry_holds_from_its_first_version_to_below_its_last(triton, ptxas, held):
    assert Refused("triton/x", "sm_90", "", "", triton, ptxas).holds(HERE) is held


def test_only_the_arch_and_the_kernels_that_it_names(monkeypatch):
    planted(monkeypatch, "triton/unpaged", "helion/*")
    assert refusal("triton/unpaged", "sm_90") and refusal("helion/q_block", "sm_90")
    assert refusal("triton/q_block", "sm_90") is None and refusal("triton/unpaged", "sm_100") is None
    assert refusal("triton/unpaged", None) is None


@pytest.mark.parametrize("dsl", registry.DSLS)
@pytest.mark.parametrize("text", ["q2ks8k", "32q1s2k"])
def test_the_choice_is_the_next_kernel_that_may_be_compiled(dsl, text, monkeypatch):
    shape, stats = AttentionShape(dtype=torch.bfloat16), BatchStats.of(parse_lens(text))
    family = registry.load(f"{dsl}/auto").FAMILY
    monkeypatch.setattr(family, "_chosen", {})
    first = family.choose(shape, stats, H200).kernel
    planted(monkeypatch, f"{dsl}/{first}")
    family._chosen.clear()
    second = family.choose(shape, stats, H200).kernel
    assert second != first and second in family.kernels
    planted(monkeypatch, f"{dsl}/{first}", f"{dsl}/{second}")
    family._chosen.clear()
    assert family.choose(shape, stats, H200).kernel not in (first, second)
    allowed = family._choose(shape, stats, MI300, frozenset(), "tree", EVERY_KEY)
    assert family.choose(shape, stats, MI300).kernel == allowed.kernel


def test_with_nothing_left_the_choice_stays_and_its_launch_says_why(monkeypatch):
    shape, stats = AttentionShape(dtype=torch.bfloat16), BatchStats.of(parse_lens("q2ks8k"))
    family = registry.load("triton/auto").FAMILY
    monkeypatch.setattr(family, "_chosen", {})
    first = family.choose(shape, stats, H200)
    planted(monkeypatch, "triton/*")
    family._chosen.clear()
    assert family.choose(shape, stats, H200) == first


def test_the_native_choice_too(monkeypatch):
    pytest.importorskip("triton.experimental.gluon")
    native = registry.load("triton/native.auto")
    shape, stats = AttentionShape(dtype=torch.bfloat16), BatchStats.of(parse_lens("q8k"))
    assert native.choose(shape, stats, H200).kernel == "native.sm90_prefill"
    planted(monkeypatch, "triton/native.sm90_prefill")
    assert native.choose(shape, stats, H200) == registry.load("triton/auto").choose(shape, stats, H200)


@pytest.mark.parametrize("dsl", HELION_SLOWLY)
def test_a_named_kernel_refuses_by_the_version(dsl, monkeypatch):
    kernel = registry.load(f"{dsl}/q_block")
    batch = make_batch([(3, 5)], AttentionShape(2, 1, 16, 16))
    out = torch.empty_like(batch.query)
    planted(monkeypatch, f"{dsl}/q_block")
    kernel.launch(batch, Features(), out, kernel.DEFAULT, None)  # interpreted: nothing is compiled
    monkeypatch.setattr(module, "gpu_of", lambda device: H200)
    with pytest.raises(RefusedCompiler, match=r"triton: found triton 3\.6\.0 with ptxas 12\.8\.93") as caught:
        require(f"{dsl}/q_block", kernel.SUPPORTS, batch, Features(), out, None)
    assert isinstance(caught.value, UnsupportedFeature) and caught.value.kernel == f"{dsl}/q_block"
    assert "org/repo#1" in str(caught.value) and "TRITON_PTXAS_PATH" in str(caught.value)


def test_explain_says_it(monkeypatch, capsys):
    family = registry.load("triton/auto").FAMILY
    monkeypatch.setattr(family, "_chosen", {})
    command = ["explain", "q2ks8k", "--gpu", "h200", "--dsl", "triton"]
    assert diptych(command) == 0
    before = capsys.readouterr().out
    assert "refused" not in before
    first = re.search(r"^  portable +(\w+),", before, re.M)[1]
    planted(monkeypatch, f"triton/{first}")
    family._chosen.clear()
    assert diptych(command) == 0
    told = capsys.readouterr().out
    assert re.search(r"^  portable +(\w+),", told, re.M)[1] != first
    assert re.search(
        rf"^  refused +triton: found triton 3\.6\.0 .* whose triton/{first} is wrong: bits change", told, re.M
    )


def test_canary_triton_says_which_ptxas_compiles_for_an_arch():
    """Private names: triton.backends.nvidia.compiler.get_ptxas, get_ptxas_version; triton.knobs.nvidia."""
    import triton

    found = toolchain("sm_90")
    assert found.triton == version(triton.__version__) and found.ptxas >= (12,) and len(found.ptxas) == 3
    expected = "TRITON_PTXAS_BLACKWELL_PATH" if found.triton >= (3, 9) else "TRITON_PTXAS_PATH"
    assert found.variable == expected
    assert toolchain("sm_100").variable == "TRITON_PTXAS_BLACKWELL_PATH"
    assert toolchain("gfx942") == Toolchain(found.triton)


def test_the_table_names_kernels_that_there_are_and_says_where_it_is_written_down():
    for entry in REFUSED:
        assert registry.select(entry.kernel) and entry.arch and entry.why and entry.evidence
