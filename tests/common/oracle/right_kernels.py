"""Random batches, and how the emulation is cut under each precision."""

import math
import random

import torch

from common.mutants.emulation import Schedule
from common.spec import AttentionShape, Features
from common.spec.precision import Precision

RULES = ("element", "row", "worst_case", "lse")


def schedule(contract: Precision, turn: int) -> Schedule:
    tiles = (64, 128) if contract.sums != torch.float32 else (16, 32, 64, 128)
    return Schedule(tiles[turn % len(tiles)], (1, 2, 5)[turn % 3], contract.probabilities)


def random_case(seed: int):
    """(lens, shape, features, schedule): a handful of sequences, one in 25 of them up to 2,500 keys long."""
    rng = random.Random(seed)
    dtype = rng.choice([torch.float16, torch.bfloat16, torch.bfloat16, torch.float32])
    kv_heads, group = rng.choice([1, 2, 3]), rng.choice([1, 2, 3, 4, 5, 8])
    shape = AttentionShape(
        kv_heads * group, kv_heads, rng.choice([32, 64, 80, 128, 256]), rng.choice([8, 16, 24]), dtype
    )
    lens = []
    for _ in range(rng.randint(1, 4)):
        query_len = rng.choice([1, 1, 1, 2, 4, 17, 33])
        context_len = rng.choice([0, 1, 15, 16, 31, rng.randint(0, 200)])
        if rng.random() < 0.04:
            context_len = rng.randint(200, 2500)
        lens.append((query_len, query_len + context_len))
    window = rng.choice([None, None, 1, 7, 33, 128])
    sees = min(max(seq_len for _, seq_len in lens), window or 10**9)
    sinks = torch.randn(shape.num_query_heads, generator=torch.Generator().manual_seed(seed)) + math.log(sees)
    features = Features(rng.random() < 0.8, window, rng.choice([None, None, 5.0, 30.0]), rng.choice([None, sinks]))
    dot = rng.choice(["ieee", "tf32"]) if dtype == torch.float32 else "ieee"
    return lens, shape, features, Schedule(rng.choice([16, 32, 64, 128]), rng.choice([1, 2, 3, 5]), dot=dot)
