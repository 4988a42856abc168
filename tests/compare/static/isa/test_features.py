"""Cases of features, compiled for gfx942 and gfx950 and executed in the model: what the code computes is the reference.

Every case of a feature by `triton/q_block`, and one of each by the other kernels and by Helion.
"""

import json
from pathlib import Path

import pytest

import children
from common.cases.named import CASES, FEATURE_CASES

HERE = Path(__file__).parent
LIMIT_S = 1200
DAILY = ("fp8-out-fnuz", "fp8-query-fnuz", "int8-fp32-interleaved")
DECODES = ("head-512-window-sinks", "fp8-e5m2-scales-of-heads", "alibi-with-sinks-and-softcap")  # by segments
GROUPS = (
    "alibi", "tree", "chunk", "spans", "per-sequence", "cross", "fewer-keys", "sinks", "fp8-scales", "fp8-query",
    "fp8-out", "fp8", "int8", "value", "batch-invariant",
)  # fmt: skip
NAMED = {  # features without cases in FEATURE_CASES
    "windows": ("window-", "non-causal"),
    "softcap": ("softcap-",),
    "sinks": ("sinks-near", "sinks-off", "sinks-of", "empty-segments"),
    "heads": ("head-",),
    "new-kv": ("new-kv-",),
    "sums-of-others": ("company-", "invariant-"),
}
OTHERS = ("parallel_softmax", "adjustable_tile", "unpaged", "static_grid", "split")
EACH = (
    "alibi-with-sinks-and-softcap", "alibi-sqrt", "tree-with-window-and-sinks", "chunk-of-16-lookback-1",
    "spans-within-a-window", "per-sequence-with-window", "cross-decodes", "fewer-keys-per-sequence-window",
    "head-512", "head-512-window-sinks", "value-64-head-96", "value-512-head-64", "fp8-scales-of-tokens",
    "fp8-e5m2-scales-of-heads", "fp8-query-fnuz", "fp8-query-mixed-long", "int8-window-sinks", "fp8-in-and-out",
    "company-prompt", "invariant-prompt", "sinks-without-keys", "new-kv-sinks-and-softcap",
    "window-to-both-sides-over-tiles",
)  # fmt: skip


def verdicts(**asked):
    environment = children.compiling(HERE.parents[3], HERE.parents[2] / "support", HELION_DISALLOW_AUTOTUNING="1")
    command = [str(HERE / "feature_child.py"), json.dumps({"kernel": "triton/q_block"} | asked)]
    return children.answer(command, environment, LIMIT_S)


def group_of(name):
    return next((group for group in GROUPS if name.startswith(group)), None)


def wrong(found):
    return {name: verdict for name, verdict in found.items() if verdict != "ok"}


def test_quantised_caches_queries_and_outputs_and_decodes_in_segments():
    assert not wrong(verdicts(gpu="mi300", cases=DAILY, more={"triton/parallel_softmax": DECODES}))


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["mi300", "mi350"])
@pytest.mark.parametrize("group", GROUPS)
def test_every_case_of_a_feature(gpu, group):
    cases = [case.name for case in FEATURE_CASES if group_of(case.name) == group and not case.large]
    found = verdicts(gpu=gpu, cases=cases)
    assert set(wrong(found).values()) <= {"unsupported: x_packed"}, wrong(found)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["mi300", "mi350"])
@pytest.mark.parametrize("feature", NAMED)
def test_every_named_case_of_a_feature(gpu, feature):
    """Of those that are small enough for the model. `unpaged` alone reads the step's new K and V."""
    cases = [case.name for case in CASES if case.name.startswith(NAMED[feature]) and not case.large]
    kernel = "triton/unpaged" if feature == "new-kv" else "triton/q_block"
    assert cases and not wrong(found := verdicts(gpu=gpu, kernel=kernel, cases=cases)), wrong(found)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["mi300", "mi350"])
@pytest.mark.parametrize(
    "kernel", [*(f"triton/{rung}" for rung in OTHERS), *(f"helion/{rung}" for rung in ("q_block", *OTHERS))]
)
def test_each_feature_in_the_other_kernels(gpu, kernel):
    """A kernel may refuse by name what it does not support."""
    found = verdicts(gpu=gpu, kernel=kernel, cases=EACH)
    bad = {name: verdict for name, verdict in wrong(found).items() if not verdict.startswith("unsupported: ")}
    assert not bad, bad
    assert len(found) - len(wrong(found)) >= len(EACH) // 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "case", "dropped"),
    [
        ("mi300", "int8-fp32-interleaved", "v_cvt_f32_i32"),
        ("mi300", "fp8-fnuz", "v_cvt_pk_f32_fp8"),
        ("mi350", "fp8-without-scales", "v_cvt_scalef32_pk_f16_fp8"),
        ("mi350", "fp8-out", "v_cvt_scalef32_pk_fp8_f32"),
        ("mi350", "fp8-query-bf16-out", "ds_read_b64_tr_b8"),
    ],
)
def test_without_one_of_its_instructions_a_case_is_wrong(gpu, case, dropped):
    assert verdicts(gpu=gpu, cases=[case], without=dropped)[case].split(":")[0] in ("incorrect", "fault")
