"""Features travel as one argument, a NamedTuple or a dict, and one that is off leaves no trace in the compiled code."""

import pytest
import torch

from common.gpus import resolve
from common.spec import AttentionShape
from compare.static.compile import compile_in_child
from compare.workloads import Ask
from compilations import compilation

SHAPE, LENS = AttentionShape(8, 2, 64, 16, torch.bfloat16), ((3, 70), (1, 40))
KERNELS = ("triton/q_block", pytest.param("helion/q_block", marks=pytest.mark.slow))
ASKED = ({}, {"sliding_window": 17, "sinks": "drawn"})


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_feature_that_is_off_is_no_argument_and_no_code(kernel):
    jobs = [compilation(kernel, LENS, SHAPE, ask=Ask(**features)) for features in ASKED]
    outcomes = list(compile_in_child(jobs, resolve("a100")))
    assert {outcome.status for outcome in outcomes} == {"ok"}, [outcome.reason for outcome in outcomes]
    plain, asked = (outcome.facts[0] for outcome in outcomes)
    assert asked["runtime_args"] - plain["runtime_args"] == 2  # the window and the sinks' pointer, nothing else
    assert asked["instructions"] > plain["instructions"]
