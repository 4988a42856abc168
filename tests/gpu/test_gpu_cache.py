"""New K and V in their pages on the GPU: every dtype, slots past 2^31 elements, one capture for other slots."""

from dataclasses import replace

import pytest
import torch

from cache_cases import WRITES, WriteCase, build, judge
from common.oracle.cache import written
from common.oracle.integrity import Guards, same_bits


@pytest.fixture(params=["triton", "helion"])
def kernel(request):
    return pytest.importorskip(f"dsl_{request.param}.cache", exc_type=ImportError)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32], ids=["float16", "bfloat16", "float32"]
)
@pytest.mark.parametrize("case", WRITES, ids=lambda case: case.name)
def test_gpu_cache(kernel, case, dtype):
    judge(kernel, case, dtype, "cuda")


def test_pages_beyond_31_bits_of_elements_are_found(kernel):
    """The last slots of a pool of 4.3 GB each for K and V."""
    write = build(WriteCase("", 40, heads=8, head_size=128, pages=8), torch.float16, "cuda", Guards("cuda"))
    blocks = 2**31 // (16 * 8 * 128) + 2
    pool = [torch.full((blocks, 16, 8, 128), float("nan"), dtype=torch.float16, device="cuda") for _ in range(2)]
    last = blocks * 16 - 1 - torch.arange(40, device="cuda")
    kernel.launch(replace(write, key_cache=pool[0], value_cache=pool[1], slot_mapping=last))
    for cache, new in zip(pool, (write.key, write.value), strict=True):
        assert torch.equal(cache.view(-1, 8, 128)[last], new)
        assert bool(cache[:-3].isnan().all())


def test_one_capture_writes_every_step(kernel):
    write = build(WRITES[2], torch.bfloat16, "cuda", Guards("cuda"))
    kernel.launch(write)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.launch(write)
    for step in range(3):
        write.key.normal_()
        write.slot_mapping.copy_(torch.randperm(write.num_slots, device="cuda")[: write.num_tokens])
        write.slot_mapping[: 5 * step] = -1
        expected = written(write)
        graph.replay()
        torch.cuda.synchronize()
        assert same_bits(write.key_cache, expected[0]) and same_bits(write.value_cache, expected[1])
