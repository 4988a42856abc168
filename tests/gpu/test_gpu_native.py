"""native.sm90_prefill on every named case with features it has, its head made of several sizes; others are refused.

Every day it meets the cases of `gpu_daily` in one size each, in turn.
"""

from dataclasses import replace

import pytest
import torch

from calls import assert_right, taking, tensors
from common.cases import layouts
from common.cases.batch import make_batch
from common.cases.named import CASES
from common.gpus import detect
from common.serving.call import PagedAttention
from common.spec import AttentionShape, Features, UnsupportedFeature, refusals
from common.spec.metadata import BatchStats
from compare.competitors import registry
from conformance_cells import gpu_daily
from dsl_triton.native import auto as native_auto
from kernel_cases import conform

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("no sm_90 here", allow_module_level=True)

KERNEL_ID = "triton/native.sm90_prefill"
HALVES = torch.bfloat16, torch.float16
SIZES = [(size, HALVES[0]) for size in (40, 64, 96, 128, 256, 512)] + [
    (size, HALVES[1]) for size in (80, 128, 192, 320)
]
BEYOND_FP16 = (layouts.huge_query, layouts.tiny_query)
# over a cache of 8 bits; beside an fp8 query the dtype is the output's
NARROW_SIZES = [(size, dtype) for size in (64, 96, 128) for dtype in HALVES]


def served(case):
    native = registry.load(KERNEL_ID)
    by_boxes = case.block_size % 8 == 0 and case.arrange is not layouts.unaligned  # TMA: rows at multiples of 16 bytes
    by_token = case.ask.scales == "tokens"
    compiled = refusals.refusal(case.fp8, "sm_90") is None
    return by_boxes and compiled and not by_token and not case.refused and not case.asked - native.SUPPORTS


def sized():
    """Each case that it serves, in each size. The kernel and size come first in an id: they are compiled in one process
    (process_groups.py)."""
    for number, case in enumerate(filter(served, CASES)):
        sizes = NARROW_SIZES if case.kv_dtype or case.fp8_query else SIZES
        sizes = [(size, dtype) for size, dtype in sizes if dtype == torch.bfloat16 or case.arrange not in BEYOND_FP16]
        for turn, (size, dtype) in enumerate(sizes):
            daily = case.name in gpu_daily() and turn == number % len(sizes)
            name = f"{KERNEL_ID}.{size}-{case.name}-{str(dtype).removeprefix('torch.')}"
            yield pytest.param(case, size, dtype, id=name, marks=[] if daily else [pytest.mark.slow])


@pytest.mark.parametrize(("case", "size", "dtype"), list(sized()))
def test_gpu_native_conforms(case, size, dtype):
    native = registry.load(KERNEL_ID)
    stats = BatchStats.of(case.lens)
    chosen, _ = registry.default_config(KERNEL_ID, native, case.shape, stats, detect())
    split = replace(native.DEFAULT, prefill=replace(native.DEFAULT.prefill, num_segments=3))
    for config in {chosen, native.DEFAULT, split, replace(native.DEFAULT, together=True)}:
        outcome = conform(native, replace(case, dtype=dtype, head_size=size), config, "cuda", twice=True)
        assert outcome["outcome"] == "supported"


@pytest.mark.parametrize("case", [c for c in CASES if not served(c) and not c.refused], ids=lambda case: case.name)
def test_gpu_native_refuses_by_name(case):
    native = registry.load(KERNEL_ID)
    try:
        conform(native, case, native.DEFAULT, "cuda")
    except UnsupportedFeature as refusal:
        assert refusal.kernel == KERNEL_ID


@pytest.mark.parametrize("odd", [False, True], ids=["boxed", "unaligned"])
def test_gpu_native_calls_are_kept_and_right(monkeypatch, odd):
    """The public call: descriptors and a second stream are repeated; caches without boxes go to `split`."""
    shape = AttentionShape(16, 2, 128, 16, torch.bfloat16)
    call, made = PagedAttention(native_auto.FAMILY), taking(monkeypatch, native_auto.FAMILY, native_auto.KERNEL)
    for seed in range(3):
        batch = make_batch([(1, 2500), (200, 2200), (3, 3), (0, 0), (1, 16)], shape, device="cuda", seed=seed)
        if odd:
            moved = torch.empty(batch.key_cache.numel() + 1, dtype=shape.dtype, device="cuda")[1:]
            batch = batch.replace(key_cache=moved.view_as(batch.key_cache).copy_(batch.key_cache))
        out = call(**tensors(batch), max_query_len=200, max_seq_len=2500, num_decodes=2)
        assert_right(out, None, batch, Features(), native_auto.CONTRACT)
    kept, known = call.kept
    assert kept == known == 1 and made
