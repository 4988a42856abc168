"""Heads of 80, 96, 144, 160 and 192 lanes in two parts: a product over 64 or 128 lanes and one over the rest, in place
of one over 128 or 256 (ours).

Q is a tuple, (first lanes, the rest), or (all lanes,) of other heads; dsl_triton/head_parts.py says the same in Triton,
and why. A part of Q, K, V or the output is a view of its lanes, made on the host, because hl.load adds to no address.
"""

import helion.language as hl
import torch

from common.gpus import warp_size
from common.spec import AttentionShape
from common.spec.kernel import first_part, parts_of
from dsl_helion.features import finished, narrow, query_operand
from dsl_helion.masks import not_before
from dsl_helion.page_runs import attend_runs, find_runs, load_key_runs, load_runs
from dsl_helion.primitives import (
    base2_scale,
    find_slots,
    load_keys,
    load_kv_tile,
    load_rows,
    logits,
    normalise,
    products,
    softmax_init,
    softmax_weights,
    store_partial,
    store_rows,
    sum_values,
)

BOX = 256  # lanes at most of a box of Helion's descriptors on NVIDIA; tiles of more come by loads of 16 bytes


def in_parts(tensors: tuple[torch.Tensor, ...], parts: int) -> tuple[torch.Tensor, ...]:
    """The tensors as views of their first lanes, then views of the rest.

    Of one part the rest are views of the same lanes: Helion warns where `hl.specialize` stands under a condition, as
    for None it would, takes no stride of a tensor that is passed twice for a constant, and with views of no lanes drops
    the indices of other tensors' lanes.
    """
    if parts == 1:
        return (*tensors, *(tensor[..., :] for tensor in tensors))
    first = first_part(tensors[0].shape[-1])
    return (*(tensor[..., :first] for tensor in tensors), *(tensor[..., first:] for tensor in tensors))


def load_query(tensor, rest, row, head, live, r, cache, parts):
    """Q as a tuple of parts and r, as `query_operand` leaves them."""
    q, r = query_operand(load_rows(tensor, row, head, live), r, cache)
    if parts == 1:
        return (q,), r
    else:
        return (q, load_rows(rest, row, head, live)), r


def first_lanes(shape: AttentionShape, device: torch.device) -> int:
    """Lanes of the first part of Q and of K's tile in `unpaged`, 0 where there is one part; or a whole BOX."""
    if parts_of(shape) == 2:
        return first_part(shape.head_size)
    rest = shape.head_size - BOX
    return BOX if rest > 0 and rest & (rest - 1) == 0 and warp_size(device) == 32 else 0


def lanes_of(head_size, first):
    """Indices of the first lanes and of the rest; all lanes, and none, of one part."""
    return (slice(None), None) if first == 0 else (slice(0, first), slice(first, head_size))


def load_parts(tensor, row, head, live, first):
    """load_rows as a tuple of parts."""
    if first == 0:
        return (load_rows(tensor, row, head, live),)
    at = [row.to(torch.int64).unsqueeze(1), head.to(torch.int64).unsqueeze(1)]
    rest = first + hl.arange(tensor.size(2) - first)
    part = hl.load(tensor, [*at, hl.arange(first).unsqueeze(0)], extra_mask=live.unsqueeze(1))
    return part, hl.load(tensor, [*at, rest.unsqueeze(0)], extra_mask=live.unsqueeze(1))


def init_parts(f, head, live, segment, q, value_size, rest, parts):
    """softmax_init of a query in parts, and the sums of the rest: zeros [block_m], never read, where there is none.

    Helion carries no tuple through a loop (CantCombineTypesInControlFlow), so both sums have names of their own.
    """
    m, l, acc = softmax_init(f, head, live, segment, q[0], value_size)
    if parts == 1:
        return m, l, acc, hl.zeros([acc.size(0)], dtype=torch.float32)
    else:
        return m, l, acc, hl.zeros([acc.size(0), rest.size(2)], dtype=torch.float32)


