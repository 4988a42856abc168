"""Every own kernel on every named case that a CPU can run, interpreted: each pair once, in one of the three dtypes.

Every day the Triton kernels meet all of them but naive, which runs a program per row and head. Helion traces a kernel
for 1 to 3 s per dtype, head, page and feature, so a Helion kernel meets every fifth case, another fifth than the kernel
before it, and those that nobody may miss; naive meets these alone. `make test-slow` runs the rest.
"""

import os
from dataclasses import replace

import pytest

from common.cases import BY_NAME, CASES
from common.spec import DTYPES
from compare import registry
from kernel_cases import conform

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
EVERY_FIFTH = 5
assert set(BY_NAME) >= NOBODY_MAY_MISS | TOO_SLOW


def every_day(kernel_id: str, kernel_number: int, case_name: str, case_number: int) -> bool:
    if case_name in NOBODY_MAY_MISS:
        return True
    if case_name in TOO_SLOW or kernel_id.endswith("/naive"):
        return False
    return kernel_id.startswith("triton/") or (case_number + kernel_number) % EVERY_FIFTH == 0


def _cells():
    small = [case for case in CASES if not case.large]
    for k, kernel_id in enumerate(registry.OWN):
        for c, case in enumerate(small):
            dtype = DTYPES[(k + c) % len(DTYPES)]  # over the kernels, a case meets each of them
            marks = [] if every_day(kernel_id, k, case.name, c) else [pytest.mark.slow]
            # traces are kept in a process: one process takes all of a kernel and dtype
            marks.append(pytest.mark.xdist_group(f"{kernel_id}-{dtype}"))
            name = f"{kernel_id}-{case.name}-{str(dtype).removeprefix('torch.')}"
            yield pytest.param(kernel_id, replace(case, dtype=dtype), marks=marks, id=name)


@pytest.mark.parametrize(("kernel_id", "case"), list(_cells()))
def test_conformance(kernel_id, case):
    kernel = registry.load(kernel_id)
    conform(kernel, case, kernel.DEFAULT)


def test_every_case_is_met_by_a_helion_kernel_every_day():
    """Of those that the whole family may run: no case is left to the slow tests alone."""
    small = [case.name for case in CASES if not case.large and case.name not in TOO_SLOW]
    kernels = [(k, kernel_id) for k, kernel_id in enumerate(registry.OWN) if kernel_id.startswith("helion/")]
    missed = [n for c, n in enumerate(small) if not any(every_day(kernel_id, k, n, c) for k, kernel_id in kernels)]
    assert not missed or len(kernels) < EVERY_FIFTH + 1
