"""Merging what two attentions over disjoint keys found for the same rows: the interface. The kernels are
`merge_states.py` of each DSL.

A state is `out` and its natural-log LSE, as kernels write them; cascades (a shared prefix and the rest) and context
parallelism (keys on several devices) make two. With w = exp(lse): out = (out_a w_a + out_b w_b) / (w_a + w_b).
"""

import math

import torch
from torch import Tensor

from common.spec.paged_batch import DTYPES, SpecError
from common.spec.refusals import expect_stored, expect_writable


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
        expect_stored(tensor, name)
        _check(name, tensor, out_a)
    own = [t for t in (out_a, out_b) if t.data_ptr() == out.data_ptr() and t.stride() == out.stride()]
    read = ("out_a", "lse_a", "out_b", "lse_b")
    expect_writable(out, "out", {name: given[name] for name in read if not any(given[name] is one for one in own)})
    if lse is not None:
        expect_writable(lse, "lse", {name: given[name] for name in ("out", *read)})


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
    if tensor.device != like.device:
        raise SpecError(name, f"on {tensor.device}", f"the device of out_a, {like.device}")
    if tensor.dim() == 3 and tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise SpecError(name, f"stride {tensor.stride(-1)} in the last dimension", "1")


def merged(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, in float64: out and lse. An LSE of +inf counts as -inf, a state that saw nothing; of two such
    states the result is 0 and -inf. One of a sink alone has the sink's logit as LSE, and `out` 0."""
    lses = [torch.where(lse == math.inf, -math.inf, lse.double()) for lse in (lse_a, lse_b)]
    lse = torch.logaddexp(*lses)
    top = torch.where(lse == -math.inf, 0.0, lse)
    weights = [torch.exp(one - top)[..., None] for one in lses]
    parts = [torch.where(w > 0, out.double() * w, 0.0) for out, w in zip((out_a, out_b), weights, strict=True)]
    return parts[0] + parts[1], lse
