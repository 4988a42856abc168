"""B: which cells every suite has, on the CPU and for two GPUs, here and absent.

The id of a cell is a hash of its row's id, its kernel and the GPU; a plan's is one of the ids in their order. So the
rows of a suite, the kernels of a situation and the plan's hash say all of them.
"""

from common.gpus import resolve
from compare.plan.plan import Plan
from compare.plan.selection import selection
from compare.plan.situation import Situation
from compare.record.contract import Contract
from compare.run import options
from compare.workloads import suites
from goldens.table import Rows

SITUATIONS = {
    "cpu": Situation(None, False, "cpu", ""),
    "h200": Situation(resolve("h200"), True, "cuda:0", ""),
    "h200 absent": Situation(resolve("h200"), False, "cpu", ""),
    "mi300": Situation(resolve("mi300"), True, "cuda:0", ""),
    "mi300 absent": Situation(resolve("mi300"), False, "cpu", ""),
}
# Beside the suites: no suite, one batch, other kernels, the step's new K and V.
OTHERS = {
    "nothing asked": [],
    "a batch": ["--workload", "4q1s2k_q512s1536"],
    "every baseline": ["--suite", "peers", "--kernels", "baseline/*"],
    "variants": ["--suite", "smoke", "--kernels", "triton/q_block@paper,helion/auto@default,*/ablations.*"],
    "new K and V": ["--suite", "serving", "--new-kv", "--kernels", "*/auto"],
    "another seed": ["--suite", "smoke", "--seed", "7", "--set", "window=20"],
}


def rows() -> Rows:
    found: Rows = {}
    for name in suites.SUITES:
        found[f"rows of {name}"] = {row.label: row.id for row in suites.suite(name)}
    for name, words in ({name: ["--suite", name] for name in suites.SUITES} | OTHERS).items():
        asked = options.parse(words)
        for situation, now in SITUATIONS.items():
            plan = Plan.over(now, selection(asked.rows, now), asked.timing.contract(now.measure))
            found[f"plan of {name}, {situation}"] = {
                "hash": plan.hash,
                "cells": len(plan.cells),
                "kernels": list(plan.selection.kernels),
                "contract": plan.contract.name,
            }
    smoke = selection(options.parse(["--suite", "smoke"]).rows, SITUATIONS["cpu"])
    for job in Plan.over(SITUATIONS["cpu"], smoke, Contract()).jobs:
        found[f"cells of smoke, cpu, {job.workload.label}"] = {cell.kernel: cell.id for cell in job.cells}
    return found
