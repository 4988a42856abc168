"""Every own kernel on every named case that a CPU can run, interpreted: each pair once, in one of the three dtypes.

Every day the Triton kernels meet all cases but naive, which runs a program per row and head. Helion traces a kernel for
1 to 3 s per dtype, head, page and feature, so the Helion kernels deal every other case out among themselves, beside
those that nobody may miss. naive, in both, meets those that nobody may miss. The edge cases are dealt out among the
Triton kernels. `make test-slow` runs the rest.
"""

import os
from dataclasses import replace

import pytest

from common.cases import BY_NAME, CASES
from common.edge_cases import EDGES
from common.feature_cases import FEATURE_CASES
from common.spec import DTYPES
from compare import registry
from kernel_cases import cell, conform

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("a GPU is here: tests/gpu runs these cases on it", allow_module_level=True)

NOBODY_MAY_MISS = {
    "query-15-16-17",
    "all-sequences-empty",
    "cache-without-pages",
    "batch-0",
    "no-tokens",
    "no-tokens-but-padding",
    "page-1",
    "cache-x-packed",
    "everything-at-once",
    "new-kv-mixed",
}
TOO_SLOW = {"batch-257"}  # 2 s of CPU and more in each kernel
DEALT = [kernel for kernel in registry.OWN if kernel.startswith("helion/") and not kernel.endswith("/naive")]
TRITON = [kernel for kernel in registry.OWN if kernel.startswith("triton/") and not kernel.endswith("/naive")]
EDGE_NAMES = {case.name for case in EDGES}
FEATURE_NAMES = {case.name for case in FEATURE_CASES}
assert set(BY_NAME) >= NOBODY_MAY_MISS | TOO_SLOW


def every_day(kernel_id: str, case_name: str, case_number: int) -> bool:
    if case_name in NOBODY_MAY_MISS:
        return True
    if case_name in TOO_SLOW or kernel_id.endswith("/naive"):
        return False
    if case_name in FEATURE_NAMES and kernel_id in DEALT:
        return case_number % (8 * len(DEALT)) == 8 * DEALT.index(kernel_id)
    if case_name in EDGE_NAMES | FEATURE_NAMES:
        return kernel_id in TRITON and case_number % len(TRITON) == TRITON.index(kernel_id)
    return kernel_id not in DEALT or case_number % (2 * len(DEALT)) == 2 * DEALT.index(kernel_id)


def _cells():
    small = [case for case in CASES if not case.large]
    for k, kernel_id in enumerate(registry.OWN):
        for c, case in enumerate(small):
            # over the kernels a case meets each dtype, and over its share of the cases each kernel does; those that
            # nobody may miss come to a kernel in one, for most of them are one trace then
            turn = 0 if case.name in NOBODY_MAY_MISS else c // len(DEALT)
            dtype = DTYPES[(k + turn) % len(DTYPES)]
            marks = [] if every_day(kernel_id, case.name, c) else [pytest.mark.slow]
            # traces are kept in a process: one process takes all of a kernel and dtype
            marks.append(pytest.mark.xdist_group(f"{kernel_id}-{dtype}"))
            name = f"{kernel_id}-{case.name}-{str(dtype).removeprefix('torch.')}"
            yield pytest.param(kernel_id, replace(case, dtype=dtype), marks=marks, id=name)


@pytest.mark.parametrize(("kernel_id", "case"), list(_cells()))
def test_conformance(kernel_id, case, record_property):
    kernel = registry.load(kernel_id)
    record_property("conformance", cell(kernel_id, case))
    record_property("conformance", cell(kernel_id, case, conform(kernel, case, kernel.DEFAULT)))
