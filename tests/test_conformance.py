"""Every own kernel on every named case that a CPU can run, interpreted.

The everyday part takes about three minutes of CPU: Helion compiles for 1 to 3 s per dtype, head and page size, and
naive runs a program per row and head, so these two meet a selection of the cases there; `make test-slow` runs the rest.
"""

import os

import pytest

from common.cases import BY_NAME, CASES
from compare import registry
from kernel_cases import conform

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("a GPU is here: tests/gpu runs these cases on it", allow_module_level=True)

ALL_EVERY_DAY = ("triton/q_block", "triton/parallel_softmax")
EVERY_DAY = {
    "query-15-16-17",
    "one-empty-sequence",
    "all-sequences-empty",
    "cache-without-pages",
    "batch-0",
    "no-tokens",
    "sequence-at-tile",
    "page-1",
    "page-24",
    "head-80",
    "ratio-5",
    "ratio-7",
    "table-exactly-as-wide-partial-page",
    "cache-interleaved",
    "cache-x-packed",
    "unaligned-and-odd-strides",
    "window-leaves-leading-segments-empty",
    "non-causal",
    "hints-too-small",
    "everything-at-once",
}
TOO_SLOW = {"batch-257"}  # 2 s of CPU and more in each kernel
assert set(BY_NAME) >= EVERY_DAY | TOO_SLOW


def _cells():
    for kernel_id in registry.OWN:
        for case in CASES:
            if not case.large:
                whole = kernel_id in ALL_EVERY_DAY and case.name not in TOO_SLOW
                marks = () if whole or case.name in EVERY_DAY else pytest.mark.slow
                yield pytest.param(kernel_id, case, marks=marks, id=f"{kernel_id}-{case.name}")


@pytest.mark.parametrize(("kernel_id", "case"), list(_cells()))
def test_conformance(kernel_id, case):
    kernel = registry.load(kernel_id)
    conform(kernel, case, kernel.DEFAULT)
