"""What kernels owe beyond the named cases. A test that takes `dsl` is run for each DSL: `dsl.module("split")` is the
folder's module. One that a DSL has alone says so by `in_triton` or `in_helion`, or by what it imports.

These tests launch on CPU tensors; where a GPU is here, tests/gpu runs the kernels instead.
"""

import os
from pathlib import Path

import pytest

from dsls import DSLS, Dsl

HERE = Path(__file__).parent
PURE = {"test_heuristics.py", "test_paper.py"}


@pytest.fixture(params=DSLS)
def dsl(request) -> Dsl:
    return Dsl(request.param)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if HERE not in item.path.parents or "dsl" not in item.fixturenames:
            continue
        if item.callspec.params["dsl"] == "helion" and item.get_closest_marker("slow_in_helion"):
            item.add_marker(pytest.mark.slow)
        if item.path.name not in PURE and os.environ.get("TRITON_INTERPRET") != "1":
            item.add_marker(pytest.mark.skip(reason="needs TRITON_INTERPRET=1"))
