"""The compiling lane with a real kernel and a real compiler: what drops out, and why."""

import dataclasses
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from common.gpus import resolve
from compare.competitors import registry
from compare.process.crew import environment
from compare.record.folder import ROOT
from compare.tune.compile import Lane, tensor_bytes
from compare.tune.space import DEFAULT, Policy, flatten
from compare.workloads.suites import pick, suite

OTHER = Policy(set=(("num_warps", 8),))
ROW = pick(suite("peers"), "8q1s2k~")[0]


def answers(policies, kernel="triton/q_block", gpu="h200"):
    """What the lane says of each policy, by name; one process."""
    task = {"gpu": dataclasses.asdict(resolve(gpu)), "rows": [ROW.to_dict()], "deadline": time.time() + 300, "lost": []}
    jobs = [{"id": p.name, "kernel": kernel, "policy": p.to_dict(), "rows": [ROW.label]} for p in policies]
    command = [sys.executable, "-m", "compare.tune.compile"]
    lines = "".join(json.dumps(part) + "\n" for part in [task, *jobs])
    done = subprocess.run(
        command, input=lines, capture_output=True, text=True, env=environment("measure"), cwd=ROOT, check=True
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    starts = [event["cell"] for event in events if event["event"] == "start"]
    assert starts == [policy.name for policy in policies for _ in range(2)]  # the job, and a sign of life a row
    return {e["cell"]: e["answers"][ROW.label] for e in events if e["event"] == "row"}


def test_the_same_code_is_known_by_its_identity_and_spills_drop_out():
    config = type(registry.load("triton/q_block").DEFAULT)
    warps = Policy(set=(("num_warps", 4),))  # what the default has: the same code under another name
    spilling = Policy("fixed", tuple(flatten(config(64, 32, 1, 1)).items()))
    found = answers([DEFAULT, warps, spilling])
    assert found["default"]["status"] == "ok" and len(found["default"]["code"]) == 16
    assert found[warps.name]["code"] == found["default"]["code"]
    assert found[spilling.name]["status"] == "spills" and "allowed 64" in found[spilling.name]["reason"]


@pytest.mark.parametrize(
    ("gpu", "shared", "spill", "policy", "status"),
    [
        ("h200", 232448, 64, OTHER, "ok"),
        ("h200", 232449, 0, OTHER, "shared_memory"),
        ("h200", 232449, 0, DEFAULT, "shared_memory"),
        ("h200", 0, 68, OTHER, "spills"),
        ("h200", 0, 68, DEFAULT, "ok"),
        ("mi300", 0, 4, OTHER, "spills"),
    ],
)
def test_limits(gpu, shared, spill, policy, status):
    code = SimpleNamespace(shared_bytes=shared, spill_bytes=spill, scratch_bytes=spill)
    fact = SimpleNamespace(kernel="k", code=code)
    assert Lane(resolve(gpu))._verdict([fact], policy)["status"] == status


def test_scratch_counts_all_tensors_of_a_workspace():
    tensor = torch.empty(10, dtype=torch.float32)
    assert tensor_bytes(None) == 0 and tensor_bytes((tensor, [tensor, None])) == 80


@pytest.mark.slow
def test_helion_is_compiled_as_well():
    found = answers([DEFAULT, Policy(set=(("num_warps", 1_000),))], "helion/q_block")
    assert found["default"]["status"] == "ok"
    assert found["default num_warps=1000"]["status"] == "compile_error"
