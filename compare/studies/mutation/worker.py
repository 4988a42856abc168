"""The child of the mutation score: one case at a time, and which of the wrong kernels that still live it rejects.

A line each way: {"case": expression, "alive": [numbers], "count", "families", "seed", "whole": without their limits,
"exact": rejected is who is not the right one in float64 without limit};
one {"at": number} before each kernel, so that one that never returns is known, {"killed": number, "why"} for each that
is rejected, {"differs": number} for each that is not, though it gives other bits than the right one, {"done": case}.
"""

import json
import signal
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from common.cases.calls import calls
from common.kit.fitting import fitted
from common.kit.inside import Asked
from common.kit.isolated import limit_memory
from common.kit.levels import is_made, read
from common.mutants import emulation
from common.mutants.emulation import Schedule
from common.mutants.families import families, meets, places
from common.mutants.operators import SOURCE, Made, exactly, load, made
from common.spec.kernel import MEMBERS

SUPPORTS = MEMBERS - {"full_graph", "x_packed"}  # of the emulation
TILE, SEGMENTS = 64, 2  # of the emulation
LIMIT_S = 20.0  # of a kernel on a case
MEMORY = 8 << 30  # bytes beyond what the imports took: a torch with CUDA takes gigabytes of address space


class Late(Exception):
    """The kernel did not end in time."""


def late(*_: Any) -> None:
    raise Late(f"no end within {LIMIT_S:.0f} s")


@cache
def kernels_of(count: int, of_axes: int, seed: int) -> tuple[Made, ...]:
    """The wrong kernels of a run: `count` by operators, then `of_axes` that are wrong at one value of an axis."""
    return (*made(count, seed), *families(of_axes, seed))


@cache
def _module(kernel: Made, whole: bool) -> Any:
    return load(kernel.whole if whole else kernel.source)


def launcher(module: Any) -> Any:
    """A module's emulation as the kit calls a kernel."""
    schedule = module.Schedule(TILE, SEGMENTS)
    return lambda batch, features, out, lse: module.emulate(batch, features, out, schedule, lse=lse)


def asked(expression: str, seed: int = 0) -> Asked | None:
    """The case as the emulation is asked it; None where it cannot be."""
    case = read(expression)
    case = fitted(case, SUPPORTS, {}) if is_made(case) else case
    return None if case.asked - SUPPORTS or case.large else Asked.of(case, seed)


@cache
def _right() -> Any:
    return load(exactly(SOURCE.read_text(encoding="utf-8")))


def in_float64(case: Asked, module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the LSE of a module of `exactly` in the first call."""
    rows, heads = case.batch.query.shape[:2]
    out = torch.full((rows, heads, case.batch.shape.value_lanes), torch.nan, dtype=torch.float64)
    lse = torch.full((rows, heads), torch.nan, dtype=torch.float64)
    schedule = module.Schedule(TILE, SEGMENTS, probabilities=torch.float64)
    torch.set_default_dtype(torch.float64)
    try:
        module.emulate(case.batch, case.features, out, schedule, lse=lse)
    finally:
        torch.set_default_dtype(torch.float32)
    return out, lse


def apart(case: Asked, kernel: Made) -> tuple[bool, str]:
    """False, and in which output a kernel without its limit is not the right one where nothing is rounded; empty for
    none."""
    found, right = in_float64(case, load(exactly(kernel.whole or kernel.source))), in_float64(case, _right())
    three = zip(("out", "lse"), found, right, strict=True)
    names = [name for name, a, b in three if not torch.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)]
    return False, f"other {' and '.join(names)} in float64" if names else ""


def judged(case: Asked, module: Any, later: bool) -> tuple[bool, str]:
    """Whether a kernel gives other bits than the emulation, and what the kit says against it. One without a memory that
    gives the same in the first call is right here, and most of those that live do: it is not called again. later: its
    limit holds in other calls."""
    launch = launcher(module)
    differs = not case.same_as_right(launch, launcher(emulation))
    return differs, case.why_not(launch) if differs or later or hasattr(module, "_MEMORY") else ""


def guarded(judge: Callable[..., tuple[bool, str]], *arguments: Any) -> tuple[bool, str]:
    """What `judge` returns, or the error that the kernel raised."""
    try:
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        return judge(*arguments)
    except Exception as error:
        return True, f"raised {type(error).__name__}: {' '.join(str(error).split())[:150]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def say(**told: Any) -> None:
    print(json.dumps(told), flush=True)


def reached(case: Asked, kernels: dict[int, Made]) -> tuple[set[int], set[int]]:
    """Of these kernels those whose limit holds somewhere in the first call, and in a later one."""
    first: set[int] = set()
    later: set[int] = set()
    for number, call in enumerate(calls(case.case, case.batch, case.features)):
        there = places(call.batch, call.features, Schedule(TILE, SEGMENTS))
        found = later if number else first
        found |= {one for one, kernel in kernels.items() if one not in found and meets(kernel, there)}
    return first, later


def serve(request: dict[str, Any]) -> None:
    case = asked(request["case"])
    kernels = kernels_of(request["count"], request["families"], request["seed"])
    alive = {number: kernels[number] for number in request["alive"]} if case else {}
    exact, unlimited = request.get("exact", False), request["whole"] or request.get("exact", False)
    limited = {number: kernel for number, kernel in alive.items() if kernel.limit and not unlimited}
    first, later = reached(case, limited) if limited else (set(), set())
    for number, kernel in alive.items():
        if number in limited and number not in first | later:
            continue
        say(at=number)
        try:
            module = _module(kernel, request["whole"])
        except Exception as error:
            say(killed=number, why=f"raised {type(error).__name__} when it was loaded")
            continue
        if exact:
            differs, why = guarded(apart, case, kernel)
        else:
            differs, why = guarded(judged, case, module, number in later - first)
        if why:
            say(killed=number, why=why[:300])
        elif differs:
            say(differs=number)
        if "changed its input" in why or "wrote outside" in why or why.startswith("raised"):
            case = asked(request["case"])  # its inputs are no longer what they were
    say(done=request["case"])


def main() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, late)
    limit_memory(MEMORY)
    for line in sys.stdin:
        serve(json.loads(line))


if __name__ == "__main__":
    main()
