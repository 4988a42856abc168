"""A call on an MI300X launches through Triton's own driver for AMD, and once kept it hands HIP the same arguments.

The driver is the one of the installed triton, so that another order of its launcher's arguments is seen here; the HIP
below it writes launches down (tests/support/rocm/amdhip64.c).
"""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

from children import compiling, said
from dsls import HELION_SLOWLY

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
