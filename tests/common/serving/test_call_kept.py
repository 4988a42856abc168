"""The launches kept of a call miss on every planted change that gives Triton another binary, and on every other that
changes what a launch is handed. On an MI300X a kept call hands HIP, by Triton's own driver for AMD, what a first one
does: tests/support/rocm/amdhip64.c writes the launches down."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

import children
from children import compiling, said
from dsls import HELION_SLOWLY
from tests.common.serving.planted_changes import CHANGES, UNCHANGED

CHILD = Path(__file__).with_name("handle_child.py")
SOME = ["query-address", "table-row-stride", "page-distance-int64", "device"]  # for which Helion generates nothing new


def judged(dsl, gpu, names=()):
    """One verdict per change, from a process that compiles nothing and interprets nothing."""
    told = children.said([str(CHILD), dsl, gpu, *names], children.compiling(PYTHONWARNINGS="ignore"))
    return {verdict.pop("name"): verdict for verdict in map(json.loads, told)}


def assert_right(verdicts, kept=UNCHANGED):
    for name, verdict in verdicts.items():
        assert verdict["right"], f"{name}: another launch reached the driver than a first call makes"
        assert verdict["kept"] == (name in kept), name
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
    assert_right(judged(dsl, "h200", [*PROMPTS_KEPT, *PROMPTS_MISSED]), PROMPTS_KEPT)


HERE = Path(__file__).parent
SUPPORT = HERE.parents[1] / "support"
WAVE = 64  # threads; their number is the third word of a launch


@pytest.fixture(scope="session")
def hip(tmp_path_factory):
    """libamdhip64.so, compiled with the headers that triton ships."""
    library = tmp_path_factory.mktemp("hip") / "libamdhip64.so"
    headers = Path(importlib.util.find_spec("triton").origin).parent / "backends/amd/include"
    source = SUPPORT / "rocm" / "amdhip64.c"
    subprocess.run(["cc", "-O1", "-w", "-shared", "-fPIC", f"-I{headers}", str(source), "-o", str(library)], check=True)
    return library


@pytest.mark.parametrize("dsl", HELION_SLOWLY)
def test_a_kept_call_hands_hip_what_a_first_call_does(hip, dsl):
    environment = compiling(SUPPORT / "rocm", SUPPORT, HERE.parents[2])
    answers = [json.loads(line) for line in said([str(HERE / "hip_child.py"), dsl, str(hip)], environment)]
    assert [answer["name"] for answer in answers] == ["decodes:same", "decodes:moved", "prompts:same", "prompts:moved"]
    for answer in answers:
        assert answer["kept"] and answer["got"] == answer["wanted"] and answer["got"], answer
        assert all(how == "plain" and int(threads) % WAVE == 0 for how, _, _, threads, *_ in answer["got"])
    same, moved = answers[0]["got"][0], answers[1]["got"][0]
    assert same[:6] == moved[:6] and same != moved  # the same binary, other pointers
