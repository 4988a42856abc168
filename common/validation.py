"""What makes a batch, its features and its output well formed. Everything else is refused before any launch.

Each refusal is a SpecError that names the argument, what was found and what would have been accepted.
"""

from __future__ import annotations

import torch

from common.metadata import BatchStats
from common.spec import ALIGNMENT, DTYPES, AttentionShape, Features, Layout, PagedBatch, SpecError


def _expect(ok: bool, argument: str, found: object, allowed: str) -> None:
    if not ok:
        raise SpecError(argument, found, allowed)


# What runs for every tensor of every launch forms its messages only when they are needed.


def _tensor(value: object, name: str, rank: int, allowed: str = "a torch.Tensor") -> None:
    if not isinstance(value, torch.Tensor):
        raise SpecError(name, type(value).__name__, allowed)
    if value.dim() != rank:
        raise SpecError(name, f"shape {tuple(value.shape)}", f"{rank} dimensions")


def _contiguous_rows(tensor: torch.Tensor, name: str) -> None:
    """Kernels address the last dimension without a stride."""
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise SpecError(name, f"stride {tensor.stride(-1)} in the last dimension", "1")


def _same_device(tensor: torch.Tensor, name: str, batch: PagedBatch) -> None:
    if tensor.device != batch.query.device:
        raise SpecError(name, f"on {tensor.device}", f"the device of query, {batch.device}")


def _writable(tensor: torch.Tensor, name: str, batch: PagedBatch) -> None:
    """No two elements in one place, and not the memory of an input: programs run in any order."""
    if 0 in tensor.stride() and any(d == 0 and n > 1 for d, n in zip(tensor.stride(), tensor.shape, strict=True)):
        raise SpecError(name, f"strides {tensor.stride()}", "every element in a place of its own")
    address = tensor.data_ptr()
    for other in ("query", "key_cache", "value_cache", "key", "value"):
        there = getattr(batch, other)
        if there is not None and address == there.data_ptr() and tensor.numel() > 0:
            raise SpecError(name, f"the memory of {other}", "memory of its own")


# Kernels hold a factor in float32, where a smaller one is a subnormal, which GPUs flush to 0, and a larger one is
# infinite once log2 e is folded in: both would give NaN.
_LEAST, _MOST, _FACTOR = 2.0**-126, 2.0**127, "a float from 2^-126 to 2^127"


def _is_factor(value: object) -> bool:
    return isinstance(value, float) and _LEAST <= value <= _MOST


_FLOATS = ", ".join(str(dtype) for dtype in DTYPES)
_RANKS = {"query": 3, "key_cache": 4, "value_cache": 4, "block_table": 2, "query_start_loc": 1, "seq_lens": 1}


def _validate_types(batch: PagedBatch) -> None:
    _expect(isinstance(batch, PagedBatch), "batch", type(batch).__name__, "a PagedBatch")
    if not isinstance(batch.layout, Layout):
        raise SpecError("layout", repr(batch.layout), "Layout.PAGED or Layout.X_PACKED")
    packed = batch.layout is Layout.X_PACKED
    for name, rank in _RANKS.items():
        tensor = getattr(batch, name)
        _tensor(tensor, name, 5 if packed and name == "key_cache" else rank)
        _same_device(tensor, name, batch)
        _contiguous_rows(tensor, name)
    for name in ("query", "key_cache", "value_cache"):
        dtype = getattr(batch, name).dtype
        _expect(dtype in DTYPES, name, dtype, _FLOATS)
        _expect(dtype == batch.query.dtype, name, dtype, f"the dtype of query, {batch.query.dtype}")
    table = batch.block_table.dtype
    _expect(table in (torch.int32, torch.int64), "block_table", table, "torch.int32 or torch.int64")
    for name in ("query_start_loc", "seq_lens"):
        dtype = getattr(batch, name).dtype
        _expect(dtype == torch.int32, name, dtype, "torch.int32")
    scale = batch.softmax_scale
    _expect(_is_factor(scale), "softmax_scale", repr(scale), _FACTOR)
    _expect(isinstance(batch.stats, BatchStats), "stats", type(batch.stats).__name__, "a BatchStats")


