"""A Triton kernel in the manner of the family (a bundle of features, strides as tuples) that compiles in 1 s.

out = (Q K^T) K over the first rows of Q and of the cache: two matrix products, no attention.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from common.spec.kernel import Precision

SUPPORTS = frozenset({"causal", "sinks"})
CONTRACT = Precision()


@dataclass(frozen=True)
class Config:
    """waves_per_eu is known to AMD's compiler alone, maxnreg to NVIDIA's."""

    rows: int = 32
    num_warps: int = 4
    waves_per_eu: int = 0
    maxnreg: int | None = None


DEFAULT = Config()


class Bundle(NamedTuple):
    window: int | None
    sinks: torch.Tensor | None


@triton.jit
def product_kernel(q_ptr, k_ptr, out_ptr, scale, f, q_strides, k_strides, ROWS: tl.constexpr, HEAD: tl.constexpr):
    row = tl.arange(0, ROWS)
    lane = tl.arange(0, HEAD)
    q = tl.load(q_ptr + row[:, None] * q_strides[0] + lane[None, :])
    k = tl.load(k_ptr + row[:, None] * k_strides[1] + lane[None, :])
    s = tl.dot(q, tl.trans(k)) * scale
    if f.sinks is not None:
        s += tl.load(f.sinks)
    out = tl.dot(s.to(k.dtype), k)
    tl.store(out_ptr + row[:, None] * q_strides[0] + lane[None, :], out.to(k.dtype))


def workspace(shape, capacity, config):
    return None


def launch(batch, features, out, config, workspace, *, lse=None):
    product_kernel[(1,)](
        batch.query,
        batch.key_cache,
        out,
        batch.softmax_scale,
        Bundle(None, features.sinks),
        batch.query.stride(),
        batch.key_cache.stride(),
        ROWS=config.rows,
        HEAD=batch.query.shape[2],
        num_warps=config.num_warps,
        waves_per_eu=config.waves_per_eu,
        maxnreg=config.maxnreg,
    )
