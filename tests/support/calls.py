"""What a call is given of a batch, and that what it gave is right; that a case is one to be called with."""

import math
from typing import Any

import torch

from common.cases.case import Case, build, outputs
from common.oracle.integrity import Guards
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.serving.arguments import HINTS
from common.spec import Features, PagedBatch
from common.spec.kernel import Capacity
from common.spec.precision import Precision
from common.spec.validation import validate, validate_output

TENSORS = ("query", "key_cache", "value_cache", "block_table", "query_start_loc", "seq_lens")


def tensors(batch: PagedBatch) -> dict[str, torch.Tensor]:
    return {name: getattr(batch, name) for name in TENSORS}


def exact(batch: Any) -> dict[str, int]:
    """The hints, each as it is of this batch, or of a row of a suite."""
    return {name: getattr(batch.stats, name) for name in HINTS}


def unwritten(batch: PagedBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """`out` and `lse`, of NaN."""
    return torch.full_like(batch.query, math.nan), torch.full(batch.query.shape[:2], math.nan)


def bytes_of(tensor: torch.Tensor) -> list[int]:
    """The address of each byte of each element."""
    at = [0]
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        at = [a + i * stride for a in at for i in range(size)]
    return [tensor.data_ptr() + a * tensor.itemsize + byte for a in at for byte in range(tensor.itemsize)]


def assert_right(
    out: torch.Tensor, lse: torch.Tensor | None, batch: PagedBatch, features: Features, contract: Precision,
    *, structured: bool = False,
) -> None:  # fmt: skip
    verdict = check(out, lse, batch, features, contract, reference(batch, features), structured=structured)
    assert verdict.ok, verdict.reason


def launched(
    kernel: Any,
    batch: PagedBatch,
    features: Features,
    config: Any = None,
    workspace: Any = None,
    poison: float = math.nan,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`out` and `lse` of one launch, `poison` where it wrote nothing. None: the DEFAULT, a workspace of the batch."""
    config, (out, lse) = config or kernel.DEFAULT, (one.fill_(poison) for one in unwritten(batch))
    workspace = workspace or kernel.workspace(batch.shape, Capacity.of(batch), config)
    kernel.launch(batch, features, out, config, workspace, lse=lse)
    return out, lse


def judged(
    kernel: Any, batch: PagedBatch, features: Features, config: Any = None, workspace: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `launched` gives, which must be right."""
    found = launched(kernel, batch, features, config, workspace)
    assert_right(*found, batch, features, kernel.CONTRACT)
    return found


def taking(monkeypatch: Any, family: Any, kernel: str) -> list[str]:
    """Make every choice of a family that kernel's; returns the kernels of the choices that were made, as they come."""
    made, first = [], family.named

    def choose(shape: Any, stats: Any, gpu: Any, *_: Any, **__: Any) -> Any:
        made.append(kernel)
        return first(kernel, shape, stats, gpu, "learned")

    monkeypatch.setattr(family, "choose", choose)
    return made


def ensure_well_formed(case: Case) -> None:
    """Its batch is valid, of its shape, and lies with its outputs between guards."""
    guards = Guards()
    batch, features = build(case, guards=guards)
    validate(batch, features)
    assert batch.shape == case.shape, case
    validate_output(batch, *outputs(case, batch, guards), features)
    assert guards.violated() == [], case
