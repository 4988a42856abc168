"""The protocol of a kernel module.

A kernel is a module (PEP 544: modules fulfil protocols): in `dsl_triton`, in `dsl_helion`, among the baselines, or
anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch

from common.spec.metadata import SHORT_QUERY, power_of_two
from common.spec.paged_batch import (
    FP8,
    AttentionShape,
    Features,
    Layout,
    PagedBatch,
    SpecError,
    UnsupportedFeature,
    is_per_token,
)
from common.spec.precision import Precision
from common.spec.toolchain import expect_compiler
from common.spec.validation import validate, validate_output

# The features of kernels that read all of them from one bundle (dsl_triton/features.py, dsl_helion/features.py).
SEAMS = frozenset({
    "causal", "non_causal", "sliding_window", "softcap", "sinks", "alibi", "alibi_sqrt", "chunked_local", "prefix_lm",
    "causal_per_sequence", "cross", "tree_bias", "value_size", "head_size_512", "fp8_kv", "int8_kv", "fp8_query",
    "fp8_out",
})  # fmt: skip
MEMBERS = SEAMS | {"batch_invariant", "full_graph", "lse", "x_packed"}
MOST_KEYS = 2**18  # 1 GiB of K and V with 8 KV heads of 128 in bf16


@dataclass(frozen=True)
class Capacity:
    """The largest batch that a workspace must serve.

    num_keys: keys of sequences of long queries that scratch should hold. A hint, because lengths are on the device: a
    batch with more keys costs time, never correctness.
    """

    num_tokens: int
    num_seqs: int
    device: torch.device
    num_keys: int = 0

    @classmethod
    def of(cls, batch: PagedBatch) -> Capacity:
        """The capacity for any batch of these shapes, where that is at most MOST_KEYS keys, else for the hinted
        lengths."""
        possible = batch.num_seqs * batch.block_table.shape[1] * batch.shape.block_size
        long = batch.stats.max_query_len > SHORT_QUERY
        keys = possible if possible <= MOST_KEYS else batch.stats.keys_of_prompts if long else 0
        return cls(batch.num_tokens, batch.num_seqs, batch.device, keys)


def planned(kernel: Any, batch: PagedBatch, features: Features, config: Any, workspace: Any) -> Any:
    """The workspace with the plan of a step, where the kernel makes one separately from its launch.

    `prepare(batch, features, config, workspace) -> workspace` is optional. It reads only lengths, so one plan serves
    every layer of a step. Without it a launch makes the plan itself, or needs none. Raises what the kernel's `prepare`
    raises.
    """
    prepare = getattr(kernel, "prepare", None)
    return prepare(batch, features, config, workspace) if prepare else workspace


class Kernel(Protocol):
    """A paged-attention kernel.

    `Config` is a frozen dataclass of ints, strings and bools; RUN_TIME, where its class has it, names the integers that
    compiled code takes as arguments, so that their values share it (`common.serving.choice.pieces`), BY_SIZE says that
    its launches follow from the counts of tokens and sequences (a warm-up then makes one for each power of two), and
    new_kv whether its launch may read a step's new K and V. `space` yields every config worth trying on `gpu` (a
    common.gpus.Gpu), already filtered by what fits. `workspace` is the only place that allocates; it may return None.
    `launch` writes out[:query_start_loc[-1]] (and lse likewise) and nothing else: no allocation, no sync, no
    environment.
    Members of SUPPORTS, beside full_graph (the grid and the config follow from shapes and hints that hold for a whole
    capture): MEMBERS. What `Features` ask for: causal, non_causal, sliding_window, softcap, sinks, alibi, alibi_sqrt,
    chunked_local, prefix_lm (spans), causal_per_sequence, cross, tree_bias, fp8_out, batch_invariant. What a batch's
    tensors ask for: x_packed (Layout.X_PACKED), fp8_kv, int8_kv (the dtype of the caches), fp8_query, value_size (V's
    lanes are not as many as K's), head_size_512 (more than 256 lanes of K or of V). And lse.
    """

    SUPPORTS: frozenset[str]
    CONTRACT: Precision
    DEFAULT: Any

    def space(self, shape: AttentionShape, gpu: Any) -> Iterable[Any]: ...
    def workspace(self, shape: AttentionShape, capacity: Capacity, config: Any) -> Any: ...
    def launch(
        self,
        batch: PagedBatch,
        features: Features,
        out: torch.Tensor,
        config: Any,
        workspace: Any,
        *,
        lse: torch.Tensor | None = None,
    ) -> None: ...


def asked_of(batch: PagedBatch, features: Features) -> frozenset[str]:
    """The members that SUPPORTS must have to serve this batch, by its features, layout, dtypes and sizes."""
    asked = features.names() | asked_of_shape(batch.shape)
    return asked | {"x_packed"} if batch.layout is Layout.X_PACKED else asked


@lru_cache(maxsize=1024)
def asked_of_shape(shape: AttentionShape) -> frozenset[str]:
    """The members that a batch of these sizes and dtypes asks for."""
    asked = {
        "fp8_kv": shape.cache_dtype in FP8,
        "int8_kv": shape.cache_dtype == torch.int8,
        "fp8_query": shape.dtype in FP8,
        "value_size": shape.value_size is not None,
        "head_size_512": max(shape.head_size, shape.value_lanes) > 256,
    }
    return frozenset(name for name, holds in asked.items() if holds)


def require(
    kernel: str,
    supports: frozenset[str],
    batch: PagedBatch,
    features: Features,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    """Refuse by name, before any launch, what `kernel` does not implement or could not address.

    Reads no device memory. Raises UnsupportedFeature for a feature outside `supports` and for compilers that miscompile
    `kernel` (common.spec.toolchain), SpecError for a malformed batch or output.
    """
    validate(batch, features, values=False)
    validate_output(batch, out, lse, features)
    asked = asked_of(batch, features) | ({"lse"} if lse is not None else set())
    for feature in sorted(asked - supports):
        raise UnsupportedFeature(kernel, feature, "any of " + ", ".join(sorted(supports)))
    expect_compiler(kernel, batch.device)


def launches(kernel: str, supports: frozenset[str], ensure: Callable[..., None] = require) -> Callable:
    """Make a kernel's `launch` from a function (batch, features, out, config, workspace, lse) that only launches.

    A batch that `ensure` refuses raises SpecError or UnsupportedFeature before any launch; one without sequences or
    tokens launches nothing.
    """

    def made(attend: Callable[..., None]) -> Callable[..., None]:
        def launch(
            batch: PagedBatch,
            features: Features,
            out: torch.Tensor,
            config: Any,
            workspace: Any,
            *,
            lse: torch.Tensor | None = None,
        ) -> None:
            ensure(kernel, supports, batch, features, out, lse)
            if batch.num_seqs and batch.num_tokens:
                attend(batch, features, out, config, workspace, lse)

        launch.__doc__, launch.__module__ = attend.__doc__, attend.__module__
        return launch

    return made


def new_tokens(
    batch: PagedBatch, features: Features, strided: bool = False
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The step's own K and V, for kernels that can read them instead of their pages; None where only pages count.

    strided: the kernel takes rows at any distance (slices of one projection); others get contiguous ones or None. Also
    None where they are not given (never with `cross`, whose keys are another sequence's), where the cache is quantised
    and therefore holds other numbers, and where a feature refers to absolute positions, because new tokens are counted
    from the first one.
    """
    absolute = (features.chunk, features.spans, features.causal_per_sequence, features.tree_bias)
    if batch.shape.quantised or any(one is not None for one in absolute):
        return None, None
    if not strided and batch.key is not None and not (batch.key.is_contiguous() and batch.value.is_contiguous()):
        return None, None
    return batch.key, batch.value


def packed_lanes(batch: PagedBatch) -> int | None:
    """x, the lanes of a head that are adjacent in an x-packed K; None where pages hold whole heads.

    Raises SpecError for slots of K that are not adjacent: kernels address them by x, so that loads are aligned.
    """
    if batch.layout is Layout.PAGED:
        return None
    x, slot = batch.key_cache.shape[-1], batch.key_cache.stride(-2)
    if slot != x:
        raise SpecError("key_cache", f"slots {slot} elements apart", f"x = {x}")
    return x


def count_parts(batch: PagedBatch, features: Features) -> int:
    """The number of parts in which a kernel multiplies a head (`head_parts.py` of both DSLs): 1 or 2; 1 for caches of 8
    bits and for scales per token."""
    scaled = is_per_token(features.key_scale) or is_per_token(features.value_scale)
    return parts_of(batch.shape) if batch.key_cache.element_size() > 1 and not scaled else 1


def parts_of(shape: AttentionShape) -> int:
    """The number of parts of a head whose K and V have the query's dtype: 1 or 2; 1 for an fp8 query.

    2 for heads of 65 to 255 lanes that are a power of two and a smaller one of at least 16: 80, 96, 144, 160, 192.
    """
    size = shape.head_size
    rest = size - first_part(size)
    is_two = 16 <= rest < first_part(size) and rest == power_of_two(rest)
    both = 64 < size < 256 and is_two and shape.value_lanes == size
    return 2 if both and shape.dtype.itemsize > 1 else 1


def first_part(head_size: int) -> int:
    """Lanes of the first of two parts: the largest power of two below head_size."""
    return power_of_two(head_size) // 2


def copied_scales(features: Features, scratch: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Return the rows of a scratch [2, keys] for the scales of K and of V; None where a scale is not per token."""
    asked = features.key_scale, features.value_scale
    return tuple(row if is_per_token(scale) else None for row, scale in zip(scratch, asked, strict=True))


MOST_STREAMS = 64  # streams that have a second one
_sides: dict[tuple[int, int], torch.cuda.Stream] = {}


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return the stream that is paired with the device's current one; None where all launches go to one stream.

    That is on a CPU, which runs a launch at once, and on ROCm, whose graphs put branches into one queue
    (ROCm/rocm-systems#4954) or lose their order (#11499)."""
    one = device.type != "cuda" or torch.version.hip is not None
    return None if one else side_of(torch.cuda.current_stream(device))


def side_of(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """Return the stream that is paired with `stream`, always the same one. Two streams never share it, so a call beside
    a capture stays out of the capture."""
    key = stream.device_index, stream.cuda_stream
    side = _sides.get(key)
    while side is None or side.cuda_stream == stream.cuda_stream:  # torch has few streams and hands them out in turn
        side = torch.cuda.Stream(stream.device)
    if key not in _sides and len(_sides) == MOST_STREAMS:
        _sides.pop(next(iter(_sides)))
    _sides[key] = side
    return side


@contextmanager
def beside(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """In this context launches begin after the current stream's work and run beside what follows, until `join`.

    In a captured graph these are two branches.
    """
    if stream is None:
        yield
    else:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            yield


def join(stream: torch.cuda.Stream | None) -> None:
    """Make the current stream wait for `stream`."""
    if stream is not None:
        torch.cuda.current_stream(stream.device).wait_stream(stream)
