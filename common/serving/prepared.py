"""A call that was checked, chosen and launched once, ready to be launched on other tensors of its signature."""

from dataclasses import replace
from typing import Any

import torch

from common.gpus import gpu_of
from common.serving import scratch, tape
from common.serving.arguments import asked_of_call
from common.serving.choice import Choice, Family
from common.serving.tape import Tape
from common.spec import Features, PagedBatch
from common.spec.kernel import Capacity, asked_of
from common.spec.metadata import SHORT_QUERY, cdiv
from common.spec.overlap import Places

MOST_SCRATCH = 2**30  # bytes that a call without a workspace may allocate


class Prepared:
    """The choice for one signature, the layout of its scratch, and the tapes of its launches.

    layout: of the scratch of a call and the memory of a step.
    memory: of a step, where a Plan owns it; None where each step allocates its own.
    tapes: [of a call that plans its step, of a call that reuses the plan]; None where a call cannot be replayed.
    made: what a step's plan depends on (`made_for`) except addresses; None for kernels without such a plan.
    places: the memory of a tape's tensors and scratch; None before there is a tape.
    """

    __slots__ = ("_recorded", "choice", "family", "kernel", "layout", "made", "memory", "places", "tapes")

    def __init__(
        self, family: Family, choice: Choice, layout: scratch.Layout, memory: torch.Tensor | None = None
    ) -> None:
        self.family, self.choice, self.layout, self.memory = family, choice, layout, memory
        self.kernel = family.kernel(choice.kernel)
        self.tapes: list[Tape | None] = [None, None]
        follows_hints = "full_graph" not in self.kernel.SUPPORTS  # such launches depend on hints, so have no tape
        self._recorded = [follows_hints, follows_hints]
        self.made: tuple | None = None
        self.places: Places | None = None

    @classmethod
    def of(cls, family: Family, batch: PagedBatch, features: Features, buffer: torch.Tensor | None) -> "Prepared":
        """Choose for a batch. buffer: the caller's scratch. Raises SpecError if it is too small."""
        choice = choice_for(family, batch, features)
        return cls(family, choice, _fitting(family.kernel(choice.kernel), choice, batch, buffer))

    @property
    def tape(self) -> Tape | None:
        """The tape of a call that plans its step."""
        return self.tapes[False]

    def new_memory(self, device: torch.device) -> torch.Tensor | None:
        """Memory for a step's plan; None where none is needed."""
        if self.memory is not None or not self.layout.step_bytes:
            return self.memory
        return torch.empty(self.layout.step_bytes, dtype=torch.uint8, device=device)

    def launch(
        self,
        batch: PagedBatch,
        features: Features,
        out: torch.Tensor,
        lse: torch.Tensor | None,
        buffer: torch.Tensor | None,
        memory: torch.Tensor | None,
        planned: bool = False,
    ) -> None:
        """Launch through the kernel's own `launch` and keep the tape. The slots have the order of a call's pointers.

        planned: the plan of this step is already in `memory`.
        """
        workspace = self.layout.place(buffer, memory)
        if self.layout.plans:
            workspace = replace(workspace, planned=planned)
            self.made = _made_for(batch, features)
        if self._recorded[planned]:
            self.kernel.launch(batch, features, out, self.choice.config, workspace, lse=lse)
            return
        with tape.recorded(batch.device) as launches:
            self.kernel.launch(batch, features, out, self.choice.config, workspace, lse=lse)
        self._recorded[planned] = True
        if launches:
            slots = (
                out, batch.query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc,
                batch.seq_lens, *asked_of_call(features)[1], batch.key, batch.value, lse,
            )  # fmt: skip
            given = [slot for slot in slots if slot is not None]
            stream = tape.current_stream(batch.device.index)
            written = (0, *([] if lse is None else [len(given) - 1]), len(given))
            self.places = Places([*given, buffer, None], written)  # nobody else owns the memory of a step
            self.tapes[planned] = Tape.of(launches, [*given, buffer, memory], stream, regions=2)


def made_for(batch: PagedBatch, features: Features) -> tuple:
    """What a step's plan depends on beside the lengths: sizes, masks, and the addresses of the masks' tensors."""
    return *_made_for(batch, features), *addresses(features)


def _made_for(batch: PagedBatch, features: Features) -> tuple:
    """The part of `made_for` that follows from a signature. Without longer queries in the hints a static grid plans for
    short ones alone, by their length."""
    masks = (features.causal, features.sliding_window, features.chunk, features.chunk_lookback, features.cross)
    longest = min(batch.stats.max_query_len, SHORT_QUERY + 1)
    return batch.num_tokens, batch.num_seqs, batch.block_table.shape[1], longest, *masks


def addresses(features: Features | None) -> tuple:
    """The addresses of the masks' tensors."""
    if features is None:
        return None, None, None
    tensors = (features.spans, features.causal_per_sequence, features.tree_bias)
    return tuple([None if tensor is None else tensor.data_ptr() for tensor in tensors])


def choice_for(family: Family, batch: PagedBatch, features: Features) -> Choice:
    return family.choose(batch.shape, batch.stats, gpu_of(batch.device), asked_of(batch, features), sees=features.sees)


def capacity_of(batch: PagedBatch) -> Capacity:
    """The capacity that the scratch must hold.

    Tokens are rounded up to sixteens, so that Triton does not specialise on the strides of scratch. Keys are those of
    the sequences that are no decodes, at most what the cache holds.
    """
    stats, cache = batch.stats, batch.by_token()[0]
    keys = min(stats.prompts * stats.max_seq_len, cache.shape[0] * cache.shape[1])
    return Capacity(max(cdiv(batch.num_tokens, 16), 1) * 16, batch.num_seqs, batch.device, keys)


def _fitting(kernel: Any, choice: Choice, batch: PagedBatch, buffer: torch.Tensor | None) -> scratch.Layout:
    """The layout of scratch for this batch. Its room for keys is halved until it fits `buffer`, or MOST_SCRATCH."""
    if buffer is not None:
        scratch.check_buffer(buffer, 0)
    limit = MOST_SCRATCH if buffer is None else buffer.numel()
    capacity = capacity_of(batch)
    while True:
        layout = scratch.Layout.of(kernel, batch.shape, capacity, choice.config)
        if layout.num_bytes <= limit or capacity.num_keys == 0:
            return layout
        capacity = Capacity(capacity.num_tokens, capacity.num_seqs, capacity.device, capacity.num_keys // 2)
