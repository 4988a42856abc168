"""Compiles a kernel for a GPU that is not here on named cases of features, runs each in the model and judges it.

A process of its own: one that interprets cannot compile. Argument: JSON with gpu, kernel, cases (names), `more`, where
asked ({kernel: names}), and `without`, where asked, a mnemonic that is left out of the code. Prints JSON:
{case: verdict}, `ok`, `refused: ` with the mnemonic and why, or what is wrong.
"""

import json
import math
import sys
import time

from fault_child import without

from common.cases.named import CASES, build
from common.gpus import resolve
from compare.competitors import registry
from compare.static.crosscompile import executing
from compare.static.isa.errors import Fault, NotExecutable
from compare.static.isa.execute import execute
from compare.static.isa.machine import Program
from kernel_cases import lacking, launch


def executor(dropped):
    """Runs a launch whole, or without every instruction of one name."""
    if dropped is None:
        return execute
    mutate = without(lambda program, one: one.base == dropped)
    return lambda compiled: execute(compiled, mutate(Program(compiled.assembly)))


def verdict(kernel_id, case, gpu, dropped):
    kernel = registry.load(kernel_id)
    if lacking(kernel, case):
        return f"unsupported: {', '.join(sorted(lacking(kernel, case)))}"
    batch, _ = build(case)
    config, _ = registry.default_config(kernel_id, kernel, batch.shape, batch.stats, gpu, "tree", case.asked)
    try:
        with executing(gpu, executor(dropped)):
            launch(kernel, case, config, "cpu", math.nan)
    except NotExecutable as error:
        return f"refused: {error}"
    except Fault as error:
        return f"fault: {error}"
    except AssertionError as error:
        return f"incorrect: {error}"
    return "ok"


def main(asked):
    gpu, named = resolve(asked["gpu"]), {case.name: case for case in CASES}
    found, kernels = {}, {asked["kernel"]: asked["cases"]} | asked.get("more", {})
    for kernel, name in ((kernel, name) for kernel, names in kernels.items() for name in names):
        begin = time.perf_counter()
        found[name] = verdict(kernel, named[name], gpu, asked.get("without"))
        print(f"{time.perf_counter() - begin:6.1f} s  {name}: {found[name]}", file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
