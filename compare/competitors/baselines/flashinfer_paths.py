"""FlashInfer's paged kernels behind the Protocol: what its four paths share.

Each path is a module of its own (flashinfer_decode, _fa2, _fa3, _pod). FlashInfer plans a step on the host, once for
all layers: `prepare` does that, outside the timed call. Importing this module raises ImportError with the reason where
FlashInfer cannot run.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from common.spec import AttentionShape, Features, PagedBatch, UnsupportedFeature
from common.spec.kernel import Capacity, Precision, require
from common.spec.metadata import lens_of
from compare.competitors.baselines import bare_files

WORKSPACE_BYTES = 128 * 2**20  # what FlashInfer's documentation recommends for partial results
HEAD_SIZES = (64, 128, 256)
DTYPES = (torch.float16, torch.bfloat16)


if not torch.cuda.is_available() or torch.version.cuda is None:
    raise ImportError("FlashInfer needs an NVIDIA GPU; none is here")
library = bare_files.library("flashinfer")
print(f"flashinfer {getattr(library, '__version__', '?')} from {library.__file__}", file=sys.stderr)


@dataclass(frozen=True)
class Pages:
    """A group of sequences as FlashInfer names them: the pages of sequence i are indices[indptr[i]:indptr[i + 1]].

    query_indptr, indptr, last_page_len: int32 on the host; indices: int32 on the device. tokens: rows of `query`, a
    slice where they lie one behind another, else int64 on the device.
    """

    query_indptr: torch.Tensor
    indptr: torch.Tensor
    indices: torch.Tensor
    last_page_len: torch.Tensor
    tokens: slice | torch.Tensor


def pages_of(batch: PagedBatch, chosen: Sequence[int] | None = None) -> Pages:
    """The pages of the chosen sequences, of all by default. Reads the lengths from the device."""
    lens = list(lens_of(batch.query_start_loc, batch.seq_lens))
    chosen = range(len(lens)) if chosen is None else chosen
    size = batch.shape.block_size
    counts = [-(-lens[i][1] // size) for i in chosen]
    rows = [batch.block_table[i, :count] for i, count in zip(chosen, counts, strict=True)]
    starts = batch.query_start_loc.tolist()
    tokens = [token for i in chosen for token in range(starts[i], starts[i + 1])]
    together = tokens == list(range(tokens[0], tokens[-1] + 1)) if tokens else True
    return Pages(
        _indptr([lens[i][0] for i in chosen]),
        _indptr(counts),
        torch.cat(rows).int() if rows else torch.empty(0, dtype=torch.int32, device=batch.device),
        torch.tensor([(lens[i][1] - 1) % size + 1 if lens[i][1] else 0 for i in chosen], dtype=torch.int32),
        slice(tokens[0], tokens[-1] + 1) if tokens and together else torch.tensor(tokens, device=batch.device).long(),
    )


def _indptr(counts: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)


@dataclass
class Plan:
    """scratch [WORKSPACE_BYTES] uint8, shared by the page sets; wrapper and parts are of one page set, once planned."""

    scratch: torch.Tensor
    wrapper: Any = None
    parts: tuple[Pages, ...] = field(default=())


def sizes(shape: AttentionShape) -> tuple[int, int, int, int]:
    """The four numbers that every plan begins with."""
    return shape.num_query_heads, shape.num_kv_heads, shape.head_size, shape.block_size


@dataclass(frozen=True)
class Path:
    """One way through FlashInfer. Subclasses plan and run; this class refuses, and keeps the Protocol."""

    name: str
    supports: frozenset[str] = frozenset({"causal", "sliding_window", "softcap"})

    CONTRACT = Precision()
    DEFAULT = None

    def workspace(self, shape: AttentionShape, capacity: Capacity, config: None) -> Plan:
        """Zeros, as FlashInfer asks of its first use."""
        return Plan(torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=capacity.device))

    def prepare(self, batch: PagedBatch, features: Features, config: None, workspace: Plan) -> Plan:
        """The step's plan; other values on the same pages need none of their own."""
        self.refuse(batch, features)
        return workspace if workspace.parts else self.plan(batch, features, workspace)

    def refuse(self, batch: PagedBatch, features: Features) -> None:
        """Raises UnsupportedFeature for sizes that FlashInfer has no kernel for."""
        shape = batch.shape
        if shape.dtype not in DTYPES:
            raise UnsupportedFeature(self.name, f"dtype {shape.dtype}", "float16, bfloat16")
        if shape.head_size not in HEAD_SIZES:
            raise UnsupportedFeature(self.name, f"head_size {shape.head_size}", ", ".join(map(str, HEAD_SIZES)))
        if not features.causal and features.sliding_window is not None:
            raise UnsupportedFeature(self.name, "a window on both sides", "causal windows")

    def launch(
        self,
        batch: PagedBatch,
        features: Features,
        out: torch.Tensor,
        config: None,
        workspace: Plan,
        *,
        lse: torch.Tensor | None = None,
    ) -> None:
        """One run of the planned step, into the live rows of `out`."""
        require(self.name, self.supports, batch, features, out, lse)
        ready = self.prepare(batch, features, config, workspace)
        if batch.num_seqs and batch.stats.num_tokens:
            self.run(batch, out, ready)

    def plan(self, batch: PagedBatch, features: Features, workspace: Plan) -> Plan:
        raise NotImplementedError

    def run(self, batch: PagedBatch, out: torch.Tensor, ready: Plan) -> None:
        raise NotImplementedError


def options(batch: PagedBatch, features: Features) -> dict[str, object]:
    """What every plan is told of the math. window_left counts the keys before the query's own; -1 is no window."""
    window = -1 if features.sliding_window is None else features.sliding_window - 1
    dtype = batch.shape.dtype
    return {"window_left": window, "sm_scale": batch.softmax_scale, "q_data_type": dtype, "kv_data_type": dtype}


@dataclass(frozen=True)
class Prefill(Path):
    """BatchPrefillWithPagedKVCacheWrapper, which takes any query length, by one of its backends (fa2, fa3)."""

    backend: str = "fa2"

    def plan(self, batch: PagedBatch, features: Features, workspace: Plan) -> Plan:
        pages = pages_of(batch)
        wrapper = library.BatchPrefillWithPagedKVCacheWrapper(workspace.scratch, "NHD", backend=self.backend)
        wrapper.plan(
            pages.query_indptr,
            pages.indptr,
            pages.indices,
            pages.last_page_len,
            *sizes(batch.shape),
            causal=features.causal,
            logits_soft_cap=features.softcap or 0.0,
            **options(batch, features),
        )
        return Plan(workspace.scratch, wrapper, (pages,))

    def run(self, batch: PagedBatch, out: torch.Tensor, ready: Plan) -> None:
        live = slice(0, batch.stats.num_tokens)
        ready.wrapper.run(batch.query[live], (batch.key_cache, batch.value_cache), out=out[live])
