"""The arguments of the public call: the batch and features that they stand for, and the signature of a call."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import fields
from math import gcd
from operator import attrgetter
from typing import Any

import torch

from common.serving.grid import KEYS, hinted_keys, hinted_stats
from common.spec import Features, Layout, PagedBatch, SpecError
from common.spec.paged_batch import E4M3
from common.spec.plain import flag, integer, shown
from common.spec.refusals import expect_stored

# AMD's compiler uses buffer instructions for a tensor whose storage has at most that many bytes: another binary
WITHIN = 2**31 - 1 if torch.version.hip else None
_PLAIN = Features()
_FIELDS = attrgetter(*(field.name for field in fields(Features)))
DEVICES = ("cpu", "cuda")  # kernels are interpreted on a CPU
HINTS = ("max_query_len", "max_seq_len", "num_decodes", "total_seq_len", "prompt_seq_len")
_OF_HINTS = frozenset((int, type(None)))
Hints = tuple[int | None, int | None, int | None, int | None, int | None]
_RANKS = {"query": (3,), "key_cache": (4, 5), "value_cache": (4,), "block_table": (2,), "query_start_loc": (1,)}


def features_of(causal: bool, sliding_window: int | None, features: Features | None) -> Features:
    """`features`, or those that the short forms `causal` and `sliding_window` name. Raises SpecError where both are
    given."""
    if features is None:
        causal = flag(causal)
        return _PLAIN if causal is True and sliding_window is None else Features(causal, sliding_window)
    if flag(causal) is not True or sliding_window is not None:
        found = f"causal={shown(causal)}, sliding_window={shown(sliding_window)} beside features"
        raise SpecError("features", found, "features, or causal and sliding_window")
    return features


def batch_of(tensors: Sequence[Any], softmax_scale: float | None, hints: Hints) -> PagedBatch:
    """The batch of a call.

    tensors: query, key_cache, value_cache, block_table, query_start_loc, seq_lens, key, value. hints: those of HINTS.
    Looks only at what the stats need. Raises SpecError.
    """
    query, key_cache, _, block_table, _, seq_lens, key, value = tensors
    for (name, ranks), tensor in zip({**_RANKS, "seq_lens": (1,)}.items(), tensors, strict=False):
        expect_stored(tensor, name)
        if tensor.dim() not in ranks:
            raise SpecError(name, f"shape {tuple(tensor.shape)}", f"{' or '.join(map(str, ranks))} dimensions")
    if query.device.type not in DEVICES:
        raise SpecError("query", f"on {query.device}", f"on one of {', '.join(DEVICES)}")
    hints = integers(hints)
    packed = key_cache.dim() == 5
    most_keys = block_table.shape[1] * key_cache.shape[3 if packed else 1]
    stats = hinted_stats(seq_lens.shape[0], query.shape[0], most_keys, *hints)
    scale = max(query.shape[2], 1) ** -0.5 if softmax_scale is None else softmax_scale
    layout = Layout.X_PACKED if packed else Layout.PAGED
    return PagedBatch(*tensors[:6], scale, stats, layout, key, value)


def hint_of(name: str, value: Any) -> int | None:
    """A hint as a Python integer, or None. Raises SpecError."""
    value = integer(value)
    if value is not None and type(value) is not int:
        raise SpecError(name, shown(value), "None or an integer")
    return value


def integers(hints: Hints) -> Hints:
    """Hints as Python integers. Raises SpecError."""
    return tuple([hint_of(name, value) for name, value in zip(HINTS, hints, strict=True)])


def asked_of_call(features: Features) -> tuple[tuple, tuple[torch.Tensor, ...]]:
    """The part of a call's signature that its features make, with `...` for each tensor; and those tensors, in
    order."""
    values = _FIELDS(features)
    tensors = tuple([value for value in values if isinstance(value, torch.Tensor)])
    plain = [... if isinstance(value, torch.Tensor) else value for value in values]
    return (features.typed, *plain), tensors


def new_out(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, features: Features | None
) -> torch.Tensor:
    """The `out` of a call without one. Raises SpecError where the caller must choose its dtype."""
    if query.dtype in E4M3 or (features is not None and features.out_scale is not None):
        raise SpecError("out", None, "a tensor beside an fp8 query or out_scale: its dtype says what is written")
    lanes = value_cache.shape[2 if key_cache.dim() == 5 else -1]
    if lanes == query.shape[-1]:
        return torch.empty_like(query)
    return torch.empty(*query.shape[:-1], lanes, dtype=query.dtype, device=query.device)


def told(hints: Hints, softmax_scale: Any, causal: Any, sliding_window: Any, seq_lens: torch.Tensor) -> tuple:
    """The part of a call's signature that its numbers make, and whether gradients are recorded.

    Each number goes in with its type, because 1 equals True and 4 equals 4.0, of which one is refused. Raises
    SpecError.
    """
    if not _OF_HINTS.issuperset(map(type, hints)):
        hints = integers(hints)
    query_len, seq_len, decodes, total, _ = hints
    keys = seq_len and bisect_left(KEYS, seq_len)
    in_all = total is not None and hinted_keys(seq_lens.shape[0], *hints)
    types = type(softmax_scale), type(causal), type(sliding_window)
    return query_len, keys, decodes, in_all, softmax_scale, causal, sliding_window, torch.is_grad_enabled(), *types


def signature(given: Sequence[torch.Tensor], pointers: Sequence[int], others: tuple) -> tuple:
    """Everything that the checks, a launch's host code and Triton's specialisation read of a call, except the
    addresses.

    Finer than Triton's own key, which only keeps whether a stride is 1 and whether 16 divides it: two calls with one
    signature launch the same binaries with the same arguments. `others` holds all that is not a tensor, and which
    tensors are None.
    """
    facts = tuple([(t.shape, t.stride(), t.dtype, t.device, t.requires_grad, t.is_neg()) for t in given])
    if 0 in pointers:  # an empty tensor, or one without memory
        facts += tuple([*map(bool, pointers)])
    return others, facts, 0 if aligned(pointers) else tuple([pointer & 15 for pointer in pointers])


def aligned(pointers: Sequence[int]) -> bool:
    """Whether 16 divides all addresses."""
    return gcd(16, *pointers) == 16


def beyond(given: Sequence[torch.Tensor]) -> tuple[bool, ...] | None:
    """Which storages are so large that AMD's compiler takes other instructions."""
    return tuple([t.untyped_storage().size() > WITHIN for t in given]) if WITHIN else None
