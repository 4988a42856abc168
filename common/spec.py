"""The paged-attention interface: names, shapes, dtypes, and what makes a batch well formed.

One batch holds `num_seqs` sequences. A sequence has `seq_len` tokens in pages of a KV cache; its last `query_len` tokens
are the queries of this step, packed one sequence after another in `query`. `context_len = seq_len - query_len` (paper 4.2).

Order of the math, everywhere: scale -> softcap -> mask -> softmax with the sink as one extra logit -> P.V.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass

import torch

from common.metadata import BatchStats

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
    """How a cache's pages are laid out."""

    PAGED = "paged"  # views [num_blocks, block_size, num_kv_heads, head_size], any strides, last dimension contiguous
    X_PACKED = "x_packed"  # K [num_blocks, num_kv_heads, head_size / x, block_size, x], V [num_blocks, num_kv_heads, head_size, block_size]


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
class Features:
    """What is asked beyond plain causal attention; a feature that is off is None.

    causal: key k is visible to the query at position q when k <= q (False: every key of the sequence).
    sliding_window: W counts the query's own token: keys q - W + 1 .. q; when not causal also up to q + W - 1.
    softcap: x > 0: logits become x * tanh(logit / x), after the scale and before the mask.
    sinks: float [num_query_heads]: one extra logit per head, neither scaled nor soft-capped, whose value is zero.
    """

    causal: bool = True
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None

    def names(self) -> frozenset[str]:
        """The features that a kernel must list in SUPPORTS to serve this."""
        asked = {"causal" if self.causal else "non_causal"}
        asked |= {name for name in ("sliding_window", "softcap", "sinks") if getattr(self, name) is not None}
        return frozenset(asked)