def attend_parts(
    j, q, m, l, acc, acc_rest, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
    r, caches, block_table, block_size, number, gather, tile_size, parts, masked,
):  # fmt: skip
    """attend_runs of a query in parts. caches: K and V of the first lanes, then of the rest."""
    key_cache, value_cache, key_rest, value_rest = caches
    if parts == 1:
        m, l, acc = attend_runs(
            j, q[0], m, l, acc, query_pos, seq, seq_len, first_key, end_key, kv_head, softmax_scale, f,
            r, key_cache, value_cache, block_table, block_size, number, gather, tile_size, masked,
        )  # fmt: skip
        return m, l, acc, acc_rest
    else:
        key_pos = j * tile_size + hl.arange(tile_size)
        wanted = not_before(first_key, key_pos, key_pos < end_key, f)
        found = block_table, seq, j
        bounds = first_key, end_key, f, block_size, number, gather, tile_size, masked
        if gather == "run" or gather == "slice":
            page, slot = find_runs(*found, *bounds)
        else:
            page, slot = find_slots(*found, key_pos, *bounds)
        at = page, slot, kv_head, wanted
        form = block_size, number, gather, tile_size, q[0].dtype
        s = products(q[0], _load_keys(key_cache, at, f, *form), f)
        s = products(q[1], _load_keys(key_rest, at, f, *form), f, s)
        s = logits(s, q[0], None, query_pos, key_pos, seq_len, softmax_scale, f, r, masked)
        v = _load_values(value_cache, at, *form, masked)
        v_rest = _load_values(value_rest, at, *form, masked)
        p, alpha, m, l = softmax_weights(s, None, m, l, base2_scale(softmax_scale, f, r), f, r, masked)
        acc_rest = sum_values(p, v_rest, alpha, acc_rest)  # first: dsl_triton/head_parts.py says why
        return m, l, sum_values(p, v, alpha, acc), acc_rest


def _load_keys(tensor, at, f, block_size, number, gather, tile_size, dtype):
    """K of these lanes, in any form of gather_form."""
    if gather == "run" or gather == "slice":
        return load_key_runs(tensor, *at, f, number, gather, tile_size, dtype)
    else:
        return load_keys(tensor, *at, f, block_size, gather, tile_size, dtype)


def _load_values(tensor, at, block_size, number, gather, tile_size, dtype, masked):
    """V of these lanes, in any form of gather_form."""
    if gather == "run" or gather == "slice":
        return load_runs(tensor, *at, number, gather, tile_size, dtype, masked)
    else:
        return load_kv_tile(tensor, *at, block_size, gather, tile_size, dtype, masked)


def store_parts(tensor, rest, row, head, live, acc, acc_rest, l, cache, kv_head, f, r, parts):
    """Normalise the sums of V and store them."""
    total = finished(narrow(acc, tensor.size(2)), cache, f, r)
    store_rows(tensor, row, head, live, normalise(total, l, kv_head, f))
    if parts == 2:
        store_rows(rest, row, head, live, normalise(acc_rest, l, kv_head, f))


def init_sums(f, head, live, segment, q, value_size, parts):
    """init_parts of an output that is no view of its parts."""
    if parts == 1:
        m, l, acc = softmax_init(f, head, live, segment, q[0], value_size)
        return m, l, acc, hl.zeros([acc.size(0)], dtype=torch.float32)
    m, l, acc = softmax_init(f, head, live, segment, q[0], first_part(value_size))
    return m, l, acc, hl.zeros([acc.size(0), value_size - first_part(value_size)], dtype=torch.float32)


def store_sums(tensor, row, head, live, acc, acc_rest, l, kv_head, f, parts):
    """Normalise sums of V that are finished and store them."""
    if parts == 1:
        store_rows(tensor, row, head, live, normalise(acc, l, kv_head, f))
    else:
        first = acc.size(1)
        store_rows(tensor, row, head, live, normalise(acc, l, kv_head, f), slice(0, first))
        store_rows(tensor, row, head, live, normalise(acc_rest, l, kv_head, f), slice(first, tensor.size(2)))


def store_partial_sums(partial, segment, row, head, live, m, l, acc, acc_rest, parts):
    """store_partial of sums in parts."""
    if parts == 1:
        store_partial(partial, segment, row, head, live, m, l, acc)
    else:
        first = acc.size(1)
        store_partial(partial, segment, row, head, live, m, l, acc, slice(0, first))
        store_partial(partial, segment, row, head, live, m, l, acc_rest, slice(first, first + acc_rest.size(1)))
