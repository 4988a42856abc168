"""What makes a batch, its features and its output well formed. Everything else is refused before any launch.

Each refusal is a SpecError naming the argument, what was found and what is allowed.
"""

from __future__ import annotations

import torch

from common.spec.feature_rules import check_features, output_dtypes, value_conditions
from common.spec.features import OPERANDS
from common.spec.metadata import BatchStats
from common.spec.paged_batch import (
    ALIGNMENT,
    DTYPES,
    E4M3,
    QUANTISED,
    AttentionShape,
    Features,
    Layout,
    PagedBatch,
    SpecError,
)
from common.spec.ranges import RANGES
from common.spec.refusals import (
    expect,
    expect_contiguous_rows,
    expect_fp8,
    expect_number,
    expect_same_device,
    expect_stored,
    expect_tensor,
    expect_writable,
)

_PLAIN = Features()
_RANKS = {"query": 3, "key_cache": 4, "value_cache": 4, "block_table": 2, "query_start_loc": 1, "seq_lens": 1}
_QUERIES = ", ".join(str(dtype) for dtype in (*DTYPES, *E4M3))
_CACHES = ", ".join(str(dtype) for dtype in (*DTYPES, *QUANTISED))


def _validate_types(batch: PagedBatch) -> None:
    expect(isinstance(batch, PagedBatch), "batch", type(batch).__name__, "a PagedBatch")
    if not isinstance(batch.layout, Layout):
        raise SpecError("layout", repr(batch.layout), "Layout.PAGED or Layout.X_PACKED")
    packed = batch.layout is Layout.X_PACKED
    for name, rank in _RANKS.items():
        tensor = getattr(batch, name)
        expect_tensor(tensor, name, 5 if packed and name == "key_cache" else rank)
        expect_same_device(tensor, name, batch)
        expect_contiguous_rows(tensor, name)
    _validate_dtypes(batch.query.dtype, batch.key_cache.dtype, batch.value_cache.dtype)
    table = batch.block_table.dtype
    expect(table in (torch.int32, torch.int64), "block_table", table, "torch.int32 or torch.int64")
    for name in ("query_start_loc", "seq_lens"):
        dtype = getattr(batch, name).dtype
        expect(dtype == torch.int32, name, dtype, "torch.int32")
    expect_number(batch.softmax_scale, "softmax_scale", RANGES["softmax_scale"])
    expect(isinstance(batch.stats, BatchStats), "stats", type(batch.stats).__name__, "a BatchStats")


def _validate_dtypes(query: torch.dtype, key: torch.dtype, value: torch.dtype) -> None:
    if query in DTYPES and query == key == value:
        return
    expect(query in DTYPES or query in E4M3, "query", query, _QUERIES)
    expect(key in DTYPES or key in QUANTISED, "key_cache", key, _CACHES)
    allowed = f"the dtype of query, {query}" + (", or a quantised one" if query in DTYPES else "")
    expect(key == query or (key in QUANTISED and query in DTYPES), "key_cache", key, allowed)
    expect(value == key, "value_cache", value, f"the dtype of key_cache, {key}")


