"""transformers' attention interface: call `register()`, then attn_implementation="diptych".

    from diptych.common.engines.transformers import register
    register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="diptych")

Continuous batching of transformers 5.24 takes "sdpa", "paged|eager" and its flash implementations alone, by their
names: `register(paged=True)` puts ours in the place of "paged|eager", for the whole process. transformers hands over
keys and values without pages: each call lays them into pages of 16, without waiting for the device but where a batch is
padded. Inference alone.

A model describes its mask as a function (`mask_of`): causal, a window, or neither are served, as the function says and
not the layer; chunks, blocks that see each other, packed sequences and functions of the user's are refused by name.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from common.engines.options import Options, kernel_of
from common.serving.call import PagedAttention
from common.spec import Features, SpecError, UnsupportedFeature
from common.spec.metadata import cdiv

NAME, PAGED = "diptych", "paged|eager"
PAGE = 16
_OFF: dict[str, tuple[Any, ...]] = {
    "output_attentions": (None, False),
    **dict.fromkeys(("position_bias", "k_cache", "head_mask", "sinks", "indices", "block_indices"), (None,)),
}
_SEEN = "diptych_seen"  # attribute that marks a mask made by `mask_of`


def register(paged: bool = False) -> None:
    """NAME for `generate`; paged: PAGED as well, for continuous batching. May be called again.

    Where no GPU is here kernels are interpreted from then on. Raises SpecError, also where triton was imported before
    it could be told so, where there is no transformers, and for a file of DIPTYCH_PACK that does not fit.
    """
    options = Options.of()
    attention_of(options.kernel)
    options.unpack(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ModuleNotFoundError as error:
        needed = "transformers of 5.20 or later: pip install transformers"
        raise SpecError("transformers", f"no module {error.name}", needed) from error

    AttentionInterface.register(NAME, forward)
    AttentionMaskInterface.register(NAME, mask_of)
    if paged:
        AttentionInterface.register(PAGED, forward)


@dataclass(frozen=True)
class Seen:
    """Which keys a mask shows beside padding. window: as Features.sliding_window. padded: whether some keys are
    padding."""

    causal: bool
    window: int | None
    padded: bool


def mask_of(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable | None = None,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str | None = None,
    **others: Any,
) -> torch.Tensor:
    """bool [batch_size, keys] as transformers asks for masks: True where a key counts, with the function's pattern
    attached.

    Keys are those that were written; a static cache holds more. Raises UnsupportedFeature for a pattern other than
    causal, a window, or all keys.
    """
    causal, window = _pattern(mask_function)
    count = min(kv_length, int(q_offset) + q_length - kv_offset) if causal else kv_length
    if attention_mask is None:
        mask = torch.ones(batch_size, count, dtype=torch.bool, device=device)
        padded = count < kv_length
    else:
        mask = attention_mask[:, -kv_length:][:, :count].to(device=device, dtype=torch.bool, copy=True)
        padded = mask.shape[1] != kv_length or not bool(mask.all())
    setattr(mask, _SEEN, Seen(causal, window, padded))
    return mask


def _pattern(function: Callable | None) -> tuple[bool, int | None]:
    """(causal, window) of one of transformers' mask functions. Raises UnsupportedFeature."""
    shown = [("causal", 0)] if function is None else list(_shown(function))
    kinds, windows = {kind for kind, _ in shown}, [keys for kind, keys in shown if kind != "causal"]
    if "back" in kinds and "causal" not in kinds:
        raise UnsupportedFeature("diptych", "mask sliding_window_overlay alone", "one beside a causal mask")
    return "causal" in kinds, min(windows, default=None)


