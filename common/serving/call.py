"""The public call `paged_attention`: from arguments to a batch, from hints to a choice, then the launches.

Both DSLs' `auto.py` build theirs from a `Family`, so a call reads and checks the same in both. The first call of a
signature validates, chooses and launches; the result is kept, and later calls look it up.
"""

from typing import Any

import torch
from torch.compiler import is_compiling

from common.serving import tape
from common.serving.arguments import asked_of_call, batch_of, beyond, features_of, new_out, told
from common.serving.choice import Family
from common.serving.library import traced
from common.serving.prepared import Prepared, addresses
from common.serving.scratch import check_buffer
from common.serving.signatures import NOT_A_CALL, Signatures
from common.serving.steps import Planned, Steps
from common.spec import Features, PagedBatch, SpecError
from common.spec.plain import shown
from common.spec.refusals import expect_flag, expect_writable
from common.spec.validation import check_values, inputs_of, validate_output
from common.spec.validation import validate as validate_batch
from common.versions import remark

LEVELS = ("off", "host", "full")
_MISSED = object()  # no tape, or none for this call
_address = torch.Tensor.data_ptr


class PagedAttention:
    """Attention of this step's queries over a paged KV cache; returns `out`.

    The tensors are common.spec.PagedBatch's; a key_cache of five dimensions is Layout.X_PACKED.
    max_query_len, max_seq_len, num_decodes, total_seq_len (keys of all sequences, this step's included), prompt_seq_len
    (of those keys the ones of sequences that are no decodes): host hints. A wrong hint costs time, never correctness.
    None means unknown: the choice then uses shapes only and takes every sequence to be as long as the longest, and
    prompts to be as long as decodes, without waiting for the device.
    out: like query with the lanes of V, allocated if None; required for an fp8 query or out_scale.
    lse: float32 [num_tokens, num_query_heads], written if given.
    softmax_scale: 2^-126 to 2^64 (common.spec.ranges), head_size ** -0.5 if None.
    features: common.spec.Features, in place of causal and sliding_window.
    workspace: a uint8 tensor for scratch; None allocates it.
    same_step: query_start_loc and seq_lens are the same as in the last call without it on this stream, as in the other
    layers of a step. A kernel that plans a step on the device then reuses its plan; a layer whose kernel has no plan of
    this step yet makes one. A step must begin in the graph that it is captured into. Calls under torch.compile each
    make their own plan.
    portable: do not take kernels that run on one vendor's GPUs only (Triton's Gluon file for Hopper).
    validate: "host" checks types, shapes, dtypes, strides and devices without waiting for the device, and on a CPU
    every value too; "full" checks every value, with one wait; "off" leaves the checks to the kernel.
    Raises SpecError or UnsupportedFeature before any launch.
    """

    workspace: torch.Tensor | None = None  # common.serving.plan shares one for all calls
    plan: str | None = None  # and a plan's name among operators

    def __init__(self, family: Family) -> None:
        self.family = family
        self._signatures: Signatures[Prepared] = Signatures()
        self._steps = Steps()

    def __reduce__(self) -> tuple:
        return type(self), (self.family,)

    @property
    def kept(self) -> tuple[int, int]:
        """(signatures whose launches are repeated, all known signatures)."""
        return self._signatures.counts

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
        total_seq_len: int | None = None,
        prompt_seq_len: int | None = None,
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
        same_step: bool = False,
        portable: bool = False,
    ) -> torch.Tensor:
        if out is None and self.workspace is not None:
            raise SpecError("out", None, "a tensor: a plan allocates nothing")
        inputs = (query, key_cache, value_cache, block_table, query_start_loc, seq_lens, key, value)
        hints = (max_query_len, max_seq_len, num_decodes, total_seq_len, prompt_seq_len)
        if is_compiling():
            how = (softmax_scale, features_of(causal, sliding_window, features), validate)
            return self._traced(portable, inputs, hints, how, (out, lse, workspace))
        prepared = known = planned = None
        try:
            out = new_out(query, key_cache, value_cache, features) if out is None else out
            asked, operands = (None, ()) if features is None else asked_of_call(features)
            given = [out, *inputs[:6], *operands, *[t for t in (key, value, lse, workspace) if t is not None]]
            pointers = [*map(_address, given)]
            others = (
                told(hints, softmax_scale, causal, sliding_window, seq_lens), asked, validate, beyond(given),
                portable, type(portable), key is None, value is None, lse is None, workspace is None,
            )  # fmt: skip
            known, prepared = self._signatures.find(given, pointers, others)
            planned = self._planned(prepared, query, features, same_step)
        except NOT_A_CALL as error:  # not tensors or numbers: the checks say which
            asked = features_of(causal, sliding_window, features)
            prepared = known = planned = self._forget(error, out, inputs, softmax_scale, hints, asked)
        again = None if prepared is None or validate == "full" else prepared.tapes[planned is not None]
        memory = self._again(prepared, again, planned, pointers, query, workspace) if again else _MISSED
        if memory is _MISSED:
            how = (softmax_scale, features_of(causal, sliding_window, features), validate, portable)
            prepared, memory = self._launch(prepared, planned, known, (*inputs, out, lse, workspace), hints, *how)
        if planned is None and prepared.made is not None:
            self._keep(prepared, memory, query, features)
        return out

    def _forget(
        self, error: Exception, out: Any, inputs: tuple, softmax_scale: Any, hints: tuple, features: Features
    ) -> None:
        """Forget the steps, where a call does not say which step it belongs to. Raises what the checks say of malformed
        inputs, and `error` where the inputs are fine: a SpecError, or the allocator's for a new `out`."""
        if isinstance(error, SpecError) or (out is None and isinstance(error, RuntimeError)):
            validate_batch(batch_of(inputs, softmax_scale, hints), features, values=False)
            raise error
        self._steps.clear()

    def _traced(self, portable: bool, inputs: tuple, hints: tuple, how: tuple, written: tuple) -> torch.Tensor:
        out, lse, workspace = written
        written = (out, lse, self.workspace if workspace is None else workspace)
        return traced(self.family.asked(portable).name, inputs, hints, *how, written, self.plan)

    def _where(self, query: torch.Tensor) -> tuple[Any, int]:
        """Whose memory a step's plan lies in (here each stream's own), and the graph that it is captured into."""
        device = query.get_device()
        return (device, tape.current_stream(device) if device >= 0 else 0), tape.capture(device)

    def _planned(
        self, prepared: Prepared | None, query: torch.Tensor, features: Features | None, same_step: bool
    ) -> Planned | None:
        """The plan of this step, where the call may reuse it. Raises SpecError."""
        if not (same_step is True or expect_flag(same_step, "same_step")):
            if self._steps.used:
                self._steps.begin(*self._where(query))
            return None
        if prepared is None or prepared.made is None:
            return None
        return self._steps.find(*self._where(query), prepared.layout, (*prepared.made, *addresses(features)))

    def _keep(self, prepared: Prepared, memory: Any, query: torch.Tensor, features: Features | None) -> None:
        """Let other calls of this step reuse the plan."""
        made = (*prepared.made, *addresses(features))
        self._steps.keep(*self._where(query), prepared.layout, Planned(made, memory))

    def _again(
        self,
        prepared: Prepared,
        again: tape.Tape,
        planned: Planned | None,
        pointers: list[int],
        query: torch.Tensor,
        workspace: torch.Tensor | None,
    ) -> Any:
        """Replay a tape and return the memory of the step's plan; _MISSED where the call must go through the kernel's
        launch."""
        device = query.get_device()
        if tape.current_device() != device or tape.observed():
            return _MISSED
        layout = prepared.layout
        if workspace is None:
            scratch = self.workspace
            if scratch is None and layout.num_bytes:  # no tensor, whose making costs 0.3 us more
                scratch = torch.UntypedStorage(layout.num_bytes, device=query.device)
            pointers.append(0 if scratch is None else scratch.data_ptr())
        memory = None
        if layout.step_bytes:
            memory = prepared.new_memory(query.device) if planned is None else planned.memory
        pointers.append(0 if memory is None else memory.data_ptr())
        if prepared.places.clash(pointers):
            return _MISSED  # out, lse or scratch lies in another tensor
        again.replay(pointers, tape.current_stream(device))
        return memory

    def _prepare(
        self, batch: PagedBatch, features: Features, buffer: torch.Tensor | None, portable: bool, written: tuple
    ) -> Prepared:
        return Prepared.of(self.family.asked(portable), batch, features, buffer)

    def _launch(
        self,
        prepared: Prepared | None,
        planned: Planned | None,
        known: tuple | None,
        tensors: tuple,
        hints: tuple,
        softmax_scale: float | None,
        features: Features,
        validate: str,
        portable: bool,
    ) -> tuple[Prepared, torch.Tensor | None]:
        """Check, choose and launch; keep what the next call of this signature needs. Returns the memory of the plan."""
        *inputs, out, lse, buffer = tensors
        buffer = self.workspace if buffer is None else buffer
        batch = batch_of(inputs, softmax_scale, hints)
        if not isinstance(validate, str) or validate not in LEVELS:
            raise SpecError("validate", shown(validate), ", ".join(LEVELS))
        if validate != "off" and prepared is None:
            validate_batch(batch, features, values=False)
            validate_output(batch, out, lse, features)
        if buffer is not None:
            check_buffer(buffer, 0, batch.device)
            expect_writable(buffer, "workspace", {"out": out, "lse": lse, **inputs_of(batch, features)})
        if validate == "full" or (validate == "host" and batch.device.type == "cpu"):
            check_values(batch, features)
        with tape.on(batch.device):
            if prepared is None:
                remark(self.family.name)
                prepared = self._prepare(batch, features, buffer, portable, (out, lse))
            if buffer is None and prepared.layout.places:
                buffer = torch.empty(prepared.layout.num_bytes, dtype=torch.uint8, device=batch.device)
            memory = prepared.new_memory(batch.device) if planned is None else planned.memory
            prepared.launch(batch, features, out, lse, buffer, memory, planned is not None)
        if known is not None:
            self._signatures.keep(known, prepared)
        return prepared, memory
