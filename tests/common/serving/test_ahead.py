"""A warm-up compiles in threads and launches each kernel once (ahead_child.py)."""

import sys
from pathlib import Path

import pytest

import children
from dsls import HELION_SLOWLY

HERE = Path(__file__).resolve().parent


def warmed(tmp_path, *words):
    environment = children.compiling(
        HERE.parents[2], *sys.path, PYTHONWARNINGS="ignore", TRITON_CACHE_DIR=str(tmp_path)
    )
    return children.answer([str(HERE / "ahead_child.py"), *words], environment)


@pytest.mark.parametrize("dsl", HELION_SLOWLY)
def test_threads_compile_all_of_a_warm_up_and_each_kernel_is_launched_once(dsl, tmp_path):
    said = warmed(tmp_path, dsl)
    assert said["here"] == [] and len(said["threads"]) >= 3
    assert said["launched"] == [len(said["threads"])] * 2  # the second plan's kernels are in this process already
    assert said["calls"] > 2 * len(said["threads"])


def test_a_kernel_that_does_not_compile_raises_from_the_warm_up_what_the_compiler_said(tmp_path):
    said = warmed(tmp_path, "triton", "_segments")
    assert said["raised"] == "no such instruction" and said["launched"] == []
    assert "_q_block_kernel" in said["threads"]  # the others are compiled
