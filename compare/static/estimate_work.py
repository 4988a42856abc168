"""What the programs of a launch do: how many tiles each walks, and which bytes it needs; without GPU and code object.

A launch is identified by its kernel's symbol (Helion's have the same one behind `_helion_`), its place among the call's
launches, and the call's config. Kernels without a rule here (most ablations, baselines, others') have no
estimate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.serving.grid import power_of_two
from common.spec import AttentionShape
from common.spec.kernel import parts_of
from common.spec.metadata import ANY_QUERY, SHORT_QUERY, cdiv
from common.spec.step_plan import BLOCKS, SIZE
from compare.workloads import Workload
from compare.workloads.cost import key_bytes, scale_bytes, touched_keys

STATISTICS = 2  # fp32 values a row beside its accumulator: maximum and sum
LEAST_LANES = 16  # of a padded row (dsl_triton/binding.py)


@dataclass(frozen=True)
class Work:
    """tiles: of each program that has any, in launch order. rows, keys: of one tile. tile_bytes: K and V that a tile
    loads. read_bytes: distinct bytes that the launch reads from memory; write_bytes: bytes that it writes. tile_flops:
    of a tile's two products, masked pairs included."""

    tiles: tuple[int, ...]
    rows: int
    keys: int
    tile_bytes: int
    read_bytes: int
    write_bytes: int
    tile_flops: int = 0


Ints = np.ndarray  # a number for each Q Block
# the query tokens of the sequences that a launch serves
EVERY, NONE = range(ANY_QUERY + 1), range(0)
SHORT, LONG = range(SHORT_QUERY + 1), range(SHORT_QUERY + 1, ANY_QUERY + 1)


@dataclass(frozen=True)
class _Blocks:
    """How an attention kernel cuts a batch: Q Blocks of `rows` rows, tiles of `keys` keys, at most `segments` each."""

    rows: int
    keys: int
    segments: int
    served: range


