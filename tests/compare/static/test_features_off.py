"""A feature that is off costs nothing: without its branches in the source the code object is the same, bit for bit.

Line numbers stay out of the code (TRITON_DISABLE_LINE_INFO); whoever cuts a branch moves the lines behind it.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest
from cut_sources import ABSENT, write_family

from children import answer
from compare.process.crew import environment

CHILD = Path(__file__).with_name("features_off_child.py")
PACKAGES = {feature: "cut_" + feature.replace(" ", "_").replace("-", "_") for feature in ABSENT}
DAILY = ("fp8_kv", "int8_kv", "prefix_lm", "softcap")
KERNELS = ("q_block", "parallel_softmax", "adjustable_tile", "static_grid", "split", "unpaged")


def compiled(root: Path, kernel: str, features: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """sha256 of the real source and of each copy, every feature off; and of two with the soft cap on."""
    branches = {feature: write_family(root, PACKAGES[feature], feature) for feature in features}
    assert min(branches.values()) > 0, branches
    copies = ["dsl_triton", *(PACKAGES[feature] for feature in features)]
    asked = ["dsl_triton:softcap", PACKAGES["softcap"] + ":softcap"]
    known = environment("compile") | {"TRITON_DISABLE_LINE_INFO": "1", "OMP_NUM_THREADS": "1"}
    return answer([str(CHILD), str(root), kernel, *copies, *asked], known, 900)


@pytest.mark.parametrize(
    ("kernel", "features"),
    [("q_block", DAILY), *(pytest.param(kernel, tuple(ABSENT), marks=pytest.mark.slow) for kernel in KERNELS)],
)
def test_a_source_without_a_feature_compiles_to_the_same_code(kernel, features, tmp_path):
    codes = compiled(tmp_path, kernel, features)
    assert set(codes["dsl_triton"]) == {"sm_90", "gfx942"}
    assert [feature for feature in features if codes[PACKAGES[feature]] != codes["dsl_triton"]] == []
    # where the feature is on its branch is in the code, else the others would be equal whatever was cut
    with_it, without = codes["dsl_triton:softcap"], codes[f"{PACKAGES['softcap']}:softcap"]
    assert all(with_it[arch] != without[arch] != [] for arch in with_it)
