"""What makes a batch, its features and its output well formed. Everything else is refused before any launch.

Each refusal is a SpecError naming the argument, what was found and what is allowed.
"""

import struct

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


def check_values(batch: PagedBatch, features: Features) -> None:
    """Raise SpecError for the first invalid entry of lengths, block_table or a feature's tensor.

    The batch is otherwise well formed (`validate(values=False)`). Waits for the device once.
    """
    found = _conditions(batch, features)
    if not found:
        return
    verdicts = torch.stack([_first(bad, value) for _, bad, value, _ in found]).tolist()
    for (name, _, values, allowed), (is_bad, index, number) in zip(found, verdicts, strict=True):
        if is_bad:
            width = batch.block_table.shape[1]
            row = index // width if name == "block_table" else index
            number = struct.unpack("d", struct.pack("q", number))[0] if values.is_floating_point() else number
            raise SpecError(f"{name}[{row}]", number, allowed)


def _first(bad: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """int64 [3]: whether any entry is bad, the first bad index, and its value: an integer, or the bits of a float64."""
    bad, value = bad.flatten(), value.flatten()
    index = bad.to(torch.int32).argmax()
    number = value[index].double().view(torch.int64) if value.is_floating_point() else value[index].long()
    return torch.stack([bad.any().long(), index, number])


def _conditions(batch: PagedBatch, features: Features) -> list[tuple[str, torch.Tensor, torch.Tensor, str]]:
    """(argument, bad entries, all entries, allowed), none of them empty, in the order in which they are judged."""
    starts, lens, table = batch.query_start_loc, batch.seq_lens, batch.block_table
    num_blocks, block_size = batch.by_token()[0].shape[:2]
    width = table.shape[1]
    index = torch.arange(starts.numel(), device=starts.device)
    before = torch.cat([starts[:1] * 0, starts[:-1]])
    bad = (starts < before) | ((index == 0) & (starts != 0)) | (starts > batch.num_tokens)
    allowed = f"0 first, then never less than the entry before, at most the {batch.num_tokens} rows of query"
    found = [("query_start_loc", bad, starts, allowed)]
    if batch.num_seqs:
        pages = (lens - 1) // block_size + 1  # 2^31 - 1 + (block_size - 1) would be negative
        bad = (lens < 0) | (pages > width)
        allowed = f"at least 0, and at most {width} pages of {block_size}"
        found.append(("seq_lens", bad, lens, allowed))
        used = torch.arange(width, device=table.device).unsqueeze(0) < pages.unsqueeze(1)
        if table.numel():
            bad = used & ((table < 0) | (table >= num_blocks))
            allowed = f"page ids from 0 to {num_blocks - 1}" if num_blocks else "no used entry: the caches have no page"
            found.append(("block_table", bad, table, allowed))
    return found + [tuple(condition) for condition in value_conditions(batch, features)]


def validate(batch: PagedBatch, features: Features, *, values: bool = True) -> None:
    """Refuse a malformed batch before any launch.

    `values=False` checks types, shapes, dtypes, strides and devices and never waits for the device; `values=True` also
    checks every value (`check_values`). Raises SpecError naming the argument, what was found and what is allowed.
    """
    _validate_types(batch)
    _validate_shapes(batch)
    check_features(batch, features)
    if values:
        check_values(batch, features)


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