@dataclass(frozen=True)
class PagedBatch:
    """One step's inputs.

    query            [num_tokens, num_query_heads, head_size]; tokens past query_start_loc[-1] are padding
    key_cache, value_cache  [num_blocks, block_size, num_kv_heads, head_size], any strides but a contiguous last dimension
    block_table      int32 or int64 [num_seqs, max_blocks]; entries past ceil(seq_len / block_size) are garbage
    query_start_loc  int32 [num_seqs + 1], monotone, starts at 0
    seq_lens         int32 [num_seqs]: 0 (rows see nothing) or at least the sequence's query length
    softmax_scale    multiplies q.k
    stats            host integers that a scheduler knows; hints: they choose a config, never the result
    key, value       this step's new K and V, contiguous [num_tokens, num_kv_heads, head_size], also in the cache; or None
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
        _, block_size, num_kv_heads, _ = self.key_cache.shape
        return AttentionShape(num_query_heads, num_kv_heads, head_size, block_size, self.query.dtype)

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


def _expect(ok: bool, argument: str, found: object, allowed: str) -> None:
    if not ok:
        raise SpecError(argument, found, allowed)


def _validate_types(batch: PagedBatch) -> None:
    ranks = {"query": 3, "key_cache": 4, "value_cache": 4, "block_table": 2, "query_start_loc": 1, "seq_lens": 1}
    for name, rank in ranks.items():
        tensor = getattr(batch, name)
        _expect(isinstance(tensor, torch.Tensor), name, type(tensor).__name__, "a torch.Tensor")
        _expect(tensor.dim() == rank, name, f"shape {tuple(tensor.shape)}", f"{rank} dimensions")
        _expect(
            tensor.device == batch.query.device,
            name,
            f"on {tensor.device}",
            f"the device of query, {batch.query.device}",
        )
    _expect(batch.layout is Layout.PAGED, "layout", batch.layout, "Layout.PAGED")
    for name in ("query", "key_cache", "value_cache"):
        tensor = getattr(batch, name)
        _expect(tensor.dtype in DTYPES, name, tensor.dtype, ", ".join(str(d) for d in DTYPES))
        _expect(tensor.dtype == batch.query.dtype, name, tensor.dtype, f"the dtype of query, {batch.query.dtype}")
        _expect(
            tensor.stride(-1) == 1 or tensor.shape[-1] == 1,
            name,
            f"stride {tensor.stride(-1)} in the last dimension",
            "1",
        )
    _expect(
        batch.block_table.dtype in (torch.int32, torch.int64), "block_table", batch.block_table.dtype, "int32 or int64"
    )
    _expect(batch.query_start_loc.dtype == torch.int32, "query_start_loc", batch.query_start_loc.dtype, "int32")
    _expect(batch.seq_lens.dtype == torch.int32, "seq_lens", batch.seq_lens.dtype, "int32")


def _validate_shapes(batch: PagedBatch) -> None:
    shape = batch.shape  # raises by itself where the sizes are not attention
    cache = tuple(batch.key_cache.shape)
    _expect(
        tuple(batch.value_cache.shape) == cache,
        "value_cache",
        tuple(batch.value_cache.shape),
        f"the shape of key_cache, {cache}",
    )
    _expect(cache[3] == shape.head_size, "key_cache", f"head size {cache[3]}", f"that of query, {shape.head_size}")
    num_seqs = batch.num_seqs
    _expect(
        batch.block_table.shape[0] == num_seqs,
        "block_table",
        f"{batch.block_table.shape[0]} rows",
        f"{num_seqs}, one per sequence",
    )
    _expect(
        batch.query_start_loc.shape[0] == num_seqs + 1,
        "query_start_loc",
        f"{batch.query_start_loc.shape[0]} entries",
        f"num_seqs + 1 = {num_seqs + 1}",
    )
    scale = batch.softmax_scale
    _expect(
        isinstance(scale, float) and 0.0 < scale < float("inf"), "softmax_scale", repr(scale), "a finite float above 0"
    )
    for name in ("key", "value"):
        new = getattr(batch, name)
        if new is not None:
            wanted = (batch.num_tokens, shape.num_kv_heads, shape.head_size)
            _expect(tuple(new.shape) == wanted, name, tuple(new.shape), str(wanted))
            _expect(new.dtype == shape.dtype, name, new.dtype, str(shape.dtype))
            _expect(new.device == batch.device, name, f"on {new.device}", f"the device of query, {batch.device}")
            _expect(new.is_contiguous(), name, f"strides {new.stride()}", "contiguous")


def _validate_features(batch: PagedBatch, features: Features) -> None:
    _expect(isinstance(features.causal, bool), "causal", repr(features.causal), "True or False")
    window, cap, sinks = features.sliding_window, features.softcap, features.sinks
    if window is not None:
        ok = isinstance(window, int) and not isinstance(window, bool) and 1 <= window < 2**31
        _expect(ok, "sliding_window", repr(window), "None or an integer from 1 to 2^31 - 1")
    if cap is not None:
        _expect(
            isinstance(cap, float) and 0.0 < cap < float("inf"), "softcap", repr(cap), "None or a finite float above 0"
        )
    if sinks is not None:
        _expect(isinstance(sinks, torch.Tensor), "sinks", type(sinks).__name__, "None or a torch.Tensor")
        wanted = (batch.query.shape[1],)
        _expect(tuple(sinks.shape) == wanted, "sinks", tuple(sinks.shape), f"{wanted}, one per query head")
        _expect(sinks.dtype in DTYPES, "sinks", sinks.dtype, ", ".join(str(d) for d in DTYPES))
        _expect(sinks.device == batch.device, "sinks", f"on {sinks.device}", f"the device of query, {batch.device}")
        _expect(sinks.is_contiguous(), "sinks", f"stride {sinks.stride()}", "contiguous")


def _validate_values(batch: PagedBatch, features: Features) -> None:
    starts = batch.query_start_loc.tolist()
    lens = batch.seq_lens.tolist()
    num_blocks, block_size = batch.key_cache.shape[:2]
    table = batch.block_table.cpu()
    _expect(starts[0] == 0, "query_start_loc", f"first entry {starts[0]}", "0")
    _expect(
        starts[-1] <= batch.num_tokens,
        "query_start_loc",
        f"last entry {starts[-1]}",
        f"at most the {batch.num_tokens} rows of query",
    )
    for seq, seq_len in enumerate(lens):
        query_len = starts[seq + 1] - starts[seq]
        _expect(
            query_len >= 0,
            f"query_start_loc[{seq + 1}]",
            starts[seq + 1],
            f"at least the entry before it, {starts[seq]}",
        )
        ok = seq_len == 0 or seq_len >= query_len
        _expect(ok and seq_len >= 0, f"seq_lens[{seq}]", seq_len, f"0, or at least its query length {query_len}")
        used = -(-seq_len // block_size)
        _expect(
            used <= table.shape[1],
            f"seq_lens[{seq}]",
            seq_len,
            f"at most {table.shape[1]} pages of {block_size} = {table.shape[1] * block_size}",
        )
        pages = table[seq, :used]
        bad = pages[(pages < 0) | (pages >= num_blocks)]
        _expect(
            bad.numel() == 0,
            f"block_table[{seq}]",
            f"page id {bad[0].item() if bad.numel() else ''}",
            f"0 to {num_blocks - 1}",
        )
    if features.sinks is not None:
        # -inf is "no sink"; NaN or +inf would turn every row of the head into NaN
        bad = ~(features.sinks < float("inf"))
        _expect(not bool(bad.any()), "sinks", f"{features.sinks[bad][:1].tolist()}", "finite or -inf")


def validate(batch: PagedBatch, features: Features, *, values: bool = True) -> None:
    """Refuse a malformed batch before any launch.

    `values=False` looks at types, shapes, dtypes, strides and devices only and never waits for the device; `values=True` also copies
    query_start_loc, seq_lens and block_table to the host. Raises SpecError naming the argument, what was found and what is allowed.
    """
    _validate_types(batch)
    _validate_shapes(batch)
    _validate_features(batch, features)
    if values:
        _validate_values(batch, features)


def validate_output(batch: PagedBatch, out: torch.Tensor, lse: torch.Tensor | None = None) -> None:
    """Refuse an `out` or `lse` that a launch could not write. Raises SpecError.

    out [num_tokens, num_query_heads, head_size] in the query's dtype, last dimension contiguous;
    lse float32 [num_tokens, num_query_heads], any strides.
    """
    _expect(isinstance(out, torch.Tensor), "out", type(out).__name__, "a torch.Tensor")
    _expect(out.shape == batch.query.shape, "out", tuple(out.shape), f"the shape of query, {tuple(batch.query.shape)}")
    _expect(out.dtype == batch.query.dtype, "out", out.dtype, f"the dtype of query, {batch.query.dtype}")
    _expect(out.device == batch.device, "out", f"on {out.device}", f"the device of query, {batch.device}")
    _expect(out.stride(-1) == 1, "out", f"stride {out.stride(-1)} in the last dimension", "1")
    if lse is not None:
        _expect(isinstance(lse, torch.Tensor), "lse", type(lse).__name__, "None or a torch.Tensor")
        wanted = tuple(batch.query.shape[:2])
        _expect(tuple(lse.shape) == wanted, "lse", tuple(lse.shape), str(wanted))
        _expect(lse.dtype == torch.float32, "lse", lse.dtype, "float32")
        _expect(lse.device == batch.device, "lse", f"on {lse.device}", f"the device of query, {batch.device}")
