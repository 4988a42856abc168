"""The paged-attention interface: names, shapes, dtypes. What makes a batch well formed is in `common.spec.validation`.

One batch holds `num_seqs` sequences. A sequence has `seq_len` keys in pages of a KV cache; its `query_len` tokens of
this step, packed one sequence after another in `query`, end with its last key. `context_len = seq_len - query_len`
(paper 4.2) is the first one's position: negative where there are fewer keys than queries, and then the tokens before
the first key have none of their own.

Order of the math, everywhere: `common.spec.features`.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from functools import lru_cache

import torch

from common.spec.features import Features, is_per_token
from common.spec.metadata import BatchStats, num_q_blocks
from common.spec.plain import integer, real, shown

__all__ = ["AttentionShape", "Features", "Layout", "PagedBatch", "SpecError", "UnsupportedFeature", "is_per_token"]

ALIGNMENT = 16  # bytes: of new K and V for descriptors, and of x in the x-packed layout
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2)
E4M3 = FP8[:2]  # of a query and of `out`: with e5m2's two bits P would cost too much precision
QUANTISED = (*FP8, torch.int8)  # cache dtypes whose elements are multiplied by a scale
MAX_HEAD_SIZE = 512


class SpecError(ValueError):
    """A malformed input, refused before any launch.

    `argument` names the input, `found` is what was passed, `allowed` is what would have been accepted.
    """

    def __init__(self, argument: str, found: object, allowed: str) -> None:
        self.argument, self.found, self.allowed = argument, found, allowed  # args stay as given, so pickle works

    def __str__(self) -> str:
        told = shown(self.found) if isinstance(self.found, torch.Tensor) else self.found
        return f"{self.argument}: found {told}, allowed {self.allowed}"


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
    In both V has its own value size in place of head_size, where that differs.
    """

    PAGED = "paged"
    X_PACKED = "x_packed"


def _expect_size(name: str, size: object, multiple: int = 1, most: int | None = None) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise SpecError(name, shown(size), "an integer of at least 1")
    if size % multiple or (most is not None and size > most):
        raise SpecError(name, size, f"a multiple of {multiple}" + (f" up to {most}" if most else ""))


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype) for dtype in dtypes)


