"""The host side of a launch: which gather form a cache allows, and how a config becomes a kernel that is bound once.

Triton's counterpart is `kernel[grid](...)`. A launch never searches: an explicit helion.Config goes with every kernel.
"""

import functools
import math
from dataclasses import replace
from typing import Any, Literal

import helion
import torch
from helion.runtime import default_launcher

from common.choice.legal import WARP_GROUP_ROWS, fits_one
from common.gpus import REGISTERS
from common.spec import AttentionShape, Gpu, PagedBatch, UnsupportedFeature, cdna
from common.spec import kernel as protocol
from common.spec.paged_batch import ALIGNMENT
from dsl_helion.kept import Kept, counts, for_any_counts
from dsl_helion.symmetric_memory import ruled_out

# How K and V are read through the block table, fastest first; background and figures are in docs/choosing-a-dsl.md.
#   page   whole pages [pages, block_size, head_size], reshaped to a tile: powers of two, and a tile holds whole pages
#   flat   one index per key into rows of all pages: the distance of two pages is a multiple of that of two slots, and
#          rows begin where the words that they are read in may (aligned_rows)
#   2idx   page and slot as two indices: any strides, any page
Gather = Literal["page", "flat", "2idx"]

# Eviction policy of the cache lines that a kernel's loads bring: none, evict first, or evict last.
Eviction = Literal["", "first", "last"]

TRACED = 64  # keys of any tile while Helion traces
MAX_SHAPES = 4096  # launches that are kept; a serving engine has fewer batch sizes
_compiled: dict[tuple[Any, ...], Any] = {}
_generated: set[Any] = set()  # functions that Helion made in this process


def is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def page_form_applies(shape: AttentionShape, tile_size: int) -> bool:
    """Whole pages make a tile of a power of two. A page is at most TRACED keys: with torch 2.11 Helion refuses a view
    of a tile as larger pages (TorchOpTracingError).
    """
    sizes = (shape.block_size, shape.head_size, shape.value_lanes)
    fitting = shape.block_size <= min(tile_size, longest_page(shape, tile_size))
    return all(is_power_of_two(n) for n in sizes) and fitting


def longest_page(shape: AttentionShape, tile_size: int) -> int:
    """Keys of a page in the view of a tile as whole pages. Of TRACED keys by as many lanes Helion concludes that the
    tile has TRACED keys too, without a message (_require_block_sizes); of runs of a page, by any lanes."""
    square = TRACED in (shape.head_size, shape.value_lanes) and tile_size != TRACED
    return TRACED // 2 if square else TRACED


def addressed_in_32_bits(batch: PagedBatch) -> bool:
    """Whether slots and KV heads of a page lie within 2^31 elements; slots further apart than pages do not."""
    shape, caches = batch.shape, (batch.key_cache, batch.value_cache)
    spans = [(shape.block_size - 1) * c.stride(1) + (shape.num_kv_heads - 1) * c.stride(2) + c.shape[3] for c in caches]
    return max(spans) < 2**31


def aligned_rows(cache: torch.Tensor) -> bool:
    """Whether rows begin at multiples of the widest word, of at most 16 bytes, that they are whole numbers of.

    Triton 3.6.0, not 3.7, takes the flat index of each key of a masked tile, page * page_rows + slot, for a multiple of
    16: it read K of 192 bytes in slots of 392 in words of 16 bytes, which fault in odd slots.
    """
    word = math.gcd(cache.shape[-1] * cache.itemsize, ALIGNMENT)
    return cache.stride(1) * cache.itemsize % word == 0


