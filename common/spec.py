"""The paged-attention interface: names, shapes, dtypes. What makes a batch well formed is in `common.validation`.

One batch holds `num_seqs` sequences. A sequence has `seq_len` tokens in pages of a KV cache; its last `query_len`
tokens are the queries of this step, packed one sequence after another in `query`.
`context_len = seq_len - query_len` (paper 4.2).

Order of the math, everywhere: scale -> softcap -> mask -> softmax with the sink as one extra logit -> P.V.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass

import torch

from common.features import Features
from common.metadata import BatchStats

__all__ = ["AttentionShape", "Features", "Layout", "PagedBatch", "SpecError", "UnsupportedFeature"]

ALIGNMENT = 16  # bytes: of the new K and V, for tensor descriptors; and what x of the x-packed layout fills
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_HEAD_SIZE = 256


class SpecError(ValueError):
    """A malformed input, refused before any launch.

    `argument` names the input, `found` is what was passed, `allowed` is what would have been accepted.
    """

    def __init__(self, argument: str, found: object, allowed: str) -> None:
        super().__init__(f"{argument}: found {found}, allowed {allowed}")
        self.argument, self.found, self.allowed = argument, found, allowed


class UnsupportedFeature(SpecError, NotImplementedError):
    """A well-formed input that this kernel does not implement; `argument` names the feature, `kernel` the kernel."""

    def __init__(self, kernel: str, feature: str, allowed: str) -> None:
        super().__init__(feature, f"a batch that needs it for {kernel}", allowed)
        self.kernel = kernel


class Layout(enum.Enum):
    """How a cache's pages are laid out.

    PAGED: K and V are views [num_blocks, block_size, num_kv_heads, head_size], any strides, last dimension contiguous.
    X_PACKED: K [num_blocks, num_kv_heads, head_size / x, block_size, x] with x = 16 bytes of elements, V [num_blocks,
    num_kv_heads, head_size, block_size]; any strides, last dimension contiguous.
    """

    PAGED = "paged"
    X_PACKED = "x_packed"


@dataclass(frozen=True)
class AttentionShape:
    """The sizes that a model fixes. Raises SpecError when they are not attention."""

    num_query_heads: int = 32
    num_kv_heads: int = 8
    head_size: int = 128
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16

    def __post_init__(self) -> None:
        for name in ("num_query_heads", "num_kv_heads", "head_size", "block_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SpecError(name, repr(value), "an integer of at least 1")
        if self.num_query_heads % self.num_kv_heads:
            raise SpecError(
                "num_query_heads", self.num_query_heads, f"a multiple of num_kv_heads = {self.num_kv_heads}"
            )
        if self.head_size % 8 or self.head_size > MAX_HEAD_SIZE:
            raise SpecError("head_size", self.head_size, f"a multiple of 8 up to {MAX_HEAD_SIZE}")
        if self.block_size % 8:
            raise SpecError("block_size", self.block_size, "a multiple of 8")
        if self.dtype not in DTYPES:
            raise SpecError("dtype", self.dtype, ", ".join(str(d) for d in DTYPES))

    @property
    def queries_per_kv(self) -> int:
        return self.num_query_heads // self.num_kv_heads


@dataclass(frozen=True)
class PagedBatch:
    """One step's inputs.

    query            [num_tokens, num_query_heads, head_size], last dimension contiguous; tokens past
                     query_start_loc[-1] are padding
    key_cache, value_cache  [num_blocks, block_size, num_kv_heads, head_size], any strides but a contiguous last
                     dimension
    block_table      int32 or int64 [num_seqs, max_blocks], rows contiguous, any distance between them; entries past
                     ceil(seq_len / block_size) are garbage
    query_start_loc  int32 [num_seqs + 1], monotone, starts at 0
    seq_lens         int32 [num_seqs]: 0 (rows see nothing) or at least the sequence's query length
    softmax_scale    multiplies q.k
    stats            host integers that a scheduler knows; hints: they choose a config, never the result
    key, value       this step's new K and V, also in the cache: [num_tokens, num_kv_heads, head_size], contiguous, at
                     multiples of 16 bytes; rows of padding and of a sequence of length 0 hold anything; or both None
    """

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_table: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    softmax_scale: float
    stats: BatchStats
    layout: Layout = Layout.PAGED
    key: torch.Tensor | None = None
    value: torch.Tensor | None = None

    @property
    def shape(self) -> AttentionShape:
        _, num_query_heads, head_size = self.query.shape
        if self.layout is Layout.X_PACKED:
            _, num_kv_heads, _, block_size, _ = self.key_cache.shape
        else:
            _, block_size, num_kv_heads, _ = self.key_cache.shape
        return AttentionShape(num_query_heads, num_kv_heads, head_size, block_size, self.query.dtype)

    def by_token(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of either layout as views that begin [num_blocks, block_size, num_kv_heads].

        What follows is head_size; for an x-packed K it is head_size / x and x.
        """
        if self.layout is Layout.X_PACKED:
            return self.key_cache.permute(0, 3, 1, 2, 4), self.value_cache.permute(0, 3, 1, 2)
        return self.key_cache, self.value_cache

    @property
    def num_seqs(self) -> int:
        return self.seq_lens.shape[0]

    @property
    def num_tokens(self) -> int:
        return self.query.shape[0]

    @property
    def device(self) -> torch.device:
        return self.query.device

    def replace(self, **changes: object) -> PagedBatch:
        return dataclasses.replace(self, **changes)
