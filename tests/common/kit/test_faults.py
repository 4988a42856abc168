"""Each planted fault is contained and named, and leaves no process behind."""

import time

import pytest

from common.kit import offspring
from common.kit.isolate import Isolated, Limits
from common.kit.kit import Kit, Unavailable

pytestmark = pytest.mark.usefixtures("kernels_are_importable")

FAULTS = {  # kernel -> status, what the reason must say
    "nan": ("incorrect", "nan"),
    "wrong_dtype": ("incorrect", "out: found torch.float64"),
    "mutated_input": ("incorrect", "changed its input key_cache"),
    "write_behind": ("incorrect", "wrote outside out"),
    "out_of_memory": ("oom", "allocate"),
    "hang": ("timeout", "no answer within"),
    "illegal_access": ("crash", "SIGSEGV"),
    "abort": ("crash", "SIGABRT"),
    "exit_0": ("crash", "exit code 0"),
    "forked_child": ("crash", "running behind the call"),
    "process_left": ("crash", "running behind the call"),
    "flood": ("crash", "flooded its output"),
}
ENDS = {"hang", "illegal_access", "abort", "exit_0", "forked_child", "process_left", "flood"}  # and costs a process


@pytest.fixture(scope="module")
def child():
    found = Isolated(Limits(memory=2**32), threads=1)
    yield found
    found.close()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_contained_and_named(name, child):
    """And before it, behind the fault of the test before, a right kernel is judged as if nothing had been."""
    status, words = FAULTS[name]
    assert Kit("kit_callables:right", 7, child).once("batch-1").status == "ok"
    kit = Kit(f"kit_faults:{name}", 7, child)
    assert kit.declared.supports  # the import is behind us: what follows is one call
    before = child.started
    child.limits = Limits(call_s=2.0 if name == "hang" else 60.0, memory=2**32)
    begun = time.monotonic()
    found = kit.once("batch-1")
    assert (found.status, words.lower() in found.reason.lower()) == (status, True), found
    assert time.monotonic() - begun < 60.0
    assert child._child is None if name in ENDS else child.started == before
    assert offspring.left(0) == []


@pytest.mark.parametrize(("name", "costs"), [("cuda_lost", 1), ("hip_lost", 1), ("at_a_loss", 0)])
def test_a_gpu_that_answers_no_more_costs_a_process(name, costs, child):
    kit = Kit(f"kit_faults:{name}", 7, child)
    assert kit.declared.supports
    before = child.started
    assert kit.once("batch-1").status == "crash"
    deadline = time.monotonic() + 20.0
    while costs and not child._child.ended and time.monotonic() < deadline:  # it answers before it ends
        time.sleep(0.01)
    assert Kit("kit_callables:right", 7, child).once("batch-1").status == "ok"
    assert child.started == before + costs


def test_a_kernel_that_is_not_there_is_unavailable_and_says_why(child):
    with pytest.raises(Unavailable, match="no_such_module"):
        _ = Kit("no_such_module:kernel", 7, child).declared
    with pytest.raises(Unavailable, match="has no attribute 'nothing'"):
        _ = Kit("kit_callables:nothing", 7, child).declared
