"""Write a step's new K and V into their pages: what fills the cache that the other kernels read.

Grid: tokens / BLOCK_TOKENS x num_kv_heads, one axis. A program takes several tokens of one KV head, reads their slots
once and moves K and V; into quantised pages as their numbers of one byte, with a scale that is given, or with one for
each token that it computes and writes. Slots are int64 before a stride multiplies them; a token without a slot is
neither read nor written.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from common.spec import is_per_token
from common.spec.cache import CacheWrite
from dsl_triton.binding import largest, padded
from dsl_triton.primitives import cut, load_rows

LEAST_SCALE = tl.constexpr(1e-6)  # divides a row of zeros


@dataclass(frozen=True)
class Config:
    """block_tokens: tokens of a program."""

    block_tokens: int = 8
    num_warps: int = 4
    num_stages: int = 1


DEFAULT = Config()


@triton.constexpr_function
def scale_limit(dtype):
    """What the largest element of a token is scaled to: the dtype's largest number, 224 for e4m3fnuz as in vLLM."""
    return 224.0 if dtype.name == "fp8e4b8" else largest(dtype)


@triton.jit
def quantise(
    x, scale_ptr, scale_strides, page, slot, kv_head, live, COMPUTE_SCALE: tl.constexpr, DTYPE: tl.constexpr
):  # fmt: skip
    """Rows x [BLOCK_TOKENS, HEAD_PADDED] as elements of DTYPE: x / scale, cut, rounded to nearest.

    To even in fp8, half away from zero in int8, where NaN is 0. COMPUTE_SCALE: the scale of each row is its largest
    element / scale_limit, which is stored; else one that is given, 1 where scale_ptr is None.
    """
    if DTYPE.primitive_bitwidth == 8:
        x = x.to(tl.float32)
        if COMPUTE_SCALE:
            scale = tl.maximum(tl.max(tl.abs(x), 1) / scale_limit(DTYPE), LEAST_SCALE)
            place = page * scale_strides[0] + slot * scale_strides[1] + kv_head.to(tl.int64) * scale_strides[2]
            tl.store(scale_ptr + place, scale, mask=live)
            x = x / tl.expand_dims(scale, 1)
        elif scale_ptr is not None:
            x = x / tl.load(scale_ptr + kv_head * scale_strides[0])
        x = cut(x, DTYPE)
        if not DTYPE.is_fp8():
            x = tl.where(x >= 0.0, tl.floor(x + 0.5), tl.where(x < 0.0, -tl.floor(0.5 - x), 0.0))
    return x.to(DTYPE)


@triton.jit
def store_slots(ptr, strides, page, slot, kv_head, live, x, HEAD_SIZE: tl.constexpr):
    """x [BLOCK_TOKENS, HEAD_PADDED] to one KV head of the slots of a cache; nothing where not `live`."""
    lane = tl.arange(0, padded(HEAD_SIZE))
    offset = page * strides[0] + slot * strides[1] + kv_head.to(tl.int64) * strides[2]
    mask = tl.expand_dims(live, 1) & tl.expand_dims(lane < HEAD_SIZE, 0)
    tl.store(ptr + tl.expand_dims(offset, 1) + tl.expand_dims(lane, 0), x, mask=mask)


@triton.jit(do_not_specialize=["num_tokens", "num_slots"])
def _cache_kernel(
    key_ptr,  # [>= num_tokens, num_kv_heads, HEAD_SIZE]
    value_ptr,  # [>= num_tokens, num_kv_heads, HEAD_SIZE]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    value_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_SIZE]
    slot_mapping_ptr,  # i32 or i64 [num_tokens]
    key_scale_ptr,  # f32 [1] or [num_kv_heads], read; [num_blocks, BLOCK_SIZE, num_kv_heads], written; or None
    value_scale_ptr,  # the same
    num_tokens,
    num_slots,
    key_strides, value_strides, key_cache_strides, value_cache_strides, key_scale_strides, value_scale_strides,
    NUM_KV_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    COMPUTE_KEY_SCALE: tl.constexpr, COMPUTE_VALUE_SCALE: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0) % NUM_KV_HEADS  # heads of a token are neighbours in memory, and so are their programs
    token = tl.program_id(0) // NUM_KV_HEADS * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    index = tl.load(slot_mapping_ptr + token, mask=token < num_tokens, other=-1).to(tl.int64)
    live = (index >= 0) & (index < num_slots)
    page = index // BLOCK_SIZE
    slot = index % BLOCK_SIZE
    k = load_rows(key_ptr, key_strides, token, kv_head, live, HEAD_SIZE)
    v = load_rows(value_ptr, value_strides, token, kv_head, live, HEAD_SIZE)
    DTYPE: tl.constexpr = key_cache_ptr.dtype.element_ty
    k = quantise(k, key_scale_ptr, key_scale_strides, page, slot, kv_head, live, COMPUTE_KEY_SCALE, DTYPE)
    v = quantise(v, value_scale_ptr, value_scale_strides, page, slot, kv_head, live, COMPUTE_VALUE_SCALE, DTYPE)
    store_slots(key_cache_ptr, key_cache_strides, page, slot, kv_head, live, k, HEAD_SIZE)
    store_slots(value_cache_ptr, value_cache_strides, page, slot, kv_head, live, v, HEAD_SIZE)


def launch(write: CacheWrite, config: Config = DEFAULT) -> None:
    """Write the tokens into key_cache and value_cache. Raises SpecError before any launch; never waits for the device.

    A captured launch serves later steps with at most as many tokens, the slots of the others set to -1.
    """
    write.check(quantised=True)
    if write.num_tokens == 0 or write.num_slots == 0:
        return
    shape = write.shape
    blocks = triton.cdiv(write.num_tokens, config.block_tokens)
    _cache_kernel[(shape.num_kv_heads * blocks,)](
        write.key, write.value, write.key_cache, write.value_cache, write.slot_mapping,
        write.key_scale, write.value_scale, write.num_tokens, write.num_slots,
        write.key.stride(), write.value.stride(), write.key_cache.stride(), write.value_cache.stride(),
        _scale_strides(write.key_scale), _scale_strides(write.value_scale),
        NUM_KV_HEADS=shape.num_kv_heads, HEAD_SIZE=shape.head_size, BLOCK_SIZE=shape.block_size,
        BLOCK_TOKENS=config.block_tokens, COMPUTE_KEY_SCALE=is_per_token(write.key_scale),
        COMPUTE_VALUE_SCALE=is_per_token(write.value_scale), num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip


def _scale_strides(scale: torch.Tensor | None) -> tuple[int, ...] | None:
    """Strides of a scale; 0 where one number serves all KV heads."""
    return None if scale is None else (0,) if scale.numel() == 1 and scale.dim() == 1 else scale.stride()
