"""The launches kept of a call miss on every planted change that gives Triton another binary, and on every other that
changes what a launch is handed."""

import json
from pathlib import Path

import pytest

import children
from tests.common.serving.planted_changes import CHANGES, UNCHANGED

CHILD = Path(__file__).with_name("handle_child.py")
SOME = ["query-address", "table-row-stride", "page-distance-int64", "device"]  # for which Helion generates nothing new


def judged(dsl, gpu, names=()):
    """One verdict per change, from a process that compiles nothing and interprets nothing."""
    told = children.said([str(CHILD), dsl, gpu, *names], children.compiling(PYTHONWARNINGS="ignore"))
    return {verdict.pop("name"): verdict for verdict in map(json.loads, told)}


def assert_right(verdicts):
    for name, verdict in verdicts.items():
        assert verdict["right"], f"{name}: another launch reached the driver than a first call makes"
        assert verdict["kept"] == (name in UNCHANGED), name
        assert verdict["same_code"] or not verdict["kept"], name


@pytest.mark.lane
def test_triton_misses_on_every_planted_change():
    """On an AMD GPU, where the 2 GiB range is one of them as well."""
    verdicts = judged("triton", "mi300")
    assert_right(verdicts)
    assert set(verdicts) == set(CHANGES) | set(UNCHANGED)
    assert sum(not verdict["same_code"] for verdict in verdicts.values()) >= 40


@pytest.mark.slow
@pytest.mark.parametrize("names", [pytest.param([*SOME, *UNCHANGED], marks=pytest.mark.lane), []], ids=["some", "all"])
def test_helion_misses_on_planted_changes(names):
    assert_right(judged("helion", "h200", names))


PROMPTS_KEPT = ["prompts:workspace-address", "prompts:stream"]
PROMPTS_MISSED = ["prompts:query-address", "prompts:workspace-size", "prompts:softmax-scale", "prompts:non-causal"]


@pytest.mark.parametrize(
    "dsl", [pytest.param("triton", marks=pytest.mark.lane), pytest.param("helion", marks=pytest.mark.slow)]
)
def test_prompts_are_kept_with_descriptors_around_the_new_addresses(dsl):
    """unpaged copies into scratch and reads it through descriptors: other scratch, other bases."""
    verdicts = judged(dsl, "h200", [*PROMPTS_KEPT, *PROMPTS_MISSED])
    for name, verdict in verdicts.items():
        assert verdict["right"], f"{name}: another launch reached the driver than a first call makes"
        assert verdict["kept"] == (name in PROMPTS_KEPT), name
