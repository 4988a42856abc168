"""A workspace too small for the segments that a config asks for is refused by name, before anything is written."""

import dataclasses
from typing import Any

import pytest
import torch

from common.cases.batch import make_batch
from common.spec import AttentionShape, Features, SpecError
from common.spec.kernel import Capacity
from compare.competitors import registry

SHAPE = AttentionShape(4, 2, 16, 16, torch.float32)
LENS = [(1, 200), (3, 150)]
RUNGS = ("parallel_softmax", "adjustable_tile", "unpaged")
KERNELS = [f"{dsl}/{name}" for dsl in ("triton", "helion") for name in RUNGS]
SHORT = {
    "tokens": (SHAPE, 3, 4),
    "segments": (SHAPE, 4, 3),
    "heads": (dataclasses.replace(SHAPE, num_query_heads=2), 4, 4),
    "lanes": (dataclasses.replace(SHAPE, head_size=8), 4, 4),
}


def in_segments(kernel: Any, count: int) -> Any:
    """The kernel's default config with so many segments for short queries."""
    if hasattr(kernel.DEFAULT, "num_segments"):
        return dataclasses.replace(kernel.DEFAULT, num_segments=count)
    return dataclasses.replace(kernel.DEFAULT, decode=dataclasses.replace(kernel.DEFAULT.decode, num_segments=count))


@pytest.mark.parametrize("short", SHORT)
@pytest.mark.parametrize("kernel_id", KERNELS)
def test_a_scratch_too_small_is_refused_before_a_launch(kernel_id: str, short: str) -> None:
    kernel, batch = registry.load(kernel_id), make_batch(LENS, SHAPE)
    shape, tokens, segments = SHORT[short]
    capacity = dataclasses.replace(Capacity.of(batch), num_tokens=tokens)
    workspace = kernel.workspace(shape, capacity, in_segments(kernel, segments))
    out = torch.full_like(batch.query, float("nan"))
    with pytest.raises(SpecError, match=r"at least \[4, 4, 4, 16\]") as refusal:
        kernel.launch(batch, Features(), out, in_segments(kernel, 4), workspace)
    assert refusal.value.argument == "workspace" and bool(out.isnan().all())
