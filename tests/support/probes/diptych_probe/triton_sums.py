"""out = Q K as a sum of element-wise products, over the middle axis or the last one: does Triton see the product?"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from common.spec.kernel import Precision

SUPPORTS = frozenset({"causal"})
CONTRACT = Precision()


@dataclass(frozen=True)
class Config:
    """middle: the products are [rows, keys, lanes] and summed over keys; else [rows, lanes, keys]."""

    middle: bool = True


DEFAULT = Config()


@triton.jit
def sums_kernel(q_ptr, k_ptr, out_ptr, q_stride, k_stride, SIZE: tl.constexpr, MIDDLE: tl.constexpr):
    at = tl.arange(0, SIZE)
    q = tl.load(q_ptr + at[:, None] * q_stride + at[None, :])
    k = tl.load(k_ptr + at[:, None] * k_stride + at[None, :])
    if MIDDLE:
        out = tl.sum(tl.expand_dims(q, 2) * tl.expand_dims(k, 0), 1)
    else:
        out = tl.sum(tl.expand_dims(q, 1) * tl.expand_dims(tl.trans(k), 0), 2)
    tl.store(out_ptr + at[:, None] * q_stride + at[None, :], out)


def workspace(shape, capacity, config):
    return None


def launch(batch, features, out, config, workspace, *, lse: torch.Tensor | None = None):
    sizes = batch.query.stride(0), batch.key_cache.stride(1)
    sums_kernel[(1,)](batch.query, batch.key_cache, out, *sizes, SIZE=16, MIDDLE=config.middle)
