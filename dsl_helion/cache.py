"""Write a step's new K and V into their pages: what fills the cache that the other kernels read.

Grid: tokens / block_tokens x num_kv_heads, one axis. A program takes several tokens of one KV head, reads their slots
once and moves K and V; into quantised pages as their numbers of one byte, with a scale that is given, or with one for
each token that it computes and writes. Slots are int64 before a stride multiplies them; a token without a slot is
neither read nor written.
"""

from dataclasses import dataclass

import helion.language as hl
import torch

from common.spec import is_per_token
from common.spec.cache import CacheWrite
from dsl_helion.arithmetic import div, mod
from dsl_helion.binding import is_fp8, kernel, largest, run
from dsl_helion.features import head_scale
from dsl_helion.primitives import cut, load_rows

LEAST_SCALE = 1e-6  # divides a row of zeros


@dataclass(frozen=True)
class Config:
    """block_tokens: tokens of a program."""

    block_tokens: int = 8
    num_warps: int = 4
    num_stages: int = 1


DEFAULT = Config()


def scale_limit(dtype: torch.dtype) -> float:
    """What the largest element of a token is scaled to: the dtype's largest number, 224 for e4m3fnuz as in vLLM."""
    return 224.0 if dtype == torch.float8_e4m3fnuz else largest(dtype)


def quantise(x, scale, stride, page, slot, kv_head, live, compute_scale, dtype):
    """Rows x [block_tokens, head_size] as elements of dtype: x / scale, cut, rounded to nearest.

    To even in fp8, half away from zero in int8, where NaN is 0. compute_scale: the scale of each row is its largest
    element / scale_limit, which is stored; else one that is given, 1 where scale is None. stride: of heads in it.
    """
    if dtype.itemsize > 1:
        return x.to(dtype)
    x = x.to(torch.float32)
    if compute_scale:
        # not a division (arithmetic.py)
        found = torch.clamp(torch.abs(x).amax(1) * (1.0 / scale_limit(dtype)), min=LEAST_SCALE)
        head = torch.zeros_like(page) + kv_head
        at = [page.unsqueeze(1), slot.unsqueeze(1), head.unsqueeze(1)]
        hl.store(scale, at, found.unsqueeze(1), extra_mask=live.unsqueeze(1))
        x = x / found.unsqueeze(1)
    elif scale is not None:
        x = x / head_scale(scale, stride, kv_head)
    x = cut(x, dtype)
    if not is_fp8(dtype):
        x = torch.where(x >= 0.0, torch.floor(x + 0.5), torch.where(x < 0.0, -torch.floor(0.5 - x), 0.0))
    return x.to(dtype)


def store_slots(cache, page, slot, head, live, x):
    """x [block_tokens, head_size] to one KV head of the slots of a cache; nothing where not `live`."""
    at = [page.unsqueeze(1), slot.unsqueeze(1), head.to(torch.int64).unsqueeze(1), slice(None)]
    hl.store(cache, at, x.unsqueeze(1), extra_mask=live.unsqueeze(1).unsqueeze(2))


def _cache_kernel(
    key: torch.Tensor,  # [>= num_tokens, num_kv_heads, head_size]
    value: torch.Tensor,  # [>= num_tokens, num_kv_heads, head_size]
    key_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size]
    value_cache: torch.Tensor,  # [num_blocks, block_size, num_kv_heads, head_size]
    slot_mapping: torch.Tensor,  # i32 or i64 [num_tokens]
    key_scale: torch.Tensor | None,  # f32 [1] or [num_kv_heads], read; [num_blocks, block_size, num_kv_heads], written
    value_scale: torch.Tensor | None,  # the same
    num_slots: int,
    block_size: hl.constexpr,
    key_scale_stride: hl.constexpr,
    value_scale_stride: hl.constexpr,
    compute_key_scale: hl.constexpr,
    compute_value_scale: hl.constexpr,
) -> None:
    num_tokens = slot_mapping.size(0)
    hl.specialize((key.size(2), value.size(2), key_cache.size(3), value_cache.size(3)))
    num_kv_heads = hl.specialize(key.size(1))
    block_tokens = hl.register_block_size(1, 256)
    for block, kv_head in hl.grid([(num_tokens + block_tokens - 1) // block_tokens, num_kv_heads]):
        token = block * block_tokens + hl.arange(block_tokens)
        head = kv_head + hl.zeros([block_tokens], dtype=torch.int32)
        inside = token < num_tokens
        index = hl.load(slot_mapping, [token], extra_mask=inside).to(torch.int64)
        live = inside & (index >= 0) & (index < num_slots)
        page = div(index, block_size)
        slot = mod(index, block_size)
        k = load_rows(key, token, head, live)
        v = load_rows(value, token, head, live)
        dtype = key_cache.dtype
        k = quantise(k, key_scale, key_scale_stride, page, slot, kv_head, live, compute_key_scale, dtype)
        v = quantise(v, value_scale, value_scale_stride, page, slot, kv_head, live, compute_value_scale, dtype)
        store_slots(key_cache, page, slot, head, live, k)
        store_slots(value_cache, page, slot, head, live, v)


_cache = kernel(_cache_kernel)


def launch(write: CacheWrite, config: Config = DEFAULT) -> None:
    """Write the tokens into key_cache and value_cache. Raises SpecError before any launch; never waits for the device.

    A captured launch serves later steps with at most as many tokens, the slots of the others set to -1.
    """
    write.check(quantised=True)
    if write.num_tokens == 0 or write.num_slots == 0:
        return
    args = (
        write.key, write.value, write.key_cache, write.value_cache, write.slot_mapping,
        write.key_scale, write.value_scale, write.num_slots, write.shape.block_size,
        _scale_strides(write.key_scale), _scale_strides(write.value_scale),
        is_per_token(write.key_scale), is_per_token(write.value_scale),
    )  # fmt: skip
    # programs that start together move the heads of the same tokens, which lie together
    run(_cache, config, args, block_sizes=[config.block_tokens], loop_orders=[[1, 0]])


def _scale_strides(scale: torch.Tensor | None) -> int:
    """Strides of a scale; 0 where one number serves all KV heads."""
    return 0 if scale is None or scale.numel() == 1 else 1
