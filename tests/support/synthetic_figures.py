"""Runs of the figures' suites with invented times that follow bytes and products, for tests of what draws them."""

import synthetic_run
from common.gpus import resolve
from compare.record.records import Derived, Status
from compare.workloads import suites
from compare.workloads.cost import cost, floor_us, info
from compare.workloads.suites import suite

LAUNCH_US = {"triton": 6.0, "helion": 7.0, "baseline": 9.0}
OVER_FLOOR = {  # of prompts, of decodes
    "naive": (60.0, 40.0), "q_block": (2.0, 12.0), "parallel_softmax": (2.6, 1.4), "adjustable_tile": (1.8, 1.4),
    "static_grid": (2.4, 1.5), "auto": (1.5, 1.4), "flash_attn3": (1.4, 1.5),
}  # fmt: skip
VARIANT = {None: 1.0, "tree": 1.0, "default": 1.1, "paper": 1.5, "fixed": 2.2, "page": 1.6}


def us(row, kernel):
    """An invented time of a cell."""
    base, _, variant = kernel.partition("@")
    family, name = base.split("/")
    prompt, decode = OVER_FLOOR[name]
    factor = decode if row.kind == "decode" else prompt
    return LAUNCH_US[family] + floor_us(row, resolve("h200")) * factor * VARIANT[variant or None]


def records(name, kernels=None, pages_refused=True):
    """Every cell of the suite, timed; but `@page` on a page that no tile can be is unsupported."""
    found = []
    for row in suite(name):
        for kernel in kernels or suites.FIGURE_KERNELS[name]:
            if pages_refused and kernel.endswith("@page") and row.shape.block_size == 544:
                found.append(synthetic_run.failed(info(row), kernel, Status.UNSUPPORTED))
                continue
            time, floor = us(row, kernel), floor_us(row, resolve("h200"))
            gbps, tflops = cost(row).bytes / time / 1e3, cost(row).flops / time / 1e6
            timed = synthetic_run.timed(info(row), kernel, time)
            found.append(timed.replace(derived=Derived(gbps, tflops, floor, floor / time)))
    return found


def run(folder, name, **manifest):
    gpu = {"asked": "h200", "name": "h200", "title": "NVIDIA H200 SXM 141 GB", "present": True}
    return synthetic_run.write(folder, records(name), **{"gpu": gpu, "suite": name} | manifest)