def _validate_packed(batch: PagedBatch, shape: AttentionShape) -> None:
    """The two shapes of Layout.X_PACKED."""
    cache, values = tuple(batch.key_cache.shape), tuple(batch.value_cache.shape)
    x = ALIGNMENT // shape.dtype.itemsize
    wanted = (cache[0], shape.num_kv_heads, shape.head_size // x, shape.block_size, x)
    _expect(cache == wanted, "key_cache", cache, f"{wanted}: [blocks, KV heads, head size / x, page, x]")
    wanted = (cache[0], shape.num_kv_heads, shape.head_size, shape.block_size)
    _expect(values == wanted, "value_cache", values, f"{wanted}: [blocks, KV heads, head size, page]")


def _validate_shapes(batch: PagedBatch) -> None:
    shape = batch.shape  # raises by itself where the sizes are not attention
    if batch.layout is Layout.X_PACKED:
        _validate_packed(batch, shape)
    else:
        cache, values = tuple(batch.key_cache.shape), tuple(batch.value_cache.shape)
        _expect(values == cache, "value_cache", values, f"the shape of key_cache, {cache}")
        _expect(cache[3] == shape.head_size, "key_cache", f"head size {cache[3]}", f"that of query, {shape.head_size}")
    if batch.key is not None or batch.value is not None:
        _validate_new_tokens(batch, (batch.num_tokens, shape.num_kv_heads, shape.head_size))
    rows, entries, num_seqs = batch.block_table.shape[0], batch.query_start_loc.shape[0], batch.num_seqs
    _expect(rows == num_seqs, "block_table", f"{rows} rows", f"{num_seqs}, one per sequence")
    _expect(entries == num_seqs + 1, "query_start_loc", f"{entries} entries", f"num_seqs + 1 = {num_seqs + 1}")


def _validate_new_tokens(batch: PagedBatch, wanted: tuple[int, ...]) -> None:
    """`key` and `value`, where the step's new tokens are given; wanted: their shape."""
    for name in ("key", "value"):
        tensor = getattr(batch, name)
        _tensor(tensor, name, 3, "a torch.Tensor, or both key and value None")
        _same_device(tensor, name, batch)
        if tensor.shape != wanted:
            raise SpecError(name, tuple(tensor.shape), str(wanted))
        if tensor.dtype != batch.query.dtype:
            raise SpecError(name, tensor.dtype, f"the dtype of query, {batch.query.dtype}")
        if not tensor.is_contiguous():
            raise SpecError(name, f"strides {tensor.stride()}", "contiguous")
        if tensor.data_ptr() % ALIGNMENT and tensor.numel():
            behind = tensor.data_ptr() % ALIGNMENT
            raise SpecError(name, f"an address {behind} bytes behind a multiple of {ALIGNMENT}", "such a multiple")


def _validate_features(batch: PagedBatch, features: Features) -> None:
    _expect(isinstance(features, Features), "features", type(features).__name__, "a Features")
    _expect(isinstance(features.causal, bool), "causal", repr(features.causal), "True or False")
    window, cap, sinks = features.sliding_window, features.softcap, features.sinks
    if window is not None:
        ok = isinstance(window, int) and not isinstance(window, bool) and 1 <= window < 2**31
        _expect(ok, "sliding_window", repr(window), "None or an integer from 1 to 2^31 - 1")
    if cap is not None:
        _expect(_is_factor(cap), "softcap", repr(cap), f"None or {_FACTOR}")
        least = batch.softmax_scale / _MOST  # logits are divided by it
        _expect(cap >= least, "softcap", repr(cap), f"at least softmax_scale / 2^127, {least}")
    if sinks is not None:
        _tensor(sinks, "sinks", 1, "None or a torch.Tensor")
        wanted = (batch.query.shape[1],)
        _expect(tuple(sinks.shape) == wanted, "sinks", tuple(sinks.shape), f"{wanted}, one per query head")
        _expect(sinks.dtype in DTYPES, "sinks", sinks.dtype, _FLOATS)
        _same_device(sinks, "sinks", batch)
        _expect(sinks.is_contiguous(), "sinks", f"stride {sinks.stride()}", "contiguous")


def _validate_sequence(batch: PagedBatch, seq: int, query_len: int, seq_len: int, table: torch.Tensor) -> None:
    """One sequence's lengths, and the page ids that a launch would follow."""
    num_blocks, block_size = batch.by_token()[0].shape[:2]
    allowed = f"0, or at least its query length {query_len}"
    _expect(seq_len == 0 or seq_len >= max(query_len, 0), f"seq_lens[{seq}]", seq_len, allowed)
    used, width = -(-seq_len // block_size), table.shape[1]
    allowed = f"at most {width} pages of {block_size} = {width * block_size}"
    _expect(used <= width, f"seq_lens[{seq}]", seq_len, allowed)
    bad = [page for page in table[seq, :used].tolist() if not 0 <= page < num_blocks]
    _expect(not bad, f"block_table[{seq}]", f"page id {bad[:1]}", f"0 to {num_blocks - 1}")


def _validate_values(batch: PagedBatch, features: Features) -> None:
    starts, lens, table = batch.query_start_loc.tolist(), batch.seq_lens.tolist(), batch.block_table.cpu()
    _expect(starts[0] == 0, "query_start_loc[0]", starts[0], "0")
    for seq in range(batch.num_seqs):
        allowed = f"at least the entry before it, {starts[seq]}"
        _expect(starts[seq + 1] >= starts[seq], f"query_start_loc[{seq + 1}]", starts[seq + 1], allowed)
    allowed = f"at most the {batch.num_tokens} rows of query"
    _expect(starts[-1] <= batch.num_tokens, f"query_start_loc[{batch.num_seqs}]", starts[-1], allowed)
    for seq, seq_len in enumerate(lens):
        _validate_sequence(batch, seq, starts[seq + 1] - starts[seq], seq_len, table)
    if features.sinks is not None:
        # -inf is "no sink"; NaN or +inf would turn every row of the head into NaN
        bad = ~(features.sinks < float("inf"))
        _expect(not bool(bad.any()), "sinks", f"{features.sinks[bad][:1].tolist()}", "finite or -inf")


def validate(batch: PagedBatch, features: Features, *, values: bool = True) -> None:
    """Refuse a malformed batch before any launch.

    `values=False` looks at types, shapes, dtypes, strides and devices only and never waits for the device;
    `values=True` also copies query_start_loc, seq_lens and block_table to the host. Raises SpecError naming the
    argument, what was found and what is allowed.
    """
    _validate_types(batch)
    _validate_shapes(batch)
    _validate_features(batch, features)
    if values:
        _validate_values(batch, features)


def validate_output(batch: PagedBatch, out: torch.Tensor, lse: torch.Tensor | None = None) -> None:
    """Refuse an `out` or `lse` that a launch could not write. Raises SpecError.

    out [num_tokens, num_query_heads, head_size] in the query's dtype, last dimension contiguous;
    lse float32 [num_tokens, num_query_heads], any strides. Neither may overlap itself or start where an input starts.
    """
    _expect(isinstance(out, torch.Tensor), "out", type(out).__name__, "a torch.Tensor")
    _expect(out.shape == batch.query.shape, "out", tuple(out.shape), f"the shape of query, {tuple(batch.query.shape)}")
    _expect(out.dtype == batch.query.dtype, "out", out.dtype, f"the dtype of query, {batch.query.dtype}")
    _same_device(out, "out", batch)
    _contiguous_rows(out, "out")
    _writable(out, "out", batch)
    if lse is not None:
        _expect(isinstance(lse, torch.Tensor), "lse", type(lse).__name__, "None or a torch.Tensor")
        wanted = tuple(batch.query.shape[:2])
        _expect(tuple(lse.shape) == wanted, "lse", tuple(lse.shape), str(wanted))
        _expect(lse.dtype == torch.float32, "lse", lse.dtype, "torch.float32")
        _same_device(lse, "lse", batch)
        _writable(lse, "lse", batch)
