"""One canary per name: which of the two Gluon has now, and whether the oldest release allowed has the old one."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

triton = pytest.importorskip("triton")
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language.nvidia.ampere import async_copy  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import tma  # noqa: E402

from dsl_triton.native import gluon_names  # noqa: E402

pytestmark = pytest.mark.lane

ROOT = Path(__file__).parents[3]
# name here -> where it lies, what it was called, what it is called now, and the first release that does
NAMES = {
    "barrier": (gl, "thread_barrier", "barrier", "3.7"),
    "async_load": (tma, "async_copy_global_to_shared", "async_load", "3.8"),
    "async_store": (tma, "async_copy_shared_to_global", "async_store", "3.8"),
    "async_copy": (async_copy, "async_copy_global_to_shared", "async_load", "3.8"),
    "reinterpret": (gl.shared_memory_descriptor, "_reinterpret", "reinterpret", "3.9"),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_this_release_is_taken(name):
    owner, older, newer, since = NAMES[name]
    expected = newer if Version(triton.__version__) >= Version(since) else older
    assert getattr(gluon_names, name) is getattr(owner, expected)
    assert hasattr(owner, newer) == (expected == newer), f"{newer} came with another release than {since}"


@pytest.mark.parametrize("name", NAMES)
def test_the_older_name_is_still_needed(name):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [bound] = [Requirement(line) for line in extras["cuda"] if line.startswith("triton")]
    oldest = min(Version(one.version) for one in bound.specifier if one.operator == ">=")
    assert oldest < Version(NAMES[name][3]), f"every release that is allowed has {name}: take it from Gluon itself"
