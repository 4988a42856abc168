"""The random cases of a calibration: classes of shapes and features, and lengths."""

from __future__ import annotations

import math
import random

import torch

from common.spec import AttentionShape
from common.spec.metadata import Lens
from compare.workloads import Ask

BF16, FP16 = torch.bfloat16, torch.float16

# What a kernel is compiled for; cases differ in lengths and values. The segments of parallel_softmax follow the
# lengths, so it is compiled a few times per class: configs are asked for on the grid of `auto`, which has few lengths.
CLASSES = (
    (AttentionShape(32, 8, 128, 16, BF16), Ask()),
    (AttentionShape(32, 8, 128, 16, FP16), Ask()),
    (AttentionShape(28, 4, 128, 16, BF16), Ask()),
    (AttentionShape(8, 8, 64, 16, FP16), Ask()),
    (AttentionShape(8, 8, 80, 16, BF16), Ask()),
    (AttentionShape(16, 8, 256, 32, FP16), Ask()),
    (AttentionShape(10, 2, 128, 64, BF16), Ask(sliding_window=128)),
    (AttentionShape(8, 2, 64, 48, FP16), Ask(sliding_window=33)),
    (AttentionShape(16, 2, 128, 16, BF16), Ask(softcap=30.0)),
    (AttentionShape(16, 2, 64, 16, FP16), Ask(sliding_window=128, sinks=True)),
    (AttentionShape(16, 1, 128, 128, BF16), Ask(sinks=True)),
    (AttentionShape(32, 8, 128, 16, BF16), Ask(causal=False)),
)


def random_lens(rng: random.Random, longest: int) -> list[tuple[int, int]]:
    """2 to 7 sequences: decodes, speculative tokens and chunks of prompts; contexts spread evenly in the logarithm."""
    lens = []
    for _ in range(rng.randint(2, 7)):
        query_len = min(rng.choice([1, 1, 1, rng.randint(2, 9), rng.randint(10, 130)]), longest // 2)
        context_len = int(math.exp(rng.uniform(0.0, math.log(longest - query_len)))) - 1
        lens.append((query_len, query_len + context_len))
    return lens


def case_name(seed: int, lens: Lens, shape: AttentionShape) -> str:
    sizes = f"{shape.num_query_heads}:{shape.num_kv_heads}:{shape.head_size} page {shape.block_size}"
    return f"case {seed} ({'_'.join(f'q{q}s{s}' for q, s in lens)}, {sizes}, {str(shape.dtype)[6:]})"
