"""Every own kernel on every named case, the large ones too, in the three dtypes, compiled for the GPU that is here.

A kernel runs with what the family's heuristics choose and, in the case's own dtype, with its DEFAULT too, unless that
outgrows this GPU's shared memory (64 rows by 64 keys of 512 lanes do); twice each, onto different poisons, with equal
bits. `-m own_dtype` is every (kernel, case) once; `-m large` wants 40 GB a process.
"""

import contextlib
import os
from dataclasses import replace

import pytest
import torch
from triton.runtime.errors import OutOfResources

from common.cases import CASES
from common.spec import DTYPES
from compare import registry
from kernel_cases import cell, chosen, conform

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

os.environ.setdefault("HELION_DISALLOW_AUTOTUNING", "1")  # a missing config is an error and never a search


def _cells():
    for case in CASES:
        for dtype in DTYPES:
            marks = [pytest.mark.own_dtype] * (dtype is case.dtype) + [pytest.mark.large] * case.large
            yield pytest.param(case, dtype, marks=marks, id=f"{case.name}-{str(dtype).removeprefix('torch.')}")


@pytest.mark.conformance
@pytest.mark.parametrize(("case", "dtype"), list(_cells()))
@pytest.mark.parametrize("kernel_id", (*registry.OWN, *registry.ABLATIONS))
def test_gpu_conformance(kernel_id, case, dtype, record_property):
    try:
        kernel = registry.load(kernel_id)
    except registry.Unavailable as reason:
        pytest.skip(str(reason))
    asked = replace(case, dtype=dtype)
    record_property("conformance", cell(kernel_id, asked))
    config = kernel.DEFAULT if case.refused else chosen(kernel_id, kernel, asked)
    outcome = conform(kernel, asked, config, "cuda", twice=True)
    if dtype is case.dtype and config != kernel.DEFAULT:
        with contextlib.suppress(OutOfResources):
            outcome = conform(kernel, asked, kernel.DEFAULT, "cuda", twice=True)
    record_property("conformance", cell(kernel_id, asked, outcome))
    if case.large:
        torch.cuda.empty_cache()  # the next case's pool of gigabytes has other sizes
