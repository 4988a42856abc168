"""The public call `paged_attention`: arguments to a batch, hints to a choice, and the launches.

Both DSLs' `auto.py` make theirs of one `Family`, so a call reads the same and checks the same in both. What a first
call of some signature validated, chose and launched is kept; the next one looks it up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import torch
from torch.compiler import is_compiling

from common.serving import handle
from common.serving.arguments import aligned, asked_of_call, batch_of, beyond, features_of, new_out, signature
from common.serving.choice import Family
from common.serving.device_check import check_values
from common.serving.grid import GRID
from common.serving.library import traced
from common.serving.likeness import likeness, never
from common.serving.prepared import Prepared
from common.serving.scratch import check_buffer
from common.spec import Features, PagedBatch, SpecError
from common.spec.validation import validate as validate_batch
from common.spec.validation import validate_output

LEVELS = ("off", "host", "full")
_NOTHING = never, None
_address = torch.Tensor.data_ptr
MOST_SIGNATURES = 4096  # a serving engine's batch sizes are fewer; past them all are prepared again


class PagedAttention:
    """Attention of this step's queries over a paged KV cache; returns `out`.

    The tensors are common.spec.PagedBatch's; a key_cache of five dimensions is Layout.X_PACKED.
    max_query_len, max_seq_len, num_decodes: host hints. A wrong one costs time, never correctness; None = unknown: the
    choice then uses shapes alone, and nothing waits for the device.
    out: like query with the lanes of V, allocated where None; has to be given beside an fp8 query or out_scale.
    lse: float32 [num_tokens, num_query_heads], written where given.
    softmax_scale: 2^-126 to 2^127, head_size ** -0.5 where None.
    features: common.spec.Features, in place of causal and sliding_window.
    workspace: a uint8 tensor for scratch; None allocates it.
    validate: "host": types, shapes, dtypes, strides and devices, no wait for the device; "full": every value too, with
    one wait; "off": what the kernel refuses by itself, alone.
    Raises SpecError or UnsupportedFeature before any launch.
    """

    workspace: torch.Tensor | None = None  # common.serving.plan has one for all of its calls
    plan: str | None = None  # and a name among operators

    def __init__(self, family: Family) -> None:
        self.family = family
        self._known: dict[tuple, Prepared] = {}
        self._recent: dict[tuple, tuple[Callable[..., bool], Prepared]] = {}  # the last call of each `others`

    @property
    def kept(self) -> tuple[int, int]:
        """Signatures whose launches are repeated as they were kept, and all that are known."""
        return sum(prepared.tape is not None for prepared in self._known.values()), len(self._known)

    def __call__(
        self,
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
        if out is None and self.workspace is not None:
            raise SpecError("out", None, "a tensor: a plan allocates nothing")
        if is_compiling():
            tensors = (query, key_cache, value_cache, block_table, query_start_loc, seq_lens, key, value)
            hints, features = (max_query_len, max_seq_len, num_decodes), features_of(causal, sliding_window, features)
            written = (out, lse, self.workspace if workspace is None else workspace)
            return traced(self.family.name, tensors, hints, softmax_scale, features, validate, written, self.plan)
        prepared = known = None
        try:
            if out is None:
                out = new_out(query, key_cache, value_cache, features)
            asked, operands = (None, ()) if features is None else asked_of_call(features)
            given = [out, query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *operands]
            given += [tensor for tensor in (key, value, lse, workspace) if tensor is not None]
            pointers = [*map(_address, given)]
            others = (
                max_query_len, None if max_seq_len is None else bisect_left(GRID, max_seq_len), num_decodes,
                softmax_scale, causal, sliding_window, asked, validate, key is None, value is None, lse is None,
                workspace is None, beyond(given),
            )  # fmt: skip
            alike, prepared = self._recent.get(others, _NOTHING)
            if not (alike(*given) and aligned(pointers)):
                known, prepared = self._look_up(given, pointers, others)
        except (AttributeError, IndexError, RuntimeError, TypeError) as error:  # no such tensors: the checks say which
            if out is None and isinstance(error, RuntimeError):  # the allocator's
                raise
            prepared = known = None
        kept = prepared is not None and prepared.tape is not None and validate != "full"
        if not (kept and self._again(prepared, pointers, query, lse, workspace)):
            inputs = (query, key_cache, value_cache, block_table, query_start_loc, seq_lens, key, value)
            hints = (max_query_len, max_seq_len, num_decodes)
            features = features_of(causal, sliding_window, features)
            self._launch(prepared, known, (*inputs, out, lse, workspace), hints, softmax_scale, features, validate)
        return out

    def _look_up(self, given: list, pointers: list[int], others: tuple) -> tuple[tuple, Prepared | None]:
        """The signature of a call and what is kept of it; the next call with these `others` is compared with it."""
        known = signature(given, pointers, others)
        prepared = self._known.get(known)
        if prepared is not None and prepared.tape is not None and aligned(pointers):
            self._recent[others] = likeness(given), prepared
        return known, prepared

    def _again(
        self,
        prepared: Prepared,
        pointers: list[int],
        query: torch.Tensor,
        lse: torch.Tensor | None,
        workspace: torch.Tensor | None,
    ) -> bool:
        """Replay a tape; False where this call has to go through the kernel's launch."""
        device = query.get_device()
        if handle.current_device() != device or handle.observed():
            return False
        if pointers.count(pointers[0]) > 1 or (lse is not None and pointers.count(lse.data_ptr()) > 1):
            return False  # out or lse is an input
        if workspace is None:
            scratch = self.workspace
            if scratch is None and prepared.num_bytes:  # no tensor, whose making costs 0.3 us more
                scratch = torch.UntypedStorage(prepared.num_bytes, device=query.device)
            pointers.append(0 if scratch is None else scratch.data_ptr())
        prepared.tape.replay(pointers, handle.current_stream(device))
        return True

    def _prepare(self, batch: PagedBatch, features: Features, buffer: torch.Tensor | None) -> Prepared:
        return Prepared.of(self.family, batch, features, buffer)

    def _launch(
        self,
        prepared: Prepared | None,
        known: tuple | None,
        tensors: tuple,
        hints: tuple,
        softmax_scale: float | None,
        features: Features,
        validate: str,
    ) -> None:
        """Check, choose and launch; keep what the next call of this signature needs."""
        *inputs, out, lse, buffer = tensors
        buffer = self.workspace if buffer is None else buffer
        batch = batch_of(inputs, softmax_scale, hints)
        if validate not in LEVELS:
            raise SpecError("validate", repr(validate), ", ".join(LEVELS))
        if validate != "off" and prepared is None:
            validate_batch(batch, features, values=False)
            validate_output(batch, out, lse, features)
        if buffer is not None:
            check_buffer(buffer, 0, batch.device)
        if validate == "full":
            check_values(batch, features)
        with handle.on(batch.device):
            if prepared is None:
                prepared = self._prepare(batch, features, buffer)
            if buffer is None and prepared.needs_buffer:
                buffer = torch.empty(prepared.num_bytes, dtype=torch.uint8, device=batch.device)
            prepared.launch(batch, features, out, lse, buffer)
        if known is not None:
            if len(self._known) == MOST_SIGNATURES:
                self._known.clear()
                self._recent.clear()
            self._known[known] = prepared
