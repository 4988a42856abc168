"""The public call `paged_attention`: arguments to a batch, hints to a choice, and the launches.

Both DSLs' `auto.py` make theirs of one `Family`, so a call reads the same and checks the same in both. What a first
call of some signature validated, chose and launched is kept; the next one looks it up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import torch

from common import handle
from common.arguments import asked_of_call, batch_of, features_of, new_out, signature
from common.choice import GRID, Family
from common.device_check import check_values
from common.library import traced
from common.prepared import Prepared
from common.spec import Features, SpecError
from common.validation import validate as validate_batch
from common.validation import validate_output

LEVELS = ("off", "host", "full")
_OUT, _LSE = -3, -2  # places among the tensors of a call, which end with out, lse and workspace
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

    def __init__(self, family: Family, prepare: Callable[..., Prepared] = Prepared.of) -> None:
        self.family, self._prepare = family, prepare
        self._known: dict[tuple, Prepared] = {}

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
        if torch.compiler.is_compiling():
            tensors = (query, key_cache, value_cache, block_table, query_start_loc, seq_lens, key, value)
            hints, features = (max_query_len, max_seq_len, num_decodes), features_of(causal, sliding_window, features)
            return traced(self.family.name, tensors, hints, softmax_scale, features, validate, (out, lse, workspace))
        asked, operands = None, ()
        try:
            if features is not None:
                asked, operands = asked_of_call(features)
            if out is None:
                out = new_out(query, key_cache, value_cache, features)
            tensors = (
                query, key_cache, value_cache, block_table, query_start_loc, seq_lens, key, value, *operands, out, lse,
                workspace,
            )  # fmt: skip
            pointers = tuple([0 if tensor is None else tensor.data_ptr() for tensor in tensors])
            keys = None if max_seq_len is None else bisect_left(GRID, max_seq_len)
            others = (max_query_len, keys, num_decodes, softmax_scale, causal, sliding_window, asked, validate)
            known = signature(tensors, pointers, others)
            prepared = self._known.get(known)
        except (AttributeError, TypeError):  # no tensors, or no numbers: the checks say which
            prepared = known = None
        if prepared is None or prepared.tape is None or not self._again(prepared, tensors, pointers, validate):
            hints = (max_query_len, max_seq_len, num_decodes)
            features = features_of(causal, sliding_window, features)
            self._launch(prepared, known, (*tensors[:8], out, lse, workspace), hints, softmax_scale, features, validate)
        return out

    def _again(self, prepared: Prepared, tensors: tuple, pointers: tuple[int, ...], validate: str) -> bool:
        """Replay a tape; False where this call has to go through the kernel's launch."""
        query, out, lse = tensors[0], pointers[_OUT], pointers[_LSE]
        device = query.get_device()
        written_over = pointers.count(out) > 1 or (lse and pointers.count(lse) > 1)
        if written_over or validate == "full" or handle.current_device() != device or handle.observed():
            return False
        if prepared.num_bytes and tensors[-1] is None:
            buffer = torch.empty(prepared.num_bytes, dtype=torch.uint8, device=query.device)
            pointers = (*pointers[:-1], buffer.data_ptr())
        prepared.tape.replay(pointers, handle.current_stream(device))
        return True

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
        batch = batch_of(inputs, softmax_scale, hints)
        if validate not in LEVELS:
            raise SpecError("validate", repr(validate), ", ".join(LEVELS))
        if validate != "off" and prepared is None:
            validate_batch(batch, features, values=False)
            validate_output(batch, out, lse, features)
        if validate == "full":
            check_values(batch, features)
        with handle.on(batch.device):
            if prepared is None:
                prepared = self._prepare(self.family, batch, features, buffer)
            if buffer is None and prepared.needs_buffer:
                buffer = torch.empty(prepared.num_bytes, dtype=torch.uint8, device=batch.device)
            prepared.launch(batch, features, out, lse, buffer)
        if known is not None:
            if len(self._known) == MOST_SIGNATURES:
                self._known.clear()
            self._known[known] = prepared
