"""The public call `paged_attention`: arguments to a batch, hints to a choice, and one launch.

Both DSLs' `auto.py` make theirs of one `Family`, so a call reads the same and checks the same in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from common import scratch
from common.choice import Choice, Family, gpu_of, hinted_stats
from common.device_check import check_values
from common.kernel import Capacity, asked_of
from common.metadata import cdiv
from common.spec import Features, Layout, PagedBatch, SpecError
from common.validation import validate as validate_batch
from common.validation import validate_output

LEVELS = ("off", "host", "full")
MOST_SCRATCH = 2**30  # bytes that a call without a workspace asks the allocator for at most
_PLAIN = Features()


def public_call(family: Family) -> Callable[..., torch.Tensor]:
    """`paged_attention` over the kernels of one DSL."""

    def paged_attention(
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        block_table: torch.Tensor,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        *,
        max_query_len: int | None,
        max_seq_len: int | None,
        num_decodes: int | None = None,
        key: torch.Tensor | None = None,
        value: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = True,
        sliding_window: int | None = None,
        features: Features | None = None,
        workspace: torch.Tensor | None = None,
        validate: str = "host",
    ) -> torch.Tensor:
        """Attention of this step's queries over a paged KV cache; returns `out`.

        The tensors are common.spec.PagedBatch's; a key_cache of five dimensions is Layout.X_PACKED.
        max_query_len, max_seq_len, num_decodes: host hints. A wrong one costs time, never correctness; None = unknown:
        the choice then uses shapes alone, and nothing waits for the device.
        out: like query, allocated where None. lse: float32 [num_tokens, num_query_heads], written where given.
        softmax_scale: head_size ** -0.5 where None. features: common.spec.Features, in place of causal and
        sliding_window. workspace: a uint8 tensor for scratch; None allocates it.
        validate: "host": types, shapes, dtypes, strides and devices, no wait for the device; "full": every value too,
        with one wait; "off": what a launch of these shapes refuses, alone.
        Raises SpecError or UnsupportedFeature before any launch.
        """
        asked = _features(causal, sliding_window, features)
        batch = _batch(
            query, key_cache, value_cache, block_table, query_start_loc, seq_lens, key, value, softmax_scale,
            max_query_len, max_seq_len, num_decodes,
        )  # fmt: skip
        out = torch.empty_like(query) if out is None else out
        _validate(validate, batch, asked, out, lse)
        choice = choose_for(family, batch, asked)
        run(family, choice, batch, asked, out, lse, workspace)
        return out

    return paged_attention


def choose_for(family: Family, batch: PagedBatch, features: Features) -> Choice:
    return family.choose(batch.shape, batch.stats, gpu_of(batch.device), asked_of(batch, features))


def run(
    family: Family,
    choice: Choice,
    batch: PagedBatch,
    features: Features,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    workspace: torch.Tensor | None,
) -> None:
    """Launch the chosen kernel with scratch of its own, or in the caller's buffer."""
    kernel = family.kernel(choice.kernel)
    layout = fitting(kernel, choice, batch, workspace)
    if workspace is None and layout.offsets:
        workspace = torch.empty(layout.num_bytes, dtype=torch.uint8, device=batch.device)
    kernel.launch(batch, features, out, choice.config, layout.place(workspace), lse=lse)


def fitting(kernel: Any, choice: Choice, batch: PagedBatch, buffer: torch.Tensor | None) -> scratch.Layout:
    """The workspace for this batch, its room for keys halved until it fits into `buffer`, or into MOST_SCRATCH."""
    if buffer is not None:
        scratch.check_buffer(buffer, 0)
    limit = MOST_SCRATCH if buffer is None else buffer.numel()
    capacity = capacity_of(batch)
    while True:
        layout = scratch.Layout.of(kernel, batch.shape, capacity, choice.config)
        if layout.num_bytes <= limit or capacity.num_keys == 0:
            return layout
        capacity = Capacity(capacity.num_tokens, capacity.num_seqs, capacity.device, capacity.num_keys // 2)


def capacity_of(batch: PagedBatch) -> Capacity:
    """Tokens in sixteens, so that the strides of scratch are divisible alike at every batch; keys of the sequences
    that are no decodes, at most what the cache holds."""
    stats, slots = batch.stats, batch.key_cache.shape[0] * batch.shape.block_size
    keys = min((stats.num_seqs - stats.num_decodes) * stats.max_seq_len, slots)
    return Capacity(max(cdiv(batch.num_tokens, 16), 1) * 16, batch.num_seqs, batch.device, keys)


def _features(causal: bool, sliding_window: int | None, features: Features | None) -> Features:
    if features is None:
        return _PLAIN if causal is True and sliding_window is None else Features(causal, sliding_window)
    if causal is not True or sliding_window is not None:
        found = f"causal={causal}, sliding_window={sliding_window} beside features"
        raise SpecError("features", found, "features, or causal and sliding_window")
    return features


def _validate(level: str, batch: PagedBatch, features: Features, out: object, lse: object) -> None:
    if level not in LEVELS:
        raise SpecError("validate", repr(level), ", ".join(LEVELS))
    if level == "off":
        return
    validate_batch(batch, features, values=False)
    validate_output(batch, out, lse)
    if level == "full":
        check_values(batch, features)


def _hint(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise SpecError(name, repr(value), "None or an integer")


def _batch(
    query, key_cache, value_cache, block_table, query_start_loc, seq_lens, key, value, softmax_scale,
    max_query_len, max_seq_len, num_decodes,
) -> PagedBatch:  # fmt: skip
    """The batch of a call; what its stats need is looked at first, so that a malformed call is refused by name."""
    for name, tensor, ranks in (
        ("query", query, (3,)), ("key_cache", key_cache, (4, 5)), ("block_table", block_table, (2,)),
        ("seq_lens", seq_lens, (1,)),
    ):  # fmt: skip
        if not isinstance(tensor, torch.Tensor):
            raise SpecError(name, type(tensor).__name__, "a torch.Tensor")
        if tensor.dim() not in ranks:
            raise SpecError(name, f"shape {tuple(tensor.shape)}", f"{' or '.join(map(str, ranks))} dimensions")
    _hint("max_query_len", max_query_len)
    _hint("max_seq_len", max_seq_len)
    _hint("num_decodes", num_decodes)
    packed = key_cache.dim() == 5
    most_keys = block_table.shape[1] * key_cache.shape[3 if packed else 1]
    stats = hinted_stats(seq_lens.shape[0], query.shape[0], most_keys, max_query_len, max_seq_len, num_decodes)
    scale = query.shape[2] ** -0.5 if softmax_scale is None and query.shape[2] else softmax_scale
    layout = Layout.X_PACKED if packed else Layout.PAGED
    return PagedBatch(
        query, key_cache, value_cache, block_table, query_start_loc, seq_lens, scale, stats, layout, key, value
    )
