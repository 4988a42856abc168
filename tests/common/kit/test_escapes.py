"""No planted cheat reaches the judge's memory, files, time or processes; where one could, the verdict says so."""

import ctypes
import os
import time

import pytest
import torch

from common.kit import account, offspring
from common.kit.isolate import Isolated, Limits
from common.kit.kit import Kit

pytestmark = [
    pytest.mark.usefixtures("kernels_are_importable"),
    pytest.mark.skipif(not offspring.LINUX, reason="of Linux"),
]

LEFT, ZEROS = "running behind the call", "found 0, expected"
ESCAPES = {  # kernel -> statuses that it may get, what the reason must say
    "fifo": ({"timeout", "crash", "incorrect"}, "call 1: "),
    "zeros_for_ever": ({"incorrect"}, "call 1: "),
    "huge_file": ({"incorrect"}, "call 1: "),
    "grown_memory": ({"incorrect"}, ZEROS),
    "cut_memory": ({"incorrect"}, ZEROS),
    "easier_file": ({"incorrect"}, ZEROS),
    "daemon": ({"crash"}, LEFT),
    "relay": ({"crash"}, LEFT),
    "flood_of_the_channel": ({"crash"}, "flooded the channel"),
    "two_replies": ({"crash", "incorrect"}, "call 1: "),
    "stops": ({"timeout"}, "no answer within"),
    "changes_what_it_returned": ({"incorrect"}, "call 1: "),
    "removes_folders": ({"incorrect"}, ZEROS),
}
OF_ANOTHER_USER = ("ends_the_judge", "reads_the_judge", "writes_to_the_judge")
SHORT = Limits(call_s=2.0)


@pytest.fixture(scope="module")
def child():
    """As the user that kernels have here."""
    found = Isolated(SHORT, threads=1)
    yield found
    found.close()


@pytest.fixture(scope="module")
def of_the_same_user():
    found = Isolated(SHORT, threads=1)
    found.share("of a test")
    yield found
    found.close()


def ends_and_does_not_pass(name, child):
    """And nothing of it is left where the next kernel is judged."""
    statuses, words = ESCAPES[name]
    kit = Kit(f"kit_escapes:{name}", 11, child)
    assert kit.declared.supports == {"causal"}
    child.limits, begun = SHORT, time.monotonic()
    found = kit.once("batch-1")
    child.limits = Limits()
    assert found.status in statuses and words in found.reason, found
    assert time.monotonic() - begun < 40.0
    assert offspring.left(child._child.pid if child._child else 0) == child.noted.unended == []
    assert Kit("kit_callables:right", 7, child).once("batch-1").status == "ok"


@pytest.mark.parametrize("name", sorted(ESCAPES.keys() - {"relay"}))
def test_an_escape_ends_in_time_and_does_not_pass(name, child):
    ends_and_does_not_pass(name, child)


def test_a_process_is_found_whoever_runs_it(of_the_same_user):
    ends_and_does_not_pass("daemon", of_the_same_user)


def test_a_process_that_goes_on_in_the_next_one_is_ended_with_its_user(child):
    if child.not_isolated:
        pytest.skip(child.not_isolated)
    ends_and_does_not_pass("relay", child)


@pytest.mark.parametrize("name", OF_ANOTHER_USER)
def test_another_user_reaches_nothing_of_the_judge(name, child):
    if child.not_isolated:
        pytest.skip(child.not_isolated)
    found = Kit(f"kit_escapes:{name}", 11, child).once("batch-1")
    assert (found.status, ZEROS in found.reason) == ("incorrect", True), found


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("reads_the_tolerance", "oracle/tolerance"),
        ("imports_the_reference", "oracle/reference"),
        ("reads_and_forgets", "oracle/rows"),
        ("takes_the_right_kernel_of_the_mutants", "mutants/__init__"),
    ],
)
def test_who_reads_how_it_is_judged_is_noted(name, read, child):
    path = f"common/{read}.py"
    assert path not in child.noted.read
    Kit(f"kit_escapes:{name}", 11, child).once("batch-1")
    assert path in child.noted.read


def test_nobody_of_the_same_user_may_read_the_memory_of_a_judge():
    offspring.adopt()
    assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0  # PR_GET_DUMPABLE


def test_without_root_the_kit_says_that_a_kernel_has_the_rights_of_who_calls(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert Isolated().not_isolated == "without root a kernel has the rights of who calls"


def test_root_without_what_it_takes_says_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(account.Path, "read_text", lambda path: "Name:\tx\nCapEff:\t00000000000000c1\nCapBnd:\t0\n")
    assert account.another() == (None, "root lacks CAP_KILL here")


def test_a_child_that_finds_no_gpu_as_another_user_goes_on_as_who_calls(child, of_the_same_user):
    assert child.ask({"ask": "gpu"}).said["gpu"] == torch.cuda.is_available()
    found = of_the_same_user.ask({"ask": "describe", "kernel": "builtins:print", "adapter": "auto"})
    assert (found.status, of_the_same_user.not_isolated, of_the_same_user._user) == ("ok", "of a test", None)


def test_a_module_beside_the_kernel_is_not_imported_by_its_process(tmp_path, monkeypatch):
    """One called resource.py ran before the kernel was watched, and could read the reference unseen."""
    for name in ("resource", "selectors"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    found = Isolated(threads=1)
    try:
        assert found.ask({"ask": "gpu"}).status == "ok"
    finally:
        found.close()
