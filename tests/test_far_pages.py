"""Pages of one cache may lie further apart than 32 bits count elements: the kernels of both DSLs find them.

A cache of int8 of 4 GiB, of which nothing is touched but its pages.
"""

import dataclasses
import os

import pytest
import torch

from common.batch import make_batch
from common.case_features import with_scales
from common.kernel import Capacity
from common.spec import AttentionShape, Features
from compare import registry

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 before triton is imported", allow_module_level=True)

SHAPE = AttentionShape(4, 2, 16, 16, torch.float32, kv_dtype=torch.int8)
RUNGS = [rung for rung in registry.RUNGS if rung not in ("naive", "auto")]  # naive reads 16 bits and more alone


def spread(caches, distance):
    """The caches in one tensor, page by page so many elements apart."""
    shape, inside, size = caches[0].shape, caches[0].stride()[1:], caches[0][0].numel()
    memory = torch.empty(distance * (shape[0] - 1) + 2 * size, dtype=caches[0].dtype)
    for at, cache in enumerate(caches):
        yield memory.as_strided(shape, (distance, *inside), at * size).copy_(cache)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("dsl", ["triton", pytest.param("helion", marks=pytest.mark.filterwarnings("ignore"))])
def test_pages_beyond_32_bits_are_found(dsl, rung):
    batch = make_batch([(20, 50), (3, 70)], SHAPE)
    features = with_scales(Features(), batch, "tokens", 1.0, torch.Generator().manual_seed(1))
    keys, values = spread((batch.key_cache, batch.value_cache), 2**32 // (batch.key_cache.shape[0] - 1) + 1)
    moved = dataclasses.replace(batch, key_cache=keys, value_cache=values)
    kernel, found = registry.load(f"{dsl}/{rung}"), []
    for one in (batch, moved):
        out = torch.full_like(batch.query, float("nan"))
        scratch = kernel.workspace(SHAPE, Capacity.of(one), kernel.DEFAULT)
        kernel.launch(one, features, out, kernel.DEFAULT, scratch)
        found.append(out)
    assert torch.equal(*found) and not found[0].isnan().any()
