"""Random batches, and right kernels of every precision that a contract may name: the emulation, rounding where such a
kernel rounds."""

from __future__ import annotations

import math
import random

import torch

from common.mutants.emulation import Edits, Schedule
from common.spec import AttentionShape, Features
from common.spec.precision import Precision

RULES = ("element", "row", "worst_case", "lse")
# 2^f over [0, 1], degree 3 with the smallest relative error; FlashAttention 4 has it in flash_attn/cute/utils.py
POLYNOMIAL = (0.077119089663028717, 0.227564394474029541, 0.695146143436431885, 1.0)
FAST_TANH = 1.113e-5  # of MUFU.TANH, by all inputs: forums.developer.nvidia.com/t/173291


def exp2_by_polynomial(x):
    whole, result = x.floor(), torch.zeros_like(x)
    part = x - whole
    for coefficient in POLYNOMIAL:
        result = result * part + coefficient
    return torch.where(x > -126.0, torch.ldexp(result, whole.clamp(min=-126.0)), 0.0)


def cut(x):
    """tf32 as hardware may do it: the low 13 bits are not looked at."""
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


class Rounded(Edits):
    """The emulation under a contract, at its worst where that leaves a choice."""

    def __init__(self, contract: Precision) -> None:
        self.contract = contract

    def operand(self, at, x):
        return cut(x) if self.contract.dot == "tf32" and at.batch.query.dtype == torch.float32 else x

    def exp2(self, at, x):
        return exp2_by_polynomial(x) if self.contract.exp2 == "polynomial" else torch.exp2(x)

    def score(self, at, logits, softcap):
        right = super().score(at, logits, softcap)
        wave = 1.0 + FAST_TANH * torch.sin(1e4 * logits)
        return right * wave if softcap is not None and self.contract.tanh == "fast" else right

    def total(self, at, l):
        return l.to(self.contract.sums).float()


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