def gather_form(asked: Gather, batch: PagedBatch, tile_size: int) -> tuple[Gather, int]:
    """The form asked for where it applies, else the next; and how many rows of the flat view a page takes.

    All forms give the same result. K and V whose pages take different numbers of rows have no common flat index, and a
    flat index has 32 bits. Only 2idx multiplies a KV head in 64 bits.
    """
    caches = (batch.key_cache, batch.value_cache)
    strides = [cache.stride()[:2] for cache in caches]
    rows = {page // slot if slot and page % slot == 0 else None for page, slot in strides}
    if asked == "2idx" or not addressed_in_32_bits(batch):
        return "2idx", 0
    if asked == "page" and page_form_applies(batch.shape, tile_size):
        return "page", 0
    if len(rows) > 1 or None in rows or not all(map(aligned_rows, caches)):
        return "2idx", 0
    page_rows = rows.pop()
    return ("flat", page_rows) if len(caches[0]) * page_rows < 2**31 else ("2idx", 0)


def constant_axis(num_kv_heads: int, gather: Gather, rows: int = WARP_GROUP_ROWS) -> int:
    """The axis of a cache whose stride is a constant of the code: slots, so that whole pages add one offset.

    Under one KV head, with whole pages and enough rows of a Q Block for wgmma, it is pages, whose stride is a constant
    anyway. With both constant LLVM moves address arithmetic between two loops, where ptxas serialises the wgmmas
    (C7515).
    """
    return 0 if num_kv_heads == 1 and gather == "page" and rows >= WARP_GROUP_ROWS else -3


def loadable(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """e4m3fnuz as bytes, which `primitives.stored` takes back: Helion's masked load of it does not compile."""
    return tensor.view(torch.uint8) if tensor is not None and tensor.dtype == torch.float8_e4m3fnuz else tensor


def cache_view(cache: torch.Tensor, gather: Gather, page_rows: int) -> torch.Tensor:
    """`cache`; for the flat form a view [rows, num_kv_heads, head_size]: slot s of page p is row p * page_rows + s."""
    cache = loadable(cache)
    if gather != "flat":
        return cache
    blocks, slots, heads, lanes = cache.shape
    rows = (blocks - 1) * page_rows + slots if blocks else 0
    return cache.as_strided((rows, heads, lanes), cache.stride()[1:])


def value_dtype(query_dtype: torch.dtype, token_scales: bool) -> torch.dtype:
    """Dtype of P and V as operands: the query's, but fp16 beside an fp8 query.

    bf16 where fp16 could not hold P times V's scale per token. dsl_triton/binding.py says why not fp8.
    """
    dtype = torch.float16 if is_fp8(query_dtype) else query_dtype
    return torch.bfloat16 if token_scales and dtype == torch.float16 else dtype


def deals_lanes(dtype: torch.dtype, lanes: int) -> bool:
    """Whether products take stored V of this dtype with permuted lanes (features.deal_lanes).

    Only lanes that are a power of two: Helion pads others itself. Triton permutes below 64 rows alone; Helion does not
    know the number of rows while it traces.
    """
    return dtype.itemsize == 1 and lanes > 32 and is_power_of_two(lanes)


def product_lanes(value_size: int, head_lanes: int, dtype: torch.dtype) -> int:
    """Lanes of V and of the accumulator beside a query of `dtype`: dsl_triton/binding.py says why not always
    value_size. Here for any number of rows, for which see deals_lanes; V's lanes are a power of two or their own."""
    if dtype.itemsize > 2 or not is_power_of_two(value_size):
        return value_size
    return max(value_size, min(helion.next_power_of_2(head_lanes) * dtype.itemsize // 2, 64))


def require(kernel: str, supports: frozenset[str], batch: PagedBatch, *given: Any) -> None:
    """common.spec.kernel.require, and a refusal of values that `product_lanes` would widen but Helion does not pad."""
    protocol.require(kernel, supports, batch, *given)
    if batch.shape.value_lanes == 24 and batch.shape.head_size > 32:
        raise UnsupportedFeature(kernel, "value_size", "24 lanes beside a head of at most 32, or another size")


launches = functools.partial(protocol.launches, ensure=require)


def is_wider(lanes: int, value_size: int) -> bool:
    """Whether V is widened to `lanes`. On the host: Helion would let the device compare sizes."""
    return is_power_of_two(value_size) and lanes > value_size


def is_fp8(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 1


def product_dtype(dtype: torch.dtype) -> torch.dtype:
    """What operands of this dtype are multiplied as: hl.dot refuses e4m3fnuz, whose numbers fp16 holds exactly."""
    return torch.float16 if dtype == torch.float8_e4m3fnuz else dtype


def largest(dtype: torch.dtype) -> float:
    """The largest number of an 8-bit dtype."""
    return float((torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max)


def operands(batch: PagedBatch, gather: Gather, page_rows: int) -> tuple[torch.Tensor, ...]:
    """Q, K and V as a kernel takes them."""
    caches = (cache_view(cache, gather, page_rows) for cache in (batch.key_cache, batch.value_cache))
    return loadable(batch.query), *caches


def kernel(function: Any, *counts: str) -> helion.Kernel:
    """Sizes and strides stay run-time values; products of float32 in IEEE, as the precision contract says.

    counts: integers of the kernel that follow from a batch or a number of segments: Triton's `do_not_specialize`.
    Every launch names its config. Helion's own default on sm_90 depends on the sizes of the first call, one token in a
    warm-up, and on facts of the device, with which a kernel cannot be kept (kept.py).
    """
    settings = {"static_shapes": False, "autotune_effort": "none", "disable_autotuner_heuristics": True}
    made = helion.kernel(function, dot_precision="ieee", **settings)
    made.counts = counts
    return made


def smallest_block_m(shape: AttentionShape) -> int:
    """Fewest rows of a Q Block: one token under all query heads of a KV head, and 16 for a matrix product."""
    return fewest_rows(shape.queries_per_kv)


def fewest_rows(queries_per_kv: int) -> int:
    """smallest_block_m, as a kernel asks while Helion traces it."""
    return max(16, helion.next_power_of_2(queries_per_kv))


def block_m_of(config: Any, shape: AttentionShape) -> int:
    """Rows of a Q Block: the config's, or smallest_block_m where that is larger."""
    return max(config.block_m, smallest_block_m(shape))


def held(config: Any, shape: AttentionShape) -> Any:
    """`config` with the tile size that the kernel really has, for code that counts in tiles beside the kernel.

    Helion raises a tile that is too small for a product, without a message: to 32 keys of fp8 on NVIDIA.
    """
    least = 32 if is_fp8(product_dtype(shape.dtype)) else 16
    return config if config.tile_size >= least else replace(config, tile_size=least)


def fits(config: Any, shape: AttentionShape, gpu: Gpu) -> bool:
    """Whether operands fit into shared memory and the accumulator into registers, and the gather form applies."""
    if config.gather == "page" and not page_form_applies(shape, config.tile_size):
        return False
    rows = block_m_of(config, shape)
    return fits_one(rows, config.tile_size, config.num_warps, config.num_stages, shape, gpu)


def _fingerprint(value: Any) -> Any:
    """Return a key of all that Helion may compile differently for. It is finer than Helion's own key, and six times as
    fast."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, dict):
        return tuple([None if v is None else _fingerprint(v) for v in value.values()])
    return type(value) if isinstance(value, float) else value


def run(bindable: helion.Kernel, config: Any, args: tuple[Any, ...], registers: int = 0, **options: Any) -> None:
    """Launch `bindable` with a config and with `options`, settings of Helion that follow from the config.

    registers: the most of a thread, in a grid that is not persistent; 0: the compiler's choice. NVIDIA alone.
    descriptors=True: read whole tiles through tensor descriptors that the host makes, where the GPU has TMA; by plain
    loads elsewhere. Without descriptors of the host Helion 1.5 makes them for `hl.tile` loops only.
    """
    tensors = [id(value) for value in args if isinstance(value, torch.Tensor)]
    same = len(set(tensors)) != len(tensors)  # a tensor passed twice is another specialisation
    key = (bindable, config, args[0].device, *map(_fingerprint, args))
    compiled = None if same else _compiled.get(key)
    if compiled is None:
        with ruled_out():
            compiled = _compile(bindable, config, args, options)
        if len(_compiled) == MAX_SHAPES:
            _compiled.clear()
        if not same:
            _compiled[key] = compiled
    compiled(*args, **launcher(config, registers))


def launcher(config: Any, registers: int = 0) -> dict[str, Any]:
    """An argument of generated functions where a launch asks for what Helion has no setting for; else none."""
    options = cdna.scheduling(config) | ({"maxnreg": registers} if registers else {})
    return {"_launcher": functools.partial(default_launcher, **options)} if options else {}


def loop_order(config: Any, axes: int) -> list[int]:
    """Return Helion's loop order for a grid whose last axis is KV heads: the fastest axis first.

    Heads are the slow axis where programs are dealt to several dies, because Helion gives a die neighbouring programs.
    """
    order = list(reversed(range(axes)))
    if getattr(config, "heads_fastest", True) and config.xcds == 1:
        return order
    return [*order[1:], axes - 1]


def _own_words(config: Any) -> dict[str, Any]:
    """Return Helion's settings for axes that Triton's kernels lack or name in another way.

    registers: Helion bounds them in persistent grids alone, with as many programs an SM as so many registers allow.
    eviction: see Eviction. The others are common.spec.Cdna's; its number of dies Helion asks the device for.
    """
    words: dict[str, Any] = {}
    if rows := getattr(config, "matrix_instr", 0):
        words["matrix_instr_nonkdim"] = rows
    if waves := getattr(config, "waves_per_eu", 0):
        words["waves_per_eu"] = waves
    if getattr(config, "xcds", 1) > 1:
        words["xcd_remap"] = True
    if getattr(config, "stream", False):
        words["load_cache_modifiers"] = ".cg"
    if registers := getattr(config, "registers", 0):
        programs = max(REGISTERS // (32 * config.num_warps * registers), 1)
        words |= {"pid_type": "persistent_interleaved", "maxnreg": registers, "num_sm_multiplier": programs}
    if eviction := getattr(config, "eviction", ""):
        words["load_eviction_policies"] = eviction
    return words


def _require_block_sizes(bound: Any, config: helion.Config) -> None:
    """Raises RuntimeError if tracing made a block size a constant other than the config's. Tiles would then silently
    have another size than the code that counts them expects."""
    for number, (spec, asked) in enumerate(zip(bound.config_spec.block_sizes, config.block_sizes, strict=True)):
        size = bound.env.block_sizes[spec.block_id].var
        found = bound.env.shape_env.simplify(size._sympy_()) if isinstance(size, torch.SymInt) else size
        if getattr(found, "is_number", True) and int(found) != asked:
            raise RuntimeError(f"block size {number}: Helion traced {found}, the config has {asked}")


def _nothing(*args: Any, **options: Any) -> None:
    """In place of a kernel that another process compiles."""


def _compile(bindable: helion.Kernel, config: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return the compiled function for these arguments and this config: kept by Helion, from the disk, or new."""
    ours = {"num_warps": config.num_warps, "num_stages": config.num_stages} | _own_words(config)
    kept = Kept(bindable, ours | options, args)
    if kept.is_others:
        return _nothing
    if (found := kept.load()) is not None:
        return found
    bound = bindable.bind(args)
    if options.pop("descriptors", False) and bound.config_spec.supports_config_key("host_tensor_descriptors"):
        ours |= {"indexing": "tensor_descriptor", "host_tensor_descriptors": True}
    for words in ("load_eviction_policies", "load_cache_modifiers"):  # one for all loads, where Helion has one for each
        if word := ours.pop(words, ""):
            ours[words] = [word] * getattr(bound.config_spec, words).length
    whole = helion.Config(**bound.config_spec.default_config().config | ours | options)
    _require_block_sizes(bound, whole)
    function = for_any_counts(bound.compile_config(whole), bindable.counts)
    counts["generated"] += function not in _generated
    _generated.add(function)
    kept.keep(bound, function)  # of other facts than those that it was kept for, where it is no new one
    return function
