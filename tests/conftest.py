"""Where a test goes: the folder of the room that it tests, common/<room>/ or compare/<room>/, in a file named after the
module. kernels/ has what holds of the kernels of both DSLs, by the fixture `dsl`, conformance/ every named case, gpu/
what needs a GPU. What holds committed documents to the code is in docs/, what a move must not change in goldens/; what
is said of the whole house is here. A helper of several rooms is in support/, of one beside its tests: the pythonpath
of pyproject.toml finds both by their names, and a child gets their folder in PYTHONPATH. At most 20 files in a folder.

Where there is no GPU, kernels are interpreted; the switch must be set before anything imports triton.
"""

import gc
import os
from pathlib import Path

if (
    "PYTEST_XDIST_WORKER" in os.environ
):  # the workers share the cores: threads of theirs would only queue behind each other
    os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it in its workers: commands are tested as in a pipe
os.environ.setdefault("DIPTYCH_CACHE", "0")  # what this user measured is nobody's expectation
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import parts
from common import interpreter
from process_groups import pytest_xdist_make_scheduler  # noqa: F401  a hook

interpreter.install()

gc.set_threshold(200_000, 50, 50)  # Helion's caches are large and live on: 7% of its tests' time was gc's

CELLS = {}  # (kernel, case, dtype) -> what a conformance test said of it


@pytest.fixture(scope="session")
def compiled():
    """compiled(gpu, *jobs): the outcome of each job, by children that all tests of this process share."""
    from compilations import Compilers

    compilers = Compilers()
    yield compilers
    compilers.keep(0)


def pytest_addoption(parser):
    parser.addoption(
        "--conformance-out", metavar="FILE", help="write what conformance tests saw, for compare.studies.capability"
    )
    parser.addoption("--part", metavar="I/N", help="of the tests that were chosen the I-th of N parts, dealt evenly")


def pytest_configure(config):
    if config.getoption("--part"):
        parts.read(config.getoption("--part"))


def pytest_ignore_collect(collection_path, config):
    """A lane is 90 tests of 10 files: a file without its mark is not imported, which takes all of them 20 s."""
    mark = config.getoption("markexpr")
    if mark in ("lane", "compiles") and collection_path.match("test_*.py"):
        return True if f"mark.{mark}" not in collection_path.read_text(encoding="utf-8") else None
    return None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Behind the choice by -m and -k: parts of what that left."""
    if config.getoption("--part"):
        items[:], others = parts.dealt(items, *parts.read(config.getoption("--part")))
        config.hook.pytest_deselected(items=others)


def pytest_collection_finish():
    """What was imported and collected stays: no collection need look at it again."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report):
    """In the process that gathers the reports, of xdist's workers too: the last word of each cell."""
    cells = [value for name, value in report.user_properties if name == "conformance"] if report.when == "call" else []
    for cell in cells:
        why = {"reason": str(getattr(report.longrepr, "reprcrash", ""))[-200:]} if report.failed else {}
        CELLS[cell["kernel"], cell["case"], cell["dtype"]] = cell | why


def pytest_sessionfinish(session):
    out = session.config.getoption("--conformance-out")
    if out and CELLS and not hasattr(session.config, "workerinput"):
        from compare.studies import capability

        here = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU, interpreted"
        capability.write(Path(out), CELLS.values(), here)
