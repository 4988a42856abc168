"""transformers' attention interface: call `register()`, then attn_implementation="diptych".

    from common.engines.transformers import register
    register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="diptych")

Continuous batching of transformers 5.24 takes "sdpa", "paged|eager" and its flash implementations alone, by their
names: `register(paged=True)` puts ours in the place of "paged|eager", for the whole process. transformers hands over
keys and values without pages: each call lays them into pages of 16, without waiting for the device but where a batch is
padded. Inference alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from common.engines.options import Options, kernel_of
from common.serving.call import PagedAttention
from common.spec import Features, SpecError, UnsupportedFeature
from common.spec.metadata import cdiv

NAME, PAGED = "diptych", "paged|eager"
PAGE = 16
_OFF: dict[str, tuple[Any, ...]] = {"position_bias": (None,), "k_cache": (None,), "output_attentions": (None, False)}


def register(paged: bool = False) -> None:
    """NAME for `generate`; paged: PAGED as well, for continuous batching. May be called again. Raises SpecError."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flash_attention_mask

    attention_of(Options.of().kernel)
    AttentionInterface.register(NAME, forward)
    AttentionMaskInterface.register(NAME, flash_attention_mask)
    if paged:
        AttentionInterface.register(PAGED, forward)


@lru_cache
def attention_of(kernel_id: str) -> PagedAttention:
    """The public call of DIPTYCH_KERNEL, which must choose by itself: lengths vary."""
    kernel = kernel_of(kernel_id)
    if kernel.name is not None:
        raise SpecError("DIPTYCH_KERNEL", kernel_id, "a kernel that chooses by itself: triton/auto, helion/auto, ...")
    return PagedAttention(kernel.family)


def forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """query [batch, heads, tokens, size], key and value [batch, KV heads, keys, size] -> [batch, tokens, heads, size].

    attention_mask: bool [batch, keys], True where a key counts, or None; not looked at beside cu_seq_lens_q and
    cu_seq_lens_k, which continuous batching brings. Raises SpecError, UnsupportedFeature.
    """
    if dropout:
        raise UnsupportedFeature("diptych", "dropout", "0: there is no backward pass")
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        raise UnsupportedFeature("diptych", "gradients", "torch.no_grad() or inference_mode(): no backward pass")
    for name, off in _OFF.items():
        if not any(others.get(name) is one for one in off):
            raise UnsupportedFeature("diptych", name, "None")
    starts, ends = others.get("cu_seq_lens_q"), others.get("cu_seq_lens_k")
    packed = starts is not None and ends is not None
    # continuous batching says is_causal=False where a mask of its own, which is not looked at, is causal
    causal = getattr(module, "is_causal", True) if packed or is_causal is None else is_causal
    sinks = None if s_aux is None else s_aux.to(query.dtype)
    features = Features(bool(causal), sliding_window, float(softcap) if softcap else None, sinks)
    rows, keys = query.transpose(1, 2), key.transpose(1, 2)
    values = value.transpose(1, 2)
    if packed:
        lengths = others.get("max_length_q"), others.get("max_length_k")
        tensors = (rows.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1))
        return varlen(*tensors, starts.int(), ends.int(), *lengths, scaling, features).view_as(rows), None
    if attention_mask is not None:
        return _padded(rows, keys, values, attention_mask, scaling, features), None
    batch, tokens, count = *rows.shape[:2], keys.shape[1]
    every = torch.arange(batch + 1, dtype=torch.int32, device=query.device)
    tensors = (rows.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1))
    out = varlen(*tensors, every * tokens, every * count, tokens, count, scaling, features)
    return out.unflatten(0, (batch, tokens)), None


def _padded(
    rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scaling: Any, features: Features
) -> torch.Tensor:
    """A batch with padding, packed; rows of padding are 0. Raises SpecError for another mask than one of padding."""
    if mask.dim() != 2:
        raise SpecError("attention_mask", f"shape {tuple(mask.shape)}", "bool [batch, keys], a mask of padding")
    mask, tokens = mask.bool(), rows.shape[1]
    keys, values = keys[:, : mask.shape[1]], values[:, : mask.shape[1]]  # a static cache is longer
    asked = mask[:, -tokens:]
    starts, ends = (torch.nn.functional.pad(one.sum(1).cumsum(0), (1, 0)).int() for one in (asked, mask))
    out = torch.zeros(*rows.shape[:3], values.shape[-1], dtype=rows.dtype, device=rows.device)
    packed = rows[asked], keys[mask], values[mask]
    out[asked] = varlen(*packed, starts, ends, tokens, mask.shape[1], scaling, features)
    return out


def varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    max_query_len: int | None,
    max_seq_len: int | None,
    scaling: float | None,
    features: Features,
) -> torch.Tensor:
    """query [tokens, heads, size] over key and value [keys, KV heads, size], packed one sequence behind another; the
    queries of a sequence are its last tokens. starts, ends: int32 [sequences + 1], of queries and of keys."""
    attention = attention_of(Options.of().kernel)
    device, seqs, count = query.device, starts.shape[0] - 1, key.shape[0]
    lens = ends[1:] - ends[:-1]
    pages = torch.nn.functional.pad((lens + PAGE - 1).div(PAGE, rounding_mode="floor").cumsum(0), (1, 0)).int()
    place = torch.arange(count, device=device)
    owner = (torch.searchsorted(ends.long(), place, right=True) - 1).clamp(0, seqs - 1)
    slots = pages[owner] * PAGE + place - ends[owner]
    most = cdiv(count, PAGE) + seqs  # pages; behind them one for the padding behind the last sequence
    slots = torch.where(place < ends[-1], slots, most * PAGE)
    caches = [one.new_empty(most + 1, PAGE, *one.shape[1:]) for one in (key, value)]
    for cache, one in zip(caches, (key, value), strict=True):
        cache.flatten(0, 1).index_copy_(0, slots, one)
    longest = count if max_seq_len is None else min(max_seq_len, count)
    columns = torch.arange(max(cdiv(longest, PAGE), 1), dtype=torch.int32, device=device)
    return attention(
        query, *caches, pages[:-1, None] + columns, starts, lens, max_query_len=max_query_len, max_seq_len=longest,
        softmax_scale=None if scaling is None else float(scaling), features=features,
    )  # fmt: skip