def _shown(function: Callable) -> Iterator[tuple[str, int]]:
    """The parts that a mask function intersects, recognised by its code: ("causal", 0), ("back", keys), ("around",
    keys), counted as Features.sliding_window does; empty where it shows every key."""
    from transformers import masking_utils as known

    code = getattr(function, "__code__", None)
    inside = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    if code is known.causal_mask_function.__code__:
        yield "causal", 0
    elif code is known.sliding_window_overlay(1).__code__:
        yield "back", int(inside[0])
    elif code is known.sliding_window_bidirectional_overlay(1).__code__:
        yield "around", int(inside[0]) + 1
    elif code is known.and_masks().__code__:
        for one in inside[0]:
            yield from _shown(one)
    elif code is not known.bidirectional_mask_function.__code__:
        name = getattr(function, "__qualname__", repr(function)).removesuffix(".<locals>.inner_mask")
        raise UnsupportedFeature("diptych", f"a mask by {name}", "a causal mask, a sliding window, or all keys")


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

    attention_mask: what `mask_of` made, or another of [batch, keys], bool or integer, nonzero where a key counts, or
    None; not looked at beside cu_seq_lens_q and cu_seq_lens_k, which continuous batching brings. Raises SpecError,
    UnsupportedFeature.
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
    if packed and not (isinstance(starts, torch.Tensor) and isinstance(ends, torch.Tensor)):  # dicts in 5.20
        found = f"{type(starts).__name__} and {type(ends).__name__}"
        raise SpecError("cu_seq_lens_q, cu_seq_lens_k", found, "tensors, as transformers 5.24 gives them")
    # continuous batching passes is_causal=False, although its unused mask is causal
    causal = getattr(module, "is_causal", True) if packed or is_causal is None else is_causal
    seen = None if packed else getattr(attention_mask, _SEEN, None)
    if seen is not None:  # the mask decides, as in a model's other implementations
        causal, sliding_window = seen.causal, seen.window
        attention_mask = attention_mask if seen.padded else None
    sinks = None if s_aux is None else s_aux.to(query.dtype)
    cross = not causal and sliding_window is None  # any number of keys: they may be an encoder's
    softcap = float(softcap) if softcap else None
    features = Features(bool(causal), sliding_window, softcap, sinks, cross=cross)
    rows, keys, values = (one.transpose(1, 2) for one in (query, key, value))
    if attention_mask is not None and not packed:
        return _padded(rows, keys, values, attention_mask, scaling, features), None
    tensors = [one.flatten(0, 1) for one in (rows, keys, values)]
    if packed:
        lengths = others.get("max_length_q"), others.get("max_length_k")
        return varlen(*tensors, starts.int(), ends.int(), *lengths, scaling, features).view_as(rows), None
    batch, tokens, count = *rows.shape[:2], keys.shape[1]
    every = torch.arange(batch + 1, dtype=torch.int32, device=query.device)
    out = varlen(*tensors, every * tokens, every * count, tokens, count, scaling, features)
    return out.unflatten(0, (batch, tokens)), None


def _padded(
    rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scaling: Any, features: Features
) -> torch.Tensor:
    """Attention of a padded batch, packed; padding rows become 0. Raises SpecError for a mask other than padding."""
    if mask.dim() != 2 or mask.is_floating_point():
        found = f"{mask.dtype} {tuple(mask.shape)}"
        raise SpecError("attention_mask", found, "bool [batch, keys], a mask of padding: no other is served")
    mask, tokens = mask.bool(), rows.shape[1]
    begins = mask.long().diff(dim=1, prepend=mask.new_zeros(len(mask), 1).long()) > 0
    if features.sliding_window is not None and bool((begins.sum(1) > 1).any()):
        raise SpecError("attention_mask", "padding between keys", "padding at the ends beside a sliding window")
    keys, values = keys[:, : mask.shape[1]], values[:, : mask.shape[1]]  # a static cache is longer
    asked = mask.new_ones(rows.shape[:2]) if features.cross else mask[:, -tokens:]
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
    most = cdiv(count, PAGE) + seqs  # pages, and one for the padding behind the last sequence
    slots = torch.where(place < ends[-1], slots, most * PAGE)
    caches = [one.new_empty(most + 1, PAGE, *one.shape[1:]) for one in (key, value)]
    for cache, one in zip(caches, (key, value), strict=True):
        cache.flatten(0, 1).index_copy_(0, slots, one)
    longest = count if max_seq_len is None else min(max_seq_len, count)
    columns = torch.arange(max(cdiv(longest, PAGE), 1), dtype=torch.int32, device=device)
    return attention(
        query, *caches, pages[:-1, None] + columns, starts, lens, max_query_len=max_query_len, max_seq_len=longest,
        total_seq_len=count, softmax_scale=None if scaling is None else float(scaling), features=features,
    )  # fmt: skip
