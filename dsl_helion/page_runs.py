"""A tile cut into runs of keys that cannot leave a page (paper 4.6): one page id for each run.

Tiles begin at multiples of their size, so a run of gcd(page, tile) keys lies in one page. A tile of whole pages is
loaded as [pages, page, head]; a tile inside a page has one run, whose page id is a scalar; a tile of 64 keys over pages
of 784 is four runs of 16. dsl_triton/page_runs.py says the same in Triton.
"""

import math
from typing import Literal

import helion.language as hl
import torch

from common.spec import PagedBatch
from dsl_helion import binding
from dsl_helion.arithmetic import quotient_and_rest
from dsl_helion.binding import value_dtype
from dsl_helion.masks import nearest_page, not_before
from dsl_helion.primitives import (
    attend_tile,
    base2_scale,
    dequantise,
    dequantise_values,
    load_token_scales,
    logits,
    products,
    softmax_step,
    wide_index,
)

# How K and V are addressed through the block table: by runs, or as binding.Gather says.
Gather = Literal["run", "page", "flat", "2idx"]


def run_length(batch: PagedBatch, tile_size: int) -> int:
    """How many keys of a tile share a page id: the largest power of two in tile and page.

    1 where a page under all heads spans more than 32 bits address.
    """
    return math.gcd(batch.shape.block_size, tile_size) if binding.addressed_in_32_bits(batch) else 1


def gather_form(asked: Gather, batch: PagedBatch, tile_size: int) -> tuple[str, int]:
    """The form that a launch uses, and its number: keys of a run, or what binding.gather_form says.

    Runs are `slice` where a tile has one, `page` where they are whole pages, which takes fewer instructions, else
    `run`. `flat` or `2idx` where the lanes of K or V are no power of two: Helion refuses a view of them
    (TorchOpTracingError).
    """
    run = run_length(batch, tile_size)
    if asked != "run" or run == 1:
        return binding.gather_form("flat" if asked == "run" else asked, batch, tile_size)
    if run == tile_size:
        return "slice", 0
    lanes = (batch.shape.head_size, batch.shape.value_lanes)
    powers = all(binding.is_power_of_two(n) for n in lanes)
    if powers and not binding.page_form_applies(batch.shape, tile_size):
        return "run", min(run, binding.TRACED // 2)  # of TRACED keys: binding.longest_page
    return binding.gather_form("page", batch, tile_size)


def find_runs(block_table, seq, j, first_key, end_key, f, block_size, run, gather, tile_size, masked):
    """Page id, int64, and slot, int32, of the first key of each run of tile j: [tile_size // run], or scalars of one.

    Every tile has a wanted key, so the page of its only run may be read.
    """
    if gather == "slice":  # grid arithmetic: hl.load takes two scalar tensors for no index at all
        page = hl.load(block_table, [seq.to(torch.int64), j * tile_size // block_size])
        slot = j * tile_size % block_size
    else:
        run_pos = j * tile_size + hl.arange(tile_size // run) * run
        index, slot = quotient_and_rest(run_pos, block_size)
        if masked:
            index = nearest_page(index, first_key, end_key, f, block_size)
        page = hl.load(block_table, [seq.to(torch.int64), index])
    return page.to(torch.int64), slot


def load_runs(cache, page, slot, kv_head, wanted, run, gather, tile_size, dtype, masked):
    """K or V [tile_size, head_size] of one KV head, loaded as [runs, run, head_size].

    Keys that are not `wanted` give zeros. Offsets within a page have 32 bits (run_length).
    """
    if gather == "slice":
        at = [page.unsqueeze(0), slot + hl.arange(tile_size), kv_head, slice(None)]
        keep = wanted.unsqueeze(0).unsqueeze(2)
    else:
        at = [page.unsqueeze(1), slot.unsqueeze(1) + hl.arange(run).unsqueeze(0), kv_head, slice(None)]
        keep = wanted.reshape(tile_size // run, run).unsqueeze(2)
    if masked:
        x = hl.load(cache, at, extra_mask=keep)
    else:
        x = hl.load(cache, at)
    if gather == "slice":
        x = x.squeeze(0)
    else:
        x = x.reshape(tile_size, cache.size(-1))
    return dequantise(x, dtype)


def load_key_runs(cache, page, slot, kv_head, wanted, f, run, gather, tile_size, dtype):
    """primitives.load_keys by runs."""
    if f["transposed_keys"] is None:
        return load_runs(cache, page, slot, kv_head, wanted, run, gather, tile_size, dtype, False)
    lane, head = hl.arange(cache.size(-1)).unsqueeze(1), wide_index(kv_head)
    if gather == "slice":
        return dequantise(hl.load(cache, [page, (slot + hl.arange(tile_size)).unsqueeze(0), head, lane]), dtype)
    keys = slot.unsqueeze(0).unsqueeze(2) + hl.arange(run).unsqueeze(0).unsqueeze(0)
    x = hl.load(cache, [page.unsqueeze(0).unsqueeze(2), keys, head, lane.unsqueeze(2)])
    return dequantise(x.reshape(cache.size(-1), tile_size), dtype)


def attend_runs(
    j, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
    r, key_cache, value_cache, block_table, block_size, number, gather, tile_size, masked,
):  # fmt: skip
    """attend_tile in any form of gather_form; number: the second value that gather_form returns."""
    if gather == "run" or gather == "slice":
        key_pos = j * tile_size + hl.arange(tile_size)
        wanted = not_before(first_key, key_pos, key_pos < end_key, f)
        page, slot = find_runs(
            block_table, seq, j, first_key, end_key, f, block_size, number, gather, tile_size, masked
        )
        tile = block_table, seq, j, key_pos, first_key, end_key, f, kv_head
        k = load_key_runs(key_cache, page, slot, kv_head, wanted, f, number, gather, tile_size, q.dtype)
        scales = load_token_scales(f["key_token_scales"], *tile, wanted, block_size, tile_size, masked)
        s = logits(products(q, k, f), q, scales, query_pos, key_pos, seq_len, softmax_scale, f, r, masked)
        v = load_runs(value_cache, page, slot, kv_head, wanted, number, gather, tile_size, None, masked)
        v = dequantise_values(v, value_dtype(q.dtype, f["value_token_scales"] is not None))
        scales = load_token_scales(f["value_token_scales"], *tile, wanted, block_size, tile_size, masked)
        return softmax_step(s, v, scales, m, l, acc, base2_scale(softmax_scale, f, r), f, r, masked)
    else:
        return attend_tile(
            j, q, m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
            r, key_cache, value_cache, block_table, block_size, number, gather, tile_size, masked,
        )  # fmt: skip
