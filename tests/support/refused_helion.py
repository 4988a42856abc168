"""Kernels that Helion refuses, one construct each: compare.studies.constructs says what each wanted.

    python -m tests.support.refused_helion [NAME ...]

compiles them for gfx942, all or those named, and prints how each refusal begins; TRITON_INTERPRET must be unset. Where
it is set, tests call `refusal`, which runs the kernel.
"""

import sys

import helion
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


def product_of_e4m3fnuz(x: torch.Tensor, out: torch.Tensor):
    for rows in hl.tile(x.size(0), block_size=16):
        q = hl.load(x, [rows, hl.arange(16)]).to(torch.float8_e4m3fnuz)
        out[rows, :] = hl.dot(q, q.transpose(0, 1), out_dtype=torch.float32)


def masked_load_of_e4m3fnuz(x: torch.Tensor, out: torch.Tensor):
    for rows in hl.tile(x.size(0)):
        lane = hl.arange(16)
        out[rows, :] = hl.load(x, [rows, lane], extra_mask=(lane < 8).unsqueeze(0)).to(torch.float32)


def size_in_a_bundle(f: dict, out: torch.Tensor):
    spans = hl.specialize(f["spans"].size(0))
    for i in hl.grid(out.size(0)):
        hl.store(out, [i], hl.load(f["spans"], [hl.arange(spans)]).amax(0))


def lanes_of_a_bundle(f: dict, out: torch.Tensor):
    for i in hl.grid(out.size(0)):
        hl.store(out, [i], hl.load(f["spans"], [hl.arange(f["spans"].size(0))]).amax(0))


def _sum(f):
    total = hl.zeros([], dtype=torch.float32)
    for j in hl.grid(f["spans"].size(0)):
        total = total + hl.load(f["spans"], [j])
    return total


def loop_in_a_helper(f: dict, out: torch.Tensor):
    for i in hl.grid(out.size(0)):
        hl.store(out, [i], _sum(f))


def _operands(f):
    return {"spans": f["spans"], "scale": None}


def tensor_in_a_dict_of_a_helper(f: dict, out: torch.Tensor):
    for i in hl.grid(out.size(0)):
        hl.store(out, [i], hl.load(_operands(f)["spans"], [i]))


def _nothing():
    return {"scale": None}


def dict_in_both_branches(x: torch.Tensor, out: torch.Tensor):
    for i in hl.grid(x.size(0)):
        flag = hl.load(x, [i])
        if flag > 0:
            short = _nothing()  # noqa: F841  that it is made is what Helion miscounts
            y = flag * 2
        else:
            long = _nothing()  # noqa: F841
            y = flag * 3
        hl.store(out, [i], y)


def _element(x, i):
    return x[i]


def subscript_in_a_helper(x: torch.Tensor, out: torch.Tensor):
    for i in hl.grid(x.size(0)):
        hl.store(out, [i], _element(x, i))


def _column(x):
    return x[:, None]


def new_axis_in_a_helper(x: torch.Tensor, out: torch.Tensor):
    for rows in hl.tile(x.size(0)):
        out[rows, :] = _column(x[rows]) + hl.zeros([rows, 8])


def barrier_in_a_loop(x: torch.Tensor, out: torch.Tensor):
    for i in hl.grid(x.size(0)):
        hl.store(x, [i], 1.0)
        hl.barrier()
        hl.store(out, [i], hl.load(x, [i]))


def barrier_without_residence(x: torch.Tensor, out: torch.Tensor):
    for i in hl.grid(x.size(0)):
        x[i] = 1.0
    hl.barrier()
    for j in hl.grid(x.size(0)):
        out[j] = x[j]


def two_phases_without_a_barrier(x: torch.Tensor, out: torch.Tensor):
    for i in hl.grid(x.size(0)):
        x[i] = 1.0
    for j in hl.grid(x.size(0)):
        out[j] = x[j]


CONFIGS = {"barrier_without_residence": {"pid_type": "flat"}}  # what is asked beside Helion's default config


def arguments(name: str) -> tuple:
    """Tensors that fit the kernel, on the CPU."""
    ones, ids = torch.ones, torch.arange(8, dtype=torch.int32)
    bundle = {"spans": ones(8), "scale": None}
    return {
        "late_wait": (ones(8), ones(8)),
        "whole_pages": (ones(4, 16, 80), ids[:4], ones(64, 80)),
        "any_of_a_mask": (ones(8, 8), ones(8)),
        "branch_in_a_helper": (ones(8), ids, ones(8)),
        "leave_a_loop": (ones(4, 8), ones(4)),
        "device_counted_grid": (ids[3:4], ones(8), ones(8)),
        "two_scalars": (ones(8, 8), ids, ones(8)),
        "page_of_24": (ones(8, 24), ones(8, 24)),
        "product_of_e4m3fnuz": (ones(16, 16), ones(16, 16)),
        "masked_load_of_e4m3fnuz": (ones(16, 16).to(torch.float8_e4m3fnuz), ones(16, 16)),
        "size_in_a_bundle": (bundle, ones(8)),
        "lanes_of_a_bundle": (bundle, ones(8)),
        "loop_in_a_helper": (bundle, ones(8)),
        "tensor_in_a_dict_of_a_helper": (bundle, ones(8)),
        "dict_in_both_branches": (ones(8), ones(8)),
        "subscript_in_a_helper": (ones(8), ones(8)),
        "new_axis_in_a_helper": (ones(8), ones(8, 8)),
        "barrier_in_a_loop": (ones(8), ones(8)),
        "barrier_without_residence": (ones(8), ones(8)),
        "two_phases_without_a_barrier": (ones(8), ones(8)),
    }[name]


def refusal(name: str) -> str:
    """Type and text of Helion's error, or of the one behind Triton's CompilationError; "accepted" without one."""
    from triton.compiler import CompilationError

    from dsl_helion.binding import kernel

    tensors = arguments(name)
    try:
        bound = kernel(globals()[name]).bind(tensors)
        config = bound.config_spec.default_config().config | CONFIGS.get(name, {})
        bound.compile_config(helion.Config(**config))(*tensors)
    except CompilationError as error:
        return f"{type(error.__cause__).__name__}: {error.__cause__}"
    except Exception as error:  # whatever Helion says is the answer
        return f"{type(error).__name__}: {error}"
    return "accepted"


def _main(names: list[str]) -> None:
    from common.gpus import resolve
    from compare.static.crosscompile import executing
    from compare.studies.constructs import CONSTRUCTS

    names = names or [c.probe[1] for c in CONSTRUCTS if c.probe and c.probe[0].startswith("helion")]
    with executing(resolve("mi300"), lambda launch: None):
        for name in names:
            print(f"{name}: {refusal(name).splitlines()[0]}", flush=True)


if __name__ == "__main__":
    _main(sys.argv[1:])
