"""Page lists of FlashInfer's kind: the answer is the batch's, whatever the page, the lengths and the kernel."""

import math
import re

import pytest
import torch

from common.cases.batch import make_batch
from common.engines.flashinfer import attention
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features, SpecError
from common.spec.precision import Precision
from page_lists import page_lists

DECODES, MIXED = ((1, 20), (1, 0), (1, 37), (1, 16)), ((5, 20), (1, 3), (0, 0), (7, 37), (5, 2))


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("lens", [DECODES, MIXED, ((1, 0), (1, 0))], ids=["decodes", "mixed", "empty"])
def test_the_output_is_right_and_the_lse_has_base_2(lens, page):
    batch = make_batch(lens, AttentionShape(4, 2, 32, 16, torch.bfloat16), seed=3)
    out, lse = attention("triton/auto", **page_lists(batch, page))
    expected = reference(batch, Features())
    verdict = check(out, lse * math.log(2.0), batch, Features(), Precision(), expected)
    assert verdict.ok, verdict.reason
    assert check(out, lse, batch, Features(), Precision(), expected).ok == (max(keys for _, keys in lens) == 0)


def test_a_kernel_that_does_not_choose_is_refused():
    batch = make_batch(((1, 9),), AttentionShape(4, 2, 32, 16, torch.bfloat16))
    with pytest.raises(SpecError, match=re.escape("kernel: found 'triton/naive', allowed triton/auto, triton/native")):
        attention("triton/naive", **page_lists(batch, 16))
