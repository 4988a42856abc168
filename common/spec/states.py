"""Merging what two attentions over disjoint keys found for the same rows: the interface. The kernels are
`merge_states.py` of each DSL.

A state is `out` and its natural-log LSE, as kernels write them; cascades (a shared prefix and the rest) and context
parallelism (keys on several devices) make two. With w = exp(lse): out = (out_a w_a + out_b w_b) / (w_a + w_b).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from common.spec.paged_batch import DTYPES, SpecError


def check_states(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, out: Tensor, lse: Tensor | None) -> None:
    """Refuse a malformed merge before any launch; reads no device memory. Raises SpecError.

    out_a, out_b, out   [num_tokens, num_query_heads, value size] of one dtype, last dimension contiguous
    lse_a, lse_b, lse   float32 [num_tokens, num_query_heads], any strides; lse may be None
    `out` may be a state's own, for a thread reads a row before it writes it, but no part of it shifted. `lse` has
    memory of its own: every warp of a row reads the states', and one writes while others may not have read yet.
    """
    given = {"out_a": out_a, "out_b": out_b, "out": out, "lse_a": lse_a, "lse_b": lse_b}
    given |= {} if lse is None else {"lse": lse}
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise SpecError(name, type(tensor).__name__, "a torch.Tensor")
        _check(name, tensor, out_a)
    _check_writable("out", out)
    for other in (out_a, out_b):
        if out.numel() and out.data_ptr() == other.data_ptr() and out.stride() != other.stride():
            raise SpecError("out", "the memory of out_a or out_b with other strides", "its strides")
    if lse is not None:
        _check_writable("lse", lse)
        for name in ("out_a", "out_b", "out", "lse_a", "lse_b"):
            if _meet(lse, given[name]):
                raise SpecError("lse", f"the memory of {name}", "memory of its own")


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


def _check_writable(name: str, tensor: Tensor) -> None:
    """No two elements in one place."""
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise SpecError(name, f"strides {tensor.stride()}", "every element in a place of its own")


def _meet(a: Tensor, b: Tensor) -> bool:
    """Whether the spans of memory from first to last element meet, as those of two columns of one buffer do."""
    if not a.numel() or not b.numel():
        return False
    return a.data_ptr() < _end(b) and b.data_ptr() < _end(a)


def _end(tensor: Tensor) -> int:
    """Address behind the last element."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def merged(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, in float64: out and lse. An LSE of +inf counts as -inf, a state that saw no key; of two such
    states the result is 0 and -inf."""
    lses = [torch.where(lse == math.inf, -math.inf, lse.double()) for lse in (lse_a, lse_b)]
    lse = torch.logaddexp(*lses)
    top = torch.where(lse == -math.inf, 0.0, lse)
    weights = [torch.exp(one - top)[..., None] for one in lses]
    parts = [torch.where(w > 0, out.double() * w, 0.0) for out, w in zip((out_a, out_b), weights, strict=True)]
    return parts[0] + parts[1], lse
