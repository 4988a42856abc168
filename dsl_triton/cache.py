"""Write a step's new K and V into their pages: what fills the cache that the other kernels read.

Grid: tokens / BLOCK_TOKENS x num_kv_heads, one axis. A program takes several tokens of one KV head, reads their slots
once and moves K and V. Slots are int64 before a stride multiplies them; a token without a slot is neither read nor
written.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import triton
import triton.language as tl

from common.cache import CacheWrite
from common.gpus import Gpu
from common.spec import AttentionShape
from dsl_triton.binding import padded
from dsl_triton.primitives import load_rows


@dataclass(frozen=True)
class Config:
    """block_tokens: tokens of a program."""

    block_tokens: int = 8
    num_warps: int = 4
    num_stages: int = 1


DEFAULT = Config()


def space(shape: AttentionShape, gpu: Gpu) -> Iterator[Config]:
    """Every config; one row of a head is the least that a program moves."""
    for block_tokens, num_warps in itertools.product((1, 2, 4, 8, 16, 32), (1, 2, 4, 8)):
        yield Config(block_tokens, num_warps)


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
    num_tokens,
    num_slots,
    key_strides, value_strides, key_cache_strides, value_cache_strides,
    NUM_KV_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0) % NUM_KV_HEADS  # heads of a token lie together: programs that do start together
    token = tl.program_id(0) // NUM_KV_HEADS * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    index = tl.load(slot_mapping_ptr + token, mask=token < num_tokens, other=-1).to(tl.int64)
    live = (index >= 0) & (index < num_slots)
    page = index // BLOCK_SIZE
    slot = index % BLOCK_SIZE
    k = load_rows(key_ptr, key_strides, token, kv_head, live, HEAD_SIZE)
    v = load_rows(value_ptr, value_strides, token, kv_head, live, HEAD_SIZE)
    store_slots(key_cache_ptr, key_cache_strides, page, slot, kv_head, live, k, HEAD_SIZE)
    store_slots(value_cache_ptr, value_cache_strides, page, slot, kv_head, live, v, HEAD_SIZE)


def launch(write: CacheWrite, config: Config = DEFAULT) -> None:
    """Write the tokens into key_cache and value_cache. Raises SpecError before any launch; never waits for the device.

    A captured launch serves later steps with at most as many tokens, the slots of the others set to -1.
    """
    write.check()
    if write.num_tokens == 0 or write.num_slots == 0:
        return
    shape = write.shape
    blocks = triton.cdiv(write.num_tokens, config.block_tokens)
    _cache_kernel[(shape.num_kv_heads * blocks,)](
        write.key, write.value, write.key_cache, write.value_cache, write.slot_mapping,
        write.num_tokens, write.num_slots,
        write.key.stride(), write.value.stride(), write.key_cache.stride(), write.value_cache.stride(),
        NUM_KV_HEADS=shape.num_kv_heads, HEAD_SIZE=shape.head_size, BLOCK_SIZE=shape.block_size,
        BLOCK_TOKENS=config.block_tokens, num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