@dataclass(frozen=True)
class AttentionShape:
    """The sizes that a model fixes. Raises SpecError when they are not attention.

    dtype: of the query. value_size: lanes of V and of `out`; None: as many as K has, and a number equal to head_size
    becomes None. kv_dtype: of both caches; None: the query's, and a dtype equal to that one becomes None.
    """

    num_query_heads: int = 32
    num_kv_heads: int = 8
    head_size: int = 128
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16
    value_size: int | None = None
    kv_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        for name in ("num_query_heads", "num_kv_heads", "head_size", "block_size", "value_size"):
            object.__setattr__(self, name, integer(getattr(self, name)))
        for name in ("dtype", "kv_dtype"):
            dtype = getattr(self, name)
            if not isinstance(dtype, torch.dtype) and not (name == "kv_dtype" and dtype is None):
                raise SpecError(name, shown(dtype), _names(DTYPES + E4M3 if name == "dtype" else QUANTISED))
        _expect_size("num_query_heads", self.num_query_heads)
        _expect_size("num_kv_heads", self.num_kv_heads)
        _expect_size("head_size", self.head_size, 8, MAX_HEAD_SIZE)
        _expect_size("block_size", self.block_size, 8)
        if self.value_size is not None:
            _expect_size("value_size", self.value_size, 8, MAX_HEAD_SIZE)
        for name, same in (("value_size", self.head_size), ("kv_dtype", self.dtype)):
            if getattr(self, name) == same:
                object.__setattr__(self, name, None)  # one form: shapes are compared and hashed
        if self.num_query_heads % self.num_kv_heads:
            raise SpecError(
                "num_query_heads", self.num_query_heads, f"a multiple of num_kv_heads = {self.num_kv_heads}"
            )
        if self.dtype not in DTYPES and self.dtype not in E4M3:
            raise SpecError("dtype", self.dtype, _names(DTYPES + E4M3))
        if self.kv_dtype is not None and (self.kv_dtype not in QUANTISED or self.dtype not in DTYPES):
            # an fp8 query requires a cache of its own type
            allowed = f"{self.dtype}" + (", " + _names(QUANTISED) if self.dtype in DTYPES else "")
            raise SpecError("kv_dtype", self.kv_dtype, allowed)

    @property
    def queries_per_kv(self) -> int:
        return self.num_query_heads // self.num_kv_heads

    @property
    def value_lanes(self) -> int:
        """Lanes of V and of `out`."""
        return self.head_size if self.value_size is None else self.value_size

    @property
    def cache_dtype(self) -> torch.dtype:
        return self.dtype if self.kv_dtype is None else self.kv_dtype

    @property
    def quantised(self) -> bool:
        """Whether the cache's elements are multiplied by a scale."""
        return self.cache_dtype in QUANTISED

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON, without None."""
        plain = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        return {n: str(v).removeprefix("torch.") if isinstance(v, torch.dtype) else v for n, v in plain.items()}

    @classmethod
    def from_dict(cls, plain: dict[str, object]) -> AttentionShape:
        dtypes = {name: getattr(torch, plain[name]) for name in ("dtype", "kv_dtype") if name in plain}
        return cls(**plain | dtypes)


_shape_of = lru_cache(maxsize=256)(AttentionShape)  # a launch asks several times, and checks take 3 us


@dataclass(frozen=True)
class PagedBatch:
    """One step's inputs.

    query            [num_tokens, num_query_heads, head_size], last dimension contiguous; tokens past
                     query_start_loc[-1] are padding; DTYPES, or fp8 (E4M3) beside caches of the same type
    key_cache, value_cache  [num_blocks, block_size, num_kv_heads, head_size], any strides but a contiguous last
                     dimension; V may have another size than K. Of the query's dtype, or both quantised (QUANTISED):
                     then `Features.key_scale` and `value_scale` say what an element is worth
    block_table      int32 or int64 [num_seqs, max_blocks], rows contiguous, any distance between them; entries past
                     ceil(seq_len / block_size) are garbage
    query_start_loc  int32 [num_seqs + 1], monotone, starts at 0
    seq_lens         int32 [num_seqs]: the sequence's keys, 0 and fewer than its query tokens included
    softmax_scale    multiplies q.k
    stats            host integers that a scheduler knows; hints: they choose a config, never the result
    key, value       this step's new K and V, also in the cache: [num_tokens, num_kv_heads, head_size], any strides but
                     a contiguous last dimension, at multiples of 16 bytes, in the query's dtype; rows of padding and of
                     tokens before the first key hold anything; or both None. Beside quantised caches they are as they
                     were before they were quantised, and the caches count
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "softmax_scale", real(self.softmax_scale))

    @property
    def shape(self) -> AttentionShape:
        _, num_query_heads, head_size = self.query.shape
        if self.layout is Layout.X_PACKED:
            _, num_kv_heads, _, block_size, _ = self.key_cache.shape
            values = self.value_cache.shape[2]
        else:
            _, block_size, num_kv_heads, _ = self.key_cache.shape
            values = self.value_cache.shape[3]
        dtypes = self.query.dtype, self.key_cache.dtype
        return _shape_of(num_query_heads, num_kv_heads, head_size, block_size, dtypes[0], values, dtypes[1])

    def num_q_blocks(self, block_m: int) -> int:
        """An upper bound on the Q Blocks of `block_m` rows; independent of lengths, so a captured grid stays valid."""
        return num_q_blocks(self.num_tokens, self.num_seqs, block_m // self.shape.queries_per_kv)

    def by_token(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of either layout, as views that begin [num_blocks, block_size, num_kv_heads].

        Then follows head_size, or for an x-packed K head_size / x and x.
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
