"""Kernels that Helion refuses, one construct each: compare.constructs says what each wanted."""

import helion.language as hl
import torch


def late_wait(x: torch.Tensor, out: torch.Tensor):
    for i in hl.tile(x.size(0)):
        out[i] = x[i]
    hl.pdl_wait()


def whole_pages(cache: torch.Tensor, table: torch.Tensor, out: torch.Tensor):
    size, head = hl.specialize(cache.size(1)), hl.specialize(cache.size(2))
    hl.specialize(out.size(1))
    for pages in hl.tile(table.size(0), block_size=2):
        page = table[pages].to(torch.int64)
        tile = hl.load(cache, [page, slice(None), slice(None)]).reshape(2 * size, head)
        hl.store(out, [pages.begin * size + hl.arange(2 * size), slice(None)], tile)


def any_of_a_mask(x: torch.Tensor, out: torch.Tensor):
    for i in hl.tile(x.size(0)):
        out[i] = (x[i, :] > 0.0).any(-1).to(torch.float32)


def helper(x, i, flag):
    if flag > 0:
        return hl.load(x, [i]) + 1.0
    return hl.load(x, [i])


def branch_in_a_helper(x: torch.Tensor, flags: torch.Tensor, out: torch.Tensor):
    for i in hl.grid(x.size(0)):
        hl.store(out, [i], helper(x, i, flags[i]))


def leave_a_loop(x: torch.Tensor, out: torch.Tensor):
    for i in hl.grid(x.size(0)):
        total = hl.zeros([], dtype=torch.float32)
        for j in hl.grid(x.size(1)):
            total = total + x[i, j]
            if total > 3.0:
                break
        out[i] = total


def device_counted_grid(count: torch.Tensor, x: torch.Tensor, out: torch.Tensor):
    for i in hl.grid(count[0]):
        out[i] = x[i]


def two_scalars(table: torch.Tensor, rows: torch.Tensor, out: torch.Tensor):
    for i in hl.grid(rows.size(0)):
        row = hl.load(rows, [i])
        out[i] = hl.load(table, [row, row])


def page_of_24(x: torch.Tensor, out: torch.Tensor):
    for i in hl.grid(x.size(0)):
        slots = hl.arange(24)
        hl.store(out, [i, slots], hl.load(x, [i, slots]) * slots)


def arguments(name: str) -> tuple:
    """Tensors that fit the kernel, on the CPU."""
    ones, ids = torch.ones, torch.arange(8, dtype=torch.int32)
    return {
        "late_wait": (ones(8), ones(8)),
        "whole_pages": (ones(4, 16, 80), ids[:4], ones(64, 80)),
        "any_of_a_mask": (ones(8, 8), ones(8)),
        "branch_in_a_helper": (ones(8), ids, ones(8)),
        "leave_a_loop": (ones(4, 8), ones(4)),
        "device_counted_grid": (ids[3:4], ones(8), ones(8)),
        "two_scalars": (ones(8, 8), ids, ones(8)),
        "page_of_24": (ones(8, 24), ones(8, 24)),
    }[name]
