"""Features travel as one argument, a NamedTuple or a dict, and one that is off leaves no trace in the compiled code."""

import pytest
import torch

from common.gpus import resolve
from common.spec import AttentionShape
from compare.static.compile import compile_in_child
from compare.workloads import Ask
from compilations import compilation

SHAPE, LENS = AttentionShape(8, 2, 64, 16, torch.bfloat16), ((3, 70), (1, 40))
KERNELS = ("triton/q_block", "helion/q_block")
JOBS = {
    (kernel, asked): compilation(kernel, LENS, SHAPE, ask=Ask(**features))
    for kernel in KERNELS
    for asked, features in {"nothing": {}, "window and sinks": {"sliding_window": 17, "sinks": "drawn"}}.items()
}


@pytest.fixture(scope="module")
def compiled():
    outcomes = dict(zip(JOBS, compile_in_child(list(JOBS.values()), resolve("a100")), strict=True))
    assert {outcome.status for outcome in outcomes.values()} == {"ok"}, [o.reason for o in outcomes.values()]
    return {name: outcome.facts[0] for name, outcome in outcomes.items()}


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_feature_that_is_off_is_no_argument_and_no_code(kernel, compiled):
    plain, asked = compiled[kernel, "nothing"], compiled[kernel, "window and sinks"]
    assert asked["runtime_args"] - plain["runtime_args"] == 2  # the window and the sinks' pointer, nothing else
    assert asked["instructions"] > plain["instructions"]
