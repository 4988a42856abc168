"""One canary per name: which of the two Gluon has now, and whether the oldest release allowed has the old one."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

triton = pytest.importorskip("triton")
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import tma  # noqa: E402

from dsl_triton.native import gluon_names  # noqa: E402

pytestmark = pytest.mark.lane

ROOT = Path(__file__).parents[3]
# name -> where it lies, what it was called, and the first release with the new name
NAMES = {
    "barrier": (gl, "thread_barrier", "3.7"),
    "async_load": (tma, "async_copy_global_to_shared", "3.8"),
    "async_store": (tma, "async_copy_shared_to_global", "3.8"),
    "reinterpret": (gl.shared_memory_descriptor, "_reinterpret", "3.9"),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_this_release_is_taken(name):
    owner, older, since = NAMES[name]
    expected = name if Version(triton.__version__) >= Version(since) else older
    assert getattr(gluon_names, name) is getattr(owner, expected)
    assert hasattr(owner, name) == (expected == name), f"{name} came with another release than {since}"


@pytest.mark.parametrize("name", NAMES)
def test_the_older_name_is_still_needed(name):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [bound] = [Requirement(line) for line in extras["cuda"] if line.startswith("triton")]
    oldest = min(Version(one.version) for one in bound.specifier if one.operator == ">=")
    assert oldest < Version(NAMES[name][2]), f"every release that is allowed has {name}: take it from Gluon itself"
