"""Pages of one cache may lie further apart than 32 bits count elements: the kernels of both DSLs find them.

Caches of int8, of 4 GiB each, of which nothing is touched but their pages.
"""

import os

import pytest
import torch

from common.cases.ask import Ask, with_scales
from common.cases.batch import make_batch
from common.spec import AttentionShape, Features
from common.spec.kernel import Capacity
from compare.competitors import registry
from far_caches import apart

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 before triton is imported", allow_module_level=True)

SHAPE = AttentionShape(4, 2, 16, 16, torch.float32, kv_dtype=torch.int8)
RUNGS = [rung for rung in registry.RUNGS if rung not in ("naive", "auto")]  # naive reads 16 bits and more alone


@pytest.mark.slow_in_helion
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_pages_beyond_32_bits_are_found(dsl, rung):
    batch = make_batch([(20, 50), (3, 70)], SHAPE)
    features = with_scales(Features(), batch, Ask(scales="tokens"), torch.Generator().manual_seed(1))
    page = 2**32 // (batch.key_cache.shape[0] - 1) + 1
    moved = batch.replace(key_cache=apart(batch.key_cache, page, 32), value_cache=apart(batch.value_cache, page, 32))
    kernel, found = registry.load(f"{dsl}/{rung}"), []
    for one in (batch, moved):
        out = torch.full_like(batch.query, float("nan"))
        scratch = kernel.workspace(SHAPE, Capacity.of(one), kernel.DEFAULT)
        kernel.launch(one, features, out, kernel.DEFAULT, scratch)
        found.append(out)
    assert torch.equal(*found) and not found[0].isnan().any()