def _range(context: Ints, first: Ints, last: Ints, seq: Ints, workload: Workload, keys: int) -> Ints:
    """Tiles that query tokens first .. last of sequences need."""
    window = workload.ask.sliding_window
    begin = 0 * first if window is None else np.maximum(context + first - window + 1, 0)
    end = np.minimum(context + last + 1, seq) if workload.ask.causal else seq + 0 * first
    return -(-end // keys) - begin // keys


def _q_blocks(workload: Workload, cut: _Blocks) -> list[int]:
    """Tiles of each Q Block of one KV head, sequence after sequence."""
    block_q = max(cut.rows // workload.shape.queries_per_kv, 1)
    served = [pair for pair in workload.lens if pair[0] and pair[0] in cut.served]
    if not served:
        return []
    query, seq = np.array(served).T
    blocks = -(-query // block_q)
    of = np.repeat(np.arange(len(served)), blocks)
    first = (np.arange(len(of)) - (np.cumsum(blocks) - blocks)[of]) * block_q
    last = np.minimum(first + block_q, query[of]) - 1
    return _range((seq - query)[of], first, last, seq[of], workload, cut.keys).tolist()


def _segments(tiles: int, segments: int) -> list[int]:
    """The tiles of one Q Block, dealt evenly over at most `segments` programs as dsl_*/primitives.py does."""
    each = max(cdiv(tiles, segments), 1)
    return [min(each, tiles - done) for done in range(0, tiles, each)] or [0]


def _sizes(workload: Workload, served: range) -> tuple[int, int, int]:
    """Distinct keys of all KV heads, bytes of query and bytes of out, of the sequences served."""
    shape, lens = workload.shape, [(q, s) for q, s in workload.lens if q and q in served]
    keys = sum(touched_keys(q, s, workload.ask) for q, s in lens)
    rows = sum(q for q, _ in lens) * shape.num_query_heads
    query, out = shape.head_size * shape.dtype.itemsize, shape.value_lanes * workload.out_dtype.itemsize
    return keys * shape.num_kv_heads, rows * query, rows * out


def _copied_bytes(workload: Workload, triton: bool) -> int:
    """Bytes of one key and its value in the scratch of `unpaged`: elements of the query's dtype, and scales. Triton
    pads rows of heads of one part to powers of two for its descriptors; Helion does not."""
    shape = workload.shape
    sizes = shape.head_size, shape.value_lanes
    padded = triton and parts_of(shape) == 1
    lanes = sum(max(LEAST_LANES, power_of_two(size)) for size in sizes) if padded else sum(sizes)
    return lanes * shape.dtype.itemsize + scale_bytes(workload)


def _part_bytes(shape: AttentionShape) -> int:
    """Bytes of a row whose tiles several programs share: its sums and statistics."""
    return (shape.value_lanes + STATISTICS) * 4


def _tile_flops(shape: AttentionShape, rows: int, keys: int) -> int:
    return 2 * rows * keys * (shape.head_size + shape.value_lanes)


def _attention(workload: Workload, cut: _Blocks, programs: int | None = None, copied: int | None = None) -> Work:
    """A launch of Q Blocks. programs: of a static grid, which shares all tiles evenly. copied: bytes of a key and its
    value read from a scratch; None: from pages."""
    shape, each_key = workload.shape, key_bytes(workload) if copied is None else copied
    blocks = _q_blocks(workload, cut)[::-1]  # the longest blocks of a prompt first
    if programs is None:
        dealt = [_segments(block, cut.segments) for block in blocks] if cut.segments > 1 else [blocks]
        each = [tiles for parts in dealt for tiles in parts]
        tiles = tuple(np.repeat(each, shape.num_kv_heads).tolist())
        parts = sum(len(one) for one in dealt if len(one) > 1) * shape.num_kv_heads if cut.segments > 1 else 0
    else:
        total = sum(blocks) * shape.num_kv_heads
        share, more = divmod(total, programs)
        tiles = tuple(n for n in [share + 1] * more + [share] * (programs - more) if n)
        parts = len(tiles) if len(blocks) * shape.num_kv_heads < programs else 0
    keys, query, out = _sizes(workload, cut.served)
    part_bytes = parts * cut.rows * _part_bytes(shape)
    written = part_bytes if parts and cut.segments > 1 else out + (part_bytes if programs else 0)
    tile_flops = _tile_flops(shape, cut.rows, cut.keys)
    return Work(tiles, cut.rows, cut.keys, cut.keys * each_key, keys * each_key + query, written, tile_flops)


def _blocks(workload: Workload, part: Mapping[str, Any], served: range) -> _Blocks:
    rows = max(part.get("block_m", 16), power_of_two(workload.shape.queries_per_kv))
    return _Blocks(rows, part["tile_size"], part.get("num_segments", 1), served)


def _naive(workload: Workload, config: Mapping[str, Any], _: int) -> Work:
    """A program serves one query token and head, or all tokens of a sequence under one head; a tile is a page."""
    shape, page = workload.shape, workload.shape.block_size
    tiles: list[int] = []
    for query, seq in workload.lens:
        tokens = np.arange(query)
        each = _range(seq - query, tokens, tokens, seq, workload, page).tolist()
        each = [sum(each)] if config["grid"] == "sequences" else each
        tiles += [n for n in each for _ in range(shape.num_query_heads)]
    keys, query, out = _sizes(workload, EVERY)
    read, tile_bytes = keys * key_bytes(workload), page * key_bytes(workload)
    return Work(tuple(tiles), 1, page, tile_bytes, read + query, out, _tile_flops(shape, 1, page))


def _parts_read(workload: Workload, cut: _Blocks) -> Work:
    """The reduction over segments: bytes in, bytes out, one row for each program."""
    shape = workload.shape
    counts = [len(_segments(block, cut.segments)) for block in _q_blocks(workload, cut)]
    rows = sum(n for n in counts if n > 1) * cut.rows * shape.num_kv_heads
    merged = sum(1 for n in counts if n > 1) * cut.rows * shape.num_kv_heads
    tokens = sum(query for query, _ in workload.lens if query in cut.served)
    out = merged * shape.value_lanes * workload.out_dtype.itemsize
    return Work((1,) * (tokens * shape.num_query_heads), 1, 0, 0, rows * _part_bytes(shape), out)


def _long_part(workload: Workload, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a static grid: the part that takes long queries, by what its capture holds."""
    copied, stats = config.get("copied") or {"least_tokens": 0}, workload.stats
    copies = 0 < copied["least_tokens"] <= stats.num_tokens
    worth = stats.max_query_len >= copied.get("least_query_len", 0)  # older records lack it
    return copied if copies and worth else config["prefill"]


def _classes(workload: Workload, config: Mapping[str, Any]) -> list[_Blocks]:
    """Of a static grid: how it cuts short and long queries, where there are some."""
    classes = ((config["decode"], SHORT), (_long_part(workload, config), LONG))
    return [
        _blocks(workload, part, served)
        for part, served in classes
        if any(query and query in served for query, _ in workload.lens)
    ]


def _merge(workload: Workload, config: Mapping[str, Any], _: int) -> Work:
    """The merge of a static grid: a part of each program where they have no Q Block each."""
    shape, programs, rows = workload.shape, config["programs"], 0
    for cut in _classes(workload, config):
        rows += programs * cut.rows if len(_q_blocks(workload, cut)) * shape.num_kv_heads < programs else 0
    out = rows * shape.value_lanes * workload.out_dtype.itemsize
    return Work((1,) * programs, 1, 0, 0, rows * _part_bytes(shape), out)


def _plan(workload: Workload, config: Mapping[str, Any], _: int) -> Work:
    """The plan of a step: a line for each Q Block, and the lengths that all programs read."""
    blocks = sum(len(_q_blocks(workload, cut)) for cut in _classes(workload, config))
    lengths = 8 * len(workload.lens)
    return Work((1,) * max(cdiv(blocks, BLOCKS), 1), 1, 0, 0, lengths, blocks * 4 * SIZE)


def _copy(workload: Workload, config: Mapping[str, Any], copied: int) -> Work:
    """K and V of long queries out of their pages: read once, written once, `copied` bytes a key."""
    part = config.get("copied") or config["prefill"]  # of a static grid, of `unpaged`
    keys, _, _ = _sizes(workload, LONG)
    share, more = divmod(keys // part["tile_size"], part["copy_programs"])
    each = tuple(n for n in [share + 1] * more + [share] * (part["copy_programs"] - more) if n)
    read = keys * key_bytes(workload)
    return Work(each, 1, 0, 0, read, keys * copied)


def _unpaged(workload: Workload, config: Mapping[str, Any], place: int, copied: int) -> Work:
    """The first launch reads what was copied; the second, for what did not fit, has nothing to do."""
    served = LONG if place == 0 else NONE
    return _attention(workload, _blocks(workload, config["prefill"], served), copied=copied)


def _items(workload: Workload, config: Mapping[str, Any], place: int) -> Work:
    """The items of a class, which programs share evenly: the first launch has the short queries, the second the long
    ones that are read through pages."""
    if place == 0:
        return _attention(workload, _blocks(workload, config["decode"], SHORT), config["programs"])
    part = _long_part(workload, config)
    served = NONE if part is config.get("copied") else LONG
    return _attention(workload, _blocks(workload, part, served), part.get("programs") or config["programs"])


def _copied_items(workload: Workload, config: Mapping[str, Any], copied: int) -> Work:
    part = config["copied"]
    return _attention(workload, _blocks(workload, part, LONG), part["programs"], copied)


def _reduce(workload: Workload, config: Mapping[str, Any], place: int) -> Work:
    """The reduction of the short queries, where they have segments, then of the long ones."""
    if "prefill" not in config:
        return _parts_read(workload, _blocks(workload, config, EVERY))
    cuts = [_blocks(workload, config["decode"], SHORT), _blocks(workload, config["prefill"], LONG)]
    cuts = [cut for cut in cuts if cut.segments > 1]
    return _parts_read(workload, cuts[min(place, len(cuts) - 1)])


def _segment_programs(workload: Workload, config: Mapping[str, Any], _: int) -> Work:
    if "prefill" in config:
        return _attention(workload, _blocks(workload, config["decode"], SHORT))
    return _attention(workload, _blocks(workload, config, EVERY))


# By symbol; Helion's own where the DSLs' launches differ.
_RULES: dict[str, Callable[[Workload, Mapping[str, Any], int], Work]] = {
    "_naive_kernel": _naive,
    "_q_block_kernel": lambda w, c, _: _attention(w, _blocks(w, c, EVERY)),
    "_idiomatic_kernel": lambda w, c, _: _attention(w, _blocks(w, c, EVERY)),
    "_segments_kernel": _segment_programs,
    "_reduce_segments_kernel": _reduce,
    "_long_queries_kernel": lambda w, c, _: _attention(w, _blocks(w, c["prefill"], LONG)),
    "_prefill_kernel": lambda w, c, _: _attention(w, _blocks(w, c["prefill"], range(2, ANY_QUERY))),
    "_decode_kernel": lambda w, c, _: _attention(w, _blocks(w, c["decode"], range(1, 2))),
    "_attend_items_kernel": _items,
    "_attend_copied_kernel": lambda w, c, _: _copied_items(w, c, _copied_bytes(w, triton=True)),
    "_helion__attend_copied_kernel": lambda w, c, _: _copied_items(w, c, _copied_bytes(w, triton=False)),
    "_merge_parts_kernel": _merge,
    "_plan_kernel": _plan,
    "_copy_kernel": lambda w, c, _: _copy(w, c, _copied_bytes(w, triton=True)),
    "_helion__copy_kernel": lambda w, c, _: _copy(w, c, _copied_bytes(w, triton=False)),
    "_unpaged_kernel": lambda w, c, place: _unpaged(w, c, place, _copied_bytes(w, triton=True)),
    "_paged_queries_kernel": lambda w, c, _: _attention(w, _blocks(w, c["prefill"], NONE)),
    "_helion__unpaged_kernel": lambda w, c, place: _unpaged(w, c, place, _copied_bytes(w, triton=False)),
}
_RUNGS = ("naive", "q_block", "parallel_softmax", "adjustable_tile", "static_grid", "split", "unpaged")
ESTIMATED = frozenset({*_RUNGS, "ablations.idiomatic"})


def works(kernel_id: str, config: Mapping[str, Any], symbols: Sequence[str], workload: Workload) -> list[Work] | None:
    """The Work of each launch of a call, in launch order; None where a kernel has no rule.

    kernel_id: of the registry. config: as a record holds it; `auto`'s names the kernel that it chose.
    """
    family, _, name = kernel_id.partition("/")
    if name == "auto":
        name, config = config["kernel"], config["config"]
    if family not in ("triton", "helion") or name not in ESTIMATED:
        return None
    if name == "static_grid" and "programs" not in config:  # of a kernel that is gone
        return None
    plain = [symbol.removeprefix("_helion_") for symbol in symbols]
    if not set(plain) <= set(_RULES):
        return None
    rules = [_RULES.get(symbol) or _RULES[stem] for symbol, stem in zip(symbols, plain, strict=True)]
    places = [plain[:i].count(symbol) for i, symbol in enumerate(plain)]
    return [rule(workload, config, place) for rule, place in zip(rules, places, strict=True)]
