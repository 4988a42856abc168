"""Meet a kernel with a case on the device that is here; and the process that does so for conformance_run.py.

The process reads a (kernel, case, dtype) a line and answers each with a cell and whether its device is still of use.
Torch and triton are imported by functions alone: what they see of GPUs, and whether kernels are interpreted, is set
before.
"""

import contextlib
import gc
import json
import os
import sys
from dataclasses import replace
from typing import Any

RANDOM = "random-"


SET = "CONFORMANCE_SET"  # the environment's word for conformance_run.py --set


def meet(kernel_id: str, case: Any, device: str = "cuda", changes: str = "") -> dict[str, str]:
    """Two judged launches onto different poisons, with equal bits, of what the family's heuristics choose; of a named
    case in its own dtype with the kernel's DEFAULT too, unless that outgrows the GPU's shared memory (64 rows by 64
    keys of 512 lanes do). changes: of DEFAULT, which is met alone then. Raises what conform raises.
    """
    from triton.runtime.errors import OutOfResources

    from common.cases.named import BY_NAME
    from compare.competitors import registry
    from compare.tune.space import of_default
    from kernel_cases import chosen, conform

    kernel = registry.load(kernel_id)
    if changes and not case.refused:
        try:
            return conform(kernel, case, of_default(kernel_id, changes), device, twice=True)
        except OutOfResources as error:
            return {"outcome": "unsupported", "argument": "config", "reason": str(error)}
    config = kernel.DEFAULT if case.refused else chosen(kernel_id, kernel, case)
    outcome = conform(kernel, case, config, device, twice=True)
    named = BY_NAME.get(case.name)
    if named and case.dtype is named.dtype and config != kernel.DEFAULT:
        with contextlib.suppress(OutOfResources):
            outcome = conform(kernel, case, kernel.DEFAULT, device, twice=True)
    return outcome


def find(name: str, dtype: str) -> Any:
    """The named or random case of a cell."""
    import torch

    from common.cases.named import BY_NAME
    from common.cases.random_cases import random_case

    if name.startswith(RANDOM):
        return random_case(int(name.removeprefix(RANDOM)))
    return replace(BY_NAME[name], dtype=getattr(torch, dtype))


def answer(kernel_id: str, case: Any, device: str) -> dict[str, str]:
    """The cell, with the error as its reason where one was raised."""
    from kernel_cases import cell

    try:
        return cell(kernel_id, case, meet(kernel_id, case, device, os.environ.get(SET, "")))
    except Exception as error:
        return cell(kernel_id, case) | {"reason": " ".join(f"{type(error).__name__}: {error}".split())[:600]}


def visible(gpu: int) -> str:
    """The name of the `gpu`-th of the GPUs that this process was given."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return given.split(",")[gpu] if given else str(gpu)


def serve(device: str, gpu: int) -> None:
    """Answer until the process is killed. device: cuda or cpu; gpu: the number of the GPU that this process sees."""
    from compare.process.channel import Channel

    channel = Channel()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["HELION_DISALLOW_AUTOTUNING"] = "1"  # a missing config is an error and never a search
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible(gpu)
    import torch

    from common import interpreter

    interpreter.install()
    torch.set_num_threads(1)
    gc.set_threshold(200_000, 50, 50)  # thousands of cases beside Helion's caches: a quarter of the time was gc's
    for line in sys.stdin:
        kernel_id, name, dtype = json.loads(line)
        case = find(name, dtype)
        met = answer(kernel_id, case, device)
        channel.send("met", cell=met, usable=device == "cpu" or _usable(case.large))


def _usable(emptied: bool) -> bool:
    """Whether the GPU still answers; emptied: give its memory back, for the next case's pool has other sizes."""
    import torch

    try:
        torch.cuda.synchronize()
        if emptied:
            torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
