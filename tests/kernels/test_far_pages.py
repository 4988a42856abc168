"""What lies further apart than 32 bits count elements is found: pages of one cache by every kernel, rows of an output.

Caches of int8, of 4 GiB each, of which nothing is touched but their pages.
"""

import os
from dataclasses import replace

import pytest
import torch

from calls import assert_right, launched
from common.cases.ask import Ask, with_scales
from common.cases.batch import make_batch
from common.spec import AttentionShape, Features
from common.spec.kernel import Capacity
from common.spec.metadata import cdiv
from compare.competitors import registry
from far_caches import apart

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 before triton is imported", allow_module_level=True)

SHAPE = AttentionShape(4, 2, 16, 16, torch.float32, kv_dtype=torch.int8)
RUNGS = [rung for rung in registry.RUNGS if rung != "auto"]


@pytest.mark.slow_in_helion
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_pages_beyond_32_bits_are_found(dsl, rung):
    """naive reads 16 bits and more alone: its last page begins at 2^31 elements, where an int32 is negative."""
    shape = SHAPE if rung != "naive" else replace(SHAPE, dtype=torch.float16, kv_dtype=None)
    batch, features = make_batch([(20, 50), (3, 70)], shape), Features()
    if shape.quantised:
        features = with_scales(features, batch, Ask(scales="tokens"), torch.Generator().manual_seed(1))
    page = 2 ** (32 if shape.quantised else 31) // (batch.key_cache.shape[0] - 1) + 1
    kernel = registry.load(f"{dsl}/{rung}")
    expected = launched(kernel, batch, features)[0]
    assert not expected.isnan().any()
    for size in (page, cdiv(page, 32) * 32):  # the latter a whole number of rows
        caches = {name: apart(getattr(batch, name), size, 32) for name in ("key_cache", "value_cache")}
        assert torch.equal(launched(kernel, batch.replace(**caches), features)[0], expected)


@pytest.mark.parametrize(
    "kernel_id", ["triton/parallel_softmax", pytest.param("helion/parallel_softmax", marks=pytest.mark.slow)]
)
def test_rows_of_a_wide_buffer_are_written_by_the_reduction(kernel_id):
    """5 GB of addresses, of which five rows are touched: an output that is one layer of a wide buffer."""
    row = 2**29 + 64  # elements from token to token: the fifth begins behind 2^31
    shape = AttentionShape(4, 2, 16, 16, torch.float16)
    kernel, batch = registry.load(kernel_id), make_batch([(5, 150)], shape)
    out = torch.empty(4 * row + 64, dtype=torch.float16).as_strided((5, 4, 16), (row, 16, 1))
    lse = torch.empty(5, 4)
    assert kernel.DEFAULT.num_segments > 1
    scratch = kernel.workspace(shape, Capacity.of(batch), kernel.DEFAULT)
    kernel.launch(batch, Features(), out, kernel.DEFAULT, scratch, lse=lse)
    assert_right(out.contiguous(), lse, batch, Features(), kernel.CONTRACT)
