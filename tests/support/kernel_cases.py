"""Launch a kernel on a named case and judge everything that it did; shared by the CPU and the GPU conformance tests."""

import contextlib
import math
from typing import Any

import pytest
import torch

from common import gpus
from common.cases.named import BY_NAME, Case, config_for
from common.cases.trial import Trial
from common.oracle.integrity import same_bits
from common.spec import SpecError, UnsupportedFeature, refusals
from common.spec.metadata import BatchStats
from compare.competitors import registry

OTHER = 7.0  # the second poison: what is not written shows as a difference of bits


def launch(kernel: Any, case: Case, config: Any, device: torch.device | str, poison: float) -> torch.Tensor:
    """One judged launch; the output. Raises SpecError where the case or the kernel refuses."""
    trial = Trial.of(case, device, poison)
    trial.launch(kernel, config_for(case, config))
    found = trial.judge(kernel.CONTRACT)
    assert found.verdict.ok, found.verdict.reason
    assert found.damage == []
    return trial.out[: int(trial.batch.query_start_loc[-1])]


def here(kernel_id: str) -> Any:
    """The kernel; where it cannot be imported the test is skipped with the reason."""
    try:
        return registry.load(kernel_id)
    except registry.Unavailable as reason:
        pytest.skip(str(reason))


def lacking(kernel: Any, case: Case) -> set[str]:
    """What the case asks of a kernel beyond its SUPPORTS."""
    return (case.asked | {"lse"}) - kernel.SUPPORTS


def conform(
    kernel: Any, case: Case, config: Any, device: torch.device | str = "cpu", *, twice: bool = False
) -> dict[str, str]:
    """The kernel computes the case, or refuses it by the name of what it does not do; which of the two.

    twice: a second launch onto another poison must give the same bits.
    """
    if case.refused:
        with pytest.raises(SpecError) as refusal:
            launch(kernel, case, config, device, math.nan)
        assert refusal.value.argument == case.refused
        return {"outcome": "refused", "argument": case.refused, "reason": str(refusal.value)}
    if error := refusals.refusal(case.fp8, refusals.target_of(torch.device(device))):
        with pytest.raises(SpecError) as refusal:
            launch(kernel, case, config, device, math.nan)
        assert str(refusal.value) == str(error)
        return {"outcome": "refused", "argument": error.argument, "reason": str(error)}
    if missing := lacking(kernel, case):
        with pytest.raises(UnsupportedFeature) as refusal:
            launch(kernel, case, config, device, math.nan)
        assert refusal.value.argument in missing
        return {"outcome": "unsupported", "argument": refusal.value.argument, "reason": str(refusal.value)}
    first = launch(kernel, case, config, device, math.nan)
    if twice:
        assert same_bits(first, launch(kernel, case, config, device, OTHER))
    return {"outcome": "supported"}


def chosen(kernel_id: str, kernel: Any, case: Case) -> Any:
    """What the family's heuristics choose for a case on the GPU here, whose shared memory a DEFAULT may outgrow."""
    stats = BatchStats.of(case.lens)
    return registry.default_config(kernel_id, kernel, case.shape, stats, gpus.detect(), needs=case.asked)[0]


def meet(kernel_id: str, case: Case) -> dict[str, str]:
    """On the GPU here: two judged launches onto different poisons, with equal bits, of what the heuristics choose.

    A named case in its own dtype meets the kernel's DEFAULT too, unless that outgrows the GPU's shared memory, as 64
    rows by 64 keys of 512 lanes do. Raises what conform raises.
    """
    from triton.runtime.errors import OutOfResources

    kernel = registry.load(kernel_id)
    config = kernel.DEFAULT if case.refused else chosen(kernel_id, kernel, case)
    outcome = conform(kernel, case, config, "cuda", twice=True)
    named = BY_NAME.get(case.name)
    if named and case.dtype is named.dtype and config != kernel.DEFAULT:
        with contextlib.suppress(OutOfResources):
            outcome = conform(kernel, case, kernel.DEFAULT, "cuda", twice=True)
    return outcome


def cell(kernel_id: str, case: Case, outcome: dict[str, str] | None = None) -> dict[str, str]:
    """What a conformance test tells compare.studies.capability, by record_property; without an outcome, that it
    began."""
    dtype = str(case.dtype).removeprefix("torch.")
    return {"kernel": kernel_id, "case": case.name, "dtype": dtype} | (outcome or {"outcome": "failed"})
