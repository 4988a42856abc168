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


INT = {"dtype": torch.int32}
BAD = [
    ("kernel", None, "kernel: found None"),
    ("q", torch.zeros(3, 4), "q: found shape (3, 4), allowed 3 dimensions"),
    ("k_cache", None, "k_cache: found NoneType, allowed a torch.Tensor"),
    ("v_cache", torch.zeros(1, 1, 2, 32), "v_cache: found (1, 1, 2, 32), allowed that of k_cache"),
    ("kv_indptr", torch.tensor([0, 2, 1], **INT), "kv_indptr: found [0, 2, 1], allowed 0 first, never less, at most"),
    ("kv_indptr", torch.tensor([0, 1, 99], **INT), "kv_indptr: found [0, 1, 99], allowed 0 first, never less, at most"),
    ("kv_indptr", torch.zeros(3), "kv_indptr: found torch.float32, allowed torch.int32 or torch.int64"),
    ("kv_indices", torch.full((40,), 99, **INT), "kv_indices: found [99], allowed 0 to"),
    ("kv_indices", torch.tensor(3), "kv_indices: found shape (), allowed 1 dimensions"),
    ("qo_indptr", torch.zeros(2, **INT), "qo_indptr: found 2 entries, allowed 3"),
    ("kv_last_page_len", torch.tensor([1, 17], **INT), "kv_last_page_len: found [17], allowed 1 to"),
    ("kv_last_page_len", 3, "kv_last_page_len: found int, allowed a torch.Tensor"),
]


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize(("name", "value", "message"), BAD, ids=lambda one: str(one)[:25])
def test_what_is_no_page_list_is_refused_by_its_name(name, value, message, page):
    """A list that went back, or past the pages, gave a result; others an error of torch."""
    batch = make_batch(((1, 9), (1, 20)), AttentionShape(4, 2, 32, 16, torch.bfloat16))
    given = {"kernel": "triton/auto"} | page_lists(batch, page)
    with pytest.raises(SpecError, match=re.escape(message)):
        attention(**given | {name: value})
