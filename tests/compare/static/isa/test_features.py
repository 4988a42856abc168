"""Cases of features of triton/q_block, compiled for gfx942 and gfx950: what the code computes is the reference."""

import json
from pathlib import Path

import pytest

import children
from common.cases.named import FEATURE_CASES

HERE = Path(__file__).parent
LIMIT_S = 1200
DAILY = ("fp8-out-fnuz", "fp8-query-fnuz", "int8-fp32-interleaved")
GROUPS = (
    "alibi",
    "tree",
    "chunk",
    "spans",
    "per-sequence",
    "cross",
    "fewer-keys",
    "sinks",
    "fp8-scales",
    "fp8-query",
    "fp8-out",
    "fp8",
    "int8",
)


def verdicts(**asked):
    environment = children.compiling(HERE.parents[3], HERE.parents[2] / "support", HELION_DISALLOW_AUTOTUNING="1")
    command = [str(HERE / "feature_child.py"), json.dumps({"kernel": "triton/q_block"} | asked)]
    return children.answer(command, environment, LIMIT_S)


def group_of(name):
    return next((group for group in GROUPS if name.startswith(group)), None)


def wrong(found):
    return {name: verdict for name, verdict in found.items() if verdict != "ok"}


def test_quantised_caches_queries_and_outputs():
    assert not wrong(verdicts(gpu="mi300", cases=DAILY))


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["mi300", "mi350"])
@pytest.mark.parametrize("group", GROUPS)
def test_every_case_of_a_feature(gpu, group):
    cases = [case.name for case in FEATURE_CASES if group_of(case.name) == group and not case.large]
    found = verdicts(gpu=gpu, cases=cases)
    assert set(wrong(found).values()) <= {"unsupported: x_packed"}, wrong(found)


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
