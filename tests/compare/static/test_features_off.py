"""A feature that is off costs nothing: without its branches in the source the code object is the same, bit for bit.

Line numbers stay out of the code (TRITON_DISABLE_LINE_INFO); whoever cuts a branch moves the lines behind it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cut_sources import ABSENT, write_family

from compare.process.crew import environment

CHILD = Path(__file__).with_name("features_off_child.py")
PACKAGES = {feature: "cut_" + feature.replace(" ", "_").replace("-", "_") for feature in ABSENT}
OTHERS = ("parallel_softmax", "adjustable_tile", "static_grid", "split", "unpaged")


def compiled(root: Path, kernel: str) -> dict[str, dict[str, list[str]]]:
    """sha256 of the real source and of each copy, every feature off; and of some with the feature on."""
    branches = {feature: write_family(root, package, feature) for feature, package in PACKAGES.items()}
    assert min(branches.values()) > 0, branches
    copies = ["dsl_triton", *PACKAGES.values()]
    asked = ["dsl_triton:softcap", PACKAGES["softcap"] + ":softcap"]
    command = [sys.executable, str(CHILD), str(root), kernel, *copies, *asked]
    known = environment("compile") | {"TRITON_DISABLE_LINE_INFO": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, env=known, timeout=900)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def codes(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("cut"), "q_block")


@pytest.mark.parametrize("feature", ABSENT)
def test_a_source_without_the_feature_compiles_to_the_same_code(feature, codes):
    assert codes[PACKAGES[feature]] == codes["dsl_triton"]
    assert set(codes["dsl_triton"]) == {"sm_90", "gfx942"}


def test_where_the_feature_is_on_its_branch_is_in_the_code(codes):
    """Else the two above would be equal whatever was cut."""
    with_it, without = codes["dsl_triton:softcap"], codes[f"{PACKAGES['softcap']}:softcap"]
    assert all(with_it[arch] != without[arch] != [] for arch in with_it)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", OTHERS)
def test_so_do_the_other_kernels(kernel, tmp_path):
    codes = compiled(tmp_path, kernel)
    assert [feature for feature, package in PACKAGES.items() if codes[package] != codes["dsl_triton"]] == []
