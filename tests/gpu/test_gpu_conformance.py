"""Every own kernel on every named case, compiled for the GPU that is here.

Every day those of `on_gpu_daily` are met, each case in its own dtype. The others are slow: all cases in three dtypes,
and the large ones. `-m own_dtype` is every (kernel, case) once; `-m large` wants 40 GB a process.
"""

import os
from dataclasses import replace
from itertools import product

import pytest
import torch

from common.cases.named import CASES
from common.spec.paged_batch import DTYPES
from compare.competitors import registry
from conformance_cells import on_gpu_daily
from kernel_cases import cell, here, meet

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

os.environ.setdefault("HELION_DISALLOW_AUTOTUNING", "1")  # a missing config is an error and never a search


def _cells():
    for kernel_id, case, dtype in product((*registry.OWN, *registry.ABLATIONS), CASES, DTYPES):
        own = dtype is case.dtype
        daily = own and (kernel_id, case.name) in on_gpu_daily()
        marks = [pytest.mark.conformance if daily else pytest.mark.slow]
        marks += [pytest.mark.own_dtype] * own + [pytest.mark.large] * case.large
        name = f"{kernel_id}-{case.name}-{str(dtype).removeprefix('torch.')}"
        yield pytest.param(kernel_id, case, dtype, marks=marks, id=name)


@pytest.mark.parametrize(("kernel_id", "case", "dtype"), list(_cells()))
def test_gpu_conformance(kernel_id, case, dtype, record_property):
    here(kernel_id)
    asked = replace(case, dtype=dtype)
    record_property("conformance", cell(kernel_id, asked))
    record_property("conformance", cell(kernel_id, asked, meet(kernel_id, asked)))
    if case.large:
        torch.cuda.empty_cache()  # the next case's pool of gigabytes has other sizes
