"""How a kernel is called and what it declares: four signatures, limits, refusals."""

from dataclasses import fields

import pytest

from common.kit import isolated
from common.kit.kit import Kit, Unavailable
from common.spec import Features

pytestmark = pytest.mark.usefixtures("kernels_are_importable")


def kit_of(name, child):
    return Kit(name if "." in name else f"kit_adapters:{name}", 5, child)


DECODES = {"all-decode", "softcap-15@lens=1/40.1/17", "window-page@lens=1/60.1/40"}
CASES = {"query-15-16-17", "non-causal-with-window", "softcap-15", "padded-tokens", *DECODES}
FEATURES = {"non-causal-with-window", "softcap-15", *DECODES} - {"all-decode"}


@pytest.mark.parametrize(
    ("name", "adapter", "skipped"),
    [
        ("plain", "paged", FEATURES),
        ("forwards", "paged", set()),
        ("varlen", "flash_attn_varlen", set()),
        ("kvcache", "flash_attn_kvcache", CASES - DECODES),
        ("compare.competitors.baselines.sdpa", "protocol", {case for case in CASES if "softcap" in case}),
    ],
)
def test_a_right_kernel_passes_behind_each_signature(name, adapter, skipped, child):
    kit = kit_of(name, child)
    assert kit.declared.adapter == adapter
    results = {case: kit.once(case) for case in CASES}
    assert {case for case, result in results.items() if result.status == "ok"} == CASES - skipped, results
    assert all(result.declared for case, result in results.items() if case in skipped)


@pytest.mark.parametrize("gives", ["more", "true", "other_strides"])
def test_what_a_kernel_gives_beside_its_result_does_not_count(gives, child):
    """A third value, or a status, was taken for the result of a kernel that had written to `out`."""
    assert kit_of(f"gives_{gives}", child).once("all-decode").status == "ok"


@pytest.mark.parametrize(
    ("gives", "words"),
    [
        ("a_list", "out: found a list, allowed None, a torch.Tensor, or a tuple that begins with it"),
        ("more_rows", "out: found shape"),
        ("resized", "changed the shape, the strides or the memory of out"),
        ("moved", "changed the shape, the strides or the memory of out"),
        ("fewer_rows", "changed the shape, the strides or the memory of out"),
        ("zeros_behind", "found 0, expected"),
    ],
)
def test_an_output_that_is_right_and_not_what_a_caller_gets_is_wrong(gives, words, child):
    found = kit_of(f"gives_{gives}", child).once("all-decode")
    assert found.status == "incorrect" and words in found.reason, found


def test_a_tuple_that_computes_when_it_is_unpacked_is_no_result():
    late = type("Late", (tuple,), {"__iter__": lambda self: iter(())})
    with pytest.raises(isolated.Declined, match="found a Late"):
        isolated.returned(late(), lambda out: None)


@pytest.mark.parametrize(
    ("case", "why"),
    [("page-24", "LIMITS, block_size: 24 is not among 16"), ("window-page", "not in SUPPORTS: sliding_window")],
)
def test_what_is_declared_is_left_out_with_its_reason(case, why, child):
    found = kit_of("halves", child).once(case)
    assert (found.status, found.declared, found.reason, found.failed) == ("unsupported", True, why, False)


def test_a_case_in_a_dtype_that_is_not_declared_runs_in_one_that_is(child):
    found = kit_of("halves", child).once("all-decode")
    assert (found.status, found.case) == ("ok", "all-decode@dtype=float16")
    assert kit_of("halves", child).once("all-decode@dtype=float32").declared


def test_an_undeclared_refusal_fails(child):
    found = kit_of("refuses", child).once("window-page")
    assert found.failed and (found.status, found.declared) == ("unsupported", False)
    assert "refused what SUPPORTS and LIMITS declare" in found.reason and "Tuesdays" in found.reason


@pytest.mark.parametrize(("case", "names"), [("window-page", "sliding_window"), ("all-decode", "lse")])
def test_a_feature_without_its_parameter_fails(case, names, child):
    found = kit_of("deaf", child).once(case)
    assert found.failed and f"SUPPORTS names {names}" in found.reason


def test_a_limit_that_nobody_knows_is_refused(child):
    with pytest.raises(Unavailable, match="LIMITS: found weather, allowed dtype"):
        _ = kit_of("unknown_limit", child).declared


def test_every_feature_of_the_spec_reaches_a_kernel():
    """A feature that the spec gains must be passed on by common/kit/isolated.py, or kernels fail cases they never
    saw."""
    assert {field.name for field in fields(Features)} == {*isolated.FEATURES, *isolated.OPERANDS}
