"""Which tests run in one process with `--dist loadgroup`: those of a file, which make its module's fixtures and
Helion's code once; of files with many cells of kernels, those of a kernel and dtype; of random cases, those from one
seed on. The two files that are most of a lane are dealt by DSL, so that Triton's do not wait for Helion's.

By the ids of the tests alone, for under pytest 9.2 xdist 3.8 loses the marker xdist_group without a word (its issue
#1386).
"""

import re

import pytest

BY_KERNEL = (
    "tests/gpu/", "tests/kernels/", "tests/conformance/test_conformance.py",
    "tests/conformance/test_relations_of_kernels.py", "tests/compare/run/test_smoke.py",
    "tests/compare/static/test_chosen_configs.py",
)  # fmt: skip
KERNEL = re.compile(r"[\[-]((?:triton|helion)(?:/[\w.]+)?)[-\]]")
DTYPE = re.compile(r"-((?:b?float)\d+)[-\]]")
DRAWN = re.compile(r"-(from-\d+)\]")  # random cases share no code


def group(nodeid: str) -> str:
    """The group of a test."""
    file = nodeid.partition("::")[0]
    kernel, parts = KERNEL.search(nodeid), [DTYPE.search(nodeid), DRAWN.search(nodeid)]
    if kernel is None or not file.startswith(BY_KERNEL):
        return file
    # on a GPU a kernel's code of one file serves the others
    place = "tests/gpu" if file.startswith("tests/gpu/") and "/" in kernel[1] else file
    return " ".join([place, kernel[1], *(part[1] for part in parts if part)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """xdist's scheduler with groups of ours; xdist's own for the other words of --dist."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return ByGroup(config, log)
