"""Merging what two attentions over disjoint keys found for the same rows: the interface. The kernels are
`merge_states.py` of each DSL.

A state is `out` and its natural-log LSE, as kernels write them; cascades (a shared prefix and the rest) and context
parallelism (keys on several devices) make two. With w = exp(lse): out = (out_a w_a + out_b w_b) / (w_a + w_b).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from common.spec import DTYPES, SpecError


def check_states(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, out: Tensor, lse: Tensor | None) -> None:
    """Refuse a malformed merge before any launch; reads no device memory. Raises SpecError.

    out_a, out_b, out   [num_tokens, num_query_heads, value size] of one dtype, last dimension contiguous
    lse_a, lse_b, lse   float32 [num_tokens, num_query_heads], any strides; lse may be None
    `out` and `lse` may be a state's own tensors, for a row is read before it is written, but no part of them shifted.
    """
    given = {"out_a": out_a, "out_b": out_b, "out": out, "lse_a": lse_a, "lse_b": lse_b}
    given |= {} if lse is None else {"lse": lse}
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise SpecError(name, type(tensor).__name__, "a torch.Tensor")
        _check(name, tensor, out_a)
    for name, tensor, inputs in (("out", out, (out_a, out_b)), ("lse", lse, (lse_a, lse_b))):
        if tensor is not None:
            _check_writable(name, tensor, inputs)
    if lse is not None and lse.numel() and lse.data_ptr() == out.data_ptr():
        raise SpecError("lse", "the memory of out", "memory of its own")


def _check(name: str, tensor: Tensor, like: Tensor) -> None:
    if like.dim() != 3:
        raise SpecError("out_a", f"shape {tuple(like.shape)}", "3 dimensions")
    wanted = tuple(like.shape[:2]) if name.startswith("lse") else tuple(like.shape)
    if tuple(tensor.shape) != wanted:
        raise SpecError(name, f"shape {tuple(tensor.shape)}", str(wanted))
    dtype = torch.float32 if name.startswith("lse") else like.dtype
    if tensor.dtype != dtype:
        raise SpecError(name, tensor.dtype, str(dtype))
    if like.dtype not in DTYPES:
        raise SpecError("out_a", like.dtype, ", ".join(map(str, DTYPES)))
    if like.is_meta:
        raise SpecError("out_a", "on meta", "a device with memory")
    if tensor.device != like.device:
        raise SpecError(name, f"on {tensor.device}", f"the device of out_a, {like.device}")
    if tensor.dim() == 3 and tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise SpecError(name, f"stride {tensor.stride(-1)} in the last dimension", "1")


def _check_writable(name: str, tensor: Tensor, inputs: tuple[Tensor, ...]) -> None:
    """No two elements in one place; and the memory of an input only as the input lies in it."""
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise SpecError(name, f"strides {tensor.stride()}", "every element in a place of its own")
    for other in inputs:
        if tensor.numel() and tensor.data_ptr() == other.data_ptr() and tensor.stride() != other.stride():
            raise SpecError(name, f"the memory of {name}_a or {name}_b with other strides", "its strides")


def merged(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, in float64: out and lse. An LSE of +inf counts as -inf, a state that saw no key; of two such
    states the result is 0 and -inf."""
    lses = [torch.where(lse == math.inf, -math.inf, lse.double()) for lse in (lse_a, lse_b)]
    lse = torch.logaddexp(*lses)
    top = torch.where(lse == -math.inf, 0.0, lse)
    weights = [torch.exp(one - top)[..., None] for one in lses]
    parts = [torch.where(w > 0, out.double() * w, 0.0) for out, w in zip((out_a, out_b), weights, strict=True)]
    return parts[0] + parts[1], lse