def _validate_packed(batch: PagedBatch, shape: AttentionShape) -> None:
    """Check the shape of K in Layout.X_PACKED."""
    cache = tuple(batch.key_cache.shape)
    x = ALIGNMENT // shape.cache_dtype.itemsize
    wanted = (cache[0], shape.num_kv_heads, shape.head_size // x, shape.block_size, x)
    expect(cache == wanted, "key_cache", cache, f"{wanted}: [blocks, KV heads, head size / x, page, x]")


def _validate_shapes(batch: PagedBatch) -> None:
    cache, values = tuple(batch.key_cache.shape), tuple(batch.value_cache.shape)
    if batch.layout is Layout.X_PACKED:
        blocks, heads, _, page, _ = cache
        if (*values[:2], values[3]) != (blocks, heads, page):
            raise SpecError("value_cache", values, f"[{blocks}, {heads}, value size, {page}]: blocks, KV heads, page")
    shape = batch.shape  # raises where the sizes are not attention
    if batch.layout is Layout.X_PACKED:
        _validate_packed(batch, shape)
    else:
        wanted = f"the shape of key_cache, {cache}, but for the last dimension"
        expect(values[:3] == cache[:3], "value_cache", values, wanted)
        expect(cache[3] == shape.head_size, "key_cache", f"head size {cache[3]}", f"that of query, {shape.head_size}")
    if batch.key is not None or batch.value is not None:
        _validate_new_tokens(batch, shape)
    rows, entries, num_seqs = batch.block_table.shape[0], batch.query_start_loc.shape[0], batch.num_seqs
    expect(rows == num_seqs, "block_table", f"{rows} rows", f"{num_seqs}, one per sequence")
    if batch.block_table.shape[1] == 0 and rows:  # kernels read a row's first entry before its length
        raise SpecError("block_table", "0 columns", "at least 1")
    expect(entries == num_seqs + 1, "query_start_loc", f"{entries} entries", f"num_seqs + 1 = {num_seqs + 1}")


def _validate_new_tokens(batch: PagedBatch, shape: AttentionShape) -> None:
    """Check `key` and `value`, where the step's new tokens are given."""
    expect(shape.dtype in DTYPES, "key", "key beside an fp8 query", "None: the caches count")
    for name, size in (("key", shape.head_size), ("value", shape.value_lanes)):
        wanted = (batch.num_tokens, shape.num_kv_heads, size)
        tensor = getattr(batch, name)
        expect_tensor(tensor, name, 3, "a torch.Tensor, or both key and value None")
        expect_same_device(tensor, name, batch)
        if tensor.shape != wanted:
            raise SpecError(name, tuple(tensor.shape), str(wanted))
        if tensor.dtype != batch.query.dtype:
            raise SpecError(name, tensor.dtype, f"the dtype of query, {batch.query.dtype}")
        expect_contiguous_rows(tensor, name)
        if tensor.data_ptr() % ALIGNMENT and tensor.numel():
            behind = tensor.data_ptr() % ALIGNMENT
            raise SpecError(name, f"an address {behind} bytes behind a multiple of {ALIGNMENT}", "such a multiple")


def _validate_sequence(batch: PagedBatch, seq: int, seq_len: int, table: torch.Tensor) -> None:
    """Check one sequence's number of keys, and the page ids that a launch would follow."""
    num_blocks, block_size = batch.by_token()[0].shape[:2]
    expect(seq_len >= 0, f"seq_lens[{seq}]", seq_len, "at least 0")
    used, width = -(-seq_len // block_size), table.shape[1]
    allowed = f"at most {width} pages of {block_size} = {width * block_size}"
    expect(used <= width, f"seq_lens[{seq}]", seq_len, allowed)
    bad = [page for page in table[seq, :used].tolist() if not 0 <= page < num_blocks]
    expect(not bad, f"block_table[{seq}]", f"page id {bad[:1]}", f"0 to {num_blocks - 1}")


def _validate_values(batch: PagedBatch, features: Features) -> None:
    starts, lens, table = batch.query_start_loc.tolist(), batch.seq_lens.tolist(), batch.block_table.cpu()
    expect(starts[0] == 0, "query_start_loc[0]", starts[0], "0")
    for seq in range(batch.num_seqs):
        allowed = f"at least the entry before it, {starts[seq]}"
        expect(starts[seq + 1] >= starts[seq], f"query_start_loc[{seq + 1}]", starts[seq + 1], allowed)
    allowed = f"at most the {batch.num_tokens} rows of query"
    expect(starts[-1] <= batch.num_tokens, f"query_start_loc[{batch.num_seqs}]", starts[-1], allowed)
    for seq, seq_len in enumerate(lens):
        _validate_sequence(batch, seq, seq_len, table)
    for name, bad, values, allowed in value_conditions(batch, features):
        expect(not bool(bad.any()), name, f"{values[bad][:1].tolist()}", allowed)


def validate(batch: PagedBatch, features: Features, *, values: bool = True) -> None:
    """Refuse a malformed batch before any launch.

    `values=False` checks types, shapes, dtypes, strides and devices and never waits for the device; `values=True` also
    copies query_start_loc, seq_lens and block_table to the host. Raises SpecError naming the argument, what was found
    and what is allowed.
    """
    _validate_types(batch)
    _validate_shapes(batch)
    check_features(batch, features)
    if values:
        _validate_values(batch, features)


def inputs_of(batch: PagedBatch, features: Features) -> dict[str, torch.Tensor | None]:
    """All tensors that a launch reads, by name."""
    found = {name: getattr(batch, name) for name in (*_RANKS, "key", "value")}
    return found | {name: getattr(features, name) for name in OPERANDS}


def validate_output(
    batch: PagedBatch, out: torch.Tensor, lse: torch.Tensor | None = None, features: Features = _PLAIN
) -> None:
    """Refuse an `out` or `lse` that a launch could not write. Raises SpecError.

    out [num_tokens, num_query_heads, value size], last dimension contiguous, in one of `output_dtypes`: the query's
    dtype, fp8 beside `Features.out_scale`, any float dtype for an fp8 query;
    lse float32 [num_tokens, num_query_heads], any strides. Neither may share memory with itself, the other or an input.
    """
    expect_stored(out, "out")
    rows = tuple(batch.query.shape[:2])
    wanted = (*rows, batch.value_cache.shape[2 if batch.layout is Layout.X_PACKED else 3])
    if out.shape != wanted:
        raise SpecError("out", tuple(out.shape), f"{wanted}: tokens and heads of query, lanes of value_cache")
    if out.dtype != batch.query.dtype or features.out_scale is not None or batch.query.dtype not in DTYPES:
        dtypes = output_dtypes(batch.query.dtype, features.out_scale)
        allowed = ", ".join(map(str, dtypes)) + (" beside out_scale" if features.out_scale is not None else "")
        expect(out.dtype in dtypes, "out", out.dtype, allowed)
        expect_fp8(out, "out")
    expect_same_device(out, "out", batch)
    expect_contiguous_rows(out, "out")
    inputs = inputs_of(batch, features)
    expect_writable(out, "out", inputs)
    if lse is not None:
        expect_stored(lse, "lse", "None or a torch.Tensor")
        expect(tuple(lse.shape) == rows, "lse", tuple(lse.shape), str(rows))
        expect(lse.dtype == torch.float32, "lse", lse.dtype, "torch.float32")
        expect_same_device(lse, "lse", batch)
        expect_writable(lse, "lse", {"out": out, **inputs})
