"""Which configs to try first on a GPU that is not here: `python -m compare tune --rank --gpu mi300`.

Every policy that the tuner might draw is compiled for the GPU. Out goes what spills, does not fit, or issues products
twice on a prompt; the others are ranked by the estimate (compare.static.estimate) over a decode, a prompt and a mixed
row, as a share of the default's. The ranking is written to compare/tune/rankings/<gpu>.json and seeds `tune` there. It
is labelled `static ranking, not run on hardware`: nothing in it was measured, and no tree is made of it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from common import gpus
from common.gpus import Gpu
from compare.competitors import registry
from compare.exits import INTERRUPTED
from compare.record import folder as run_folder
from compare.static.compile import Compilation, Outcome, compile_in_child
from compare.static.estimate import NoEstimate, estimate
from compare.tune import space
from compare.tune.arm import candidates
from compare.tune.space import DEFAULT
from compare.workloads import Workload
from compare.workloads.suites import peers, pick

ROWS = "32q1s2k~,q2k,16q1s2k_16q512s1536"
REDUNDANT = 1.05  # of a prompt's products, what a policy may issue
REPEATS = "attend_items_kernel"  # of static_grid, whose decodes have the waves of its prompts: they wait for bytes
KEPT = 6  # policies a kernel: the tuner's default of 16 leaves room for what it draws itself


def _score(outcome: Outcome, row: Workload, gpu: Gpu) -> tuple[float | None, str]:
    """Estimated microseconds of a policy, or why it drops out."""
    if outcome.status != "ok":
        return None, f"{outcome.status}: {outcome.reason}"[:160]
    for fact in outcome.facts:
        if gpu.vendor == "amd" and (fact["spills"] or fact["scratch_bytes"]):
            return None, f"{fact['kernel']} spills {fact['spills']} registers"
        redundancy = fact["matrix_redundancy"] or 1.0
        if row.kind == "prefill" and redundancy > REDUNDANT and not fact["kernel"].endswith(REPEATS):
            return None, f"{fact['kernel']} issues {redundancy:.2f} times its products"
    try:
        return estimate(row, outcome.job.kernel, outcome.config or {}, outcome.facts, gpu).us, ""
    except NoEstimate as error:
        return None, str(error)


def rank(kernel_id: str, rows: Sequence[Workload], gpu: Gpu, count: int, seed: int) -> dict[str, Any]:
    """The policies of a kernel by their estimates, best first, without its default; and why others dropped out.

    `share`: geometric mean over the rows of estimate / the default's estimate.
    """
    kernel = registry.load(kernel_id)
    defaults = [space.start(DEFAULT, kernel_id, kernel, row, gpu) for row in rows]
    policies = candidates(kernel_id, rows, gpu, count, seed)
    configs = [(row, policy.config(own)) for policy in policies for row, own in zip(rows, defaults, strict=True)]
    jobs = [Compilation(row, kernel_id, registry.config_dict(one), heuristics="learned") for row, one in configs]
    outcomes = iter(list(compile_in_child(jobs, gpu)))
    told = {policy: [_score(next(outcomes), row, gpu) for row in rows] for policy in policies}
    base = [us for us, _ in told[DEFAULT]]
    dropped = {policy.name: why for policy, found in told.items() if (why := next((w for _, w in found if w), ""))}
    shares = {policy: _share([us for us, _ in found], base) for policy, found in told.items()}
    others = (p for p, share in shares.items() if math.isfinite(share) and p != DEFAULT)
    best = sorted(others, key=lambda p: (shares[p], p.name))
    ranked = [{"policy": p.to_dict(), "name": p.name, "share": round(shares[p], 3)} for p in best]
    return {"ranked": ranked[:KEPT], "tried": len(policies), "dropped": dropped}


def _share(found: Sequence[float | None], base: Sequence[float | None]) -> float:
    """The geometric mean of estimates over the default's; infinite if a row has none, so that it is not ranked."""
    if any(us is None for us in (*found, *base)):
        return math.inf
    return math.exp(sum(math.log(a / b) for a, b in zip(found, base, strict=True)) / len(base))


def _kernels(asked: str) -> Iterator[str]:
    """The kernels with a space; `auto` has none of its own."""
    for kernel_id in registry.select(asked):
        if kernel_id.endswith("/auto"):
            continue
        if registry.is_own(kernel_id) and hasattr(registry.load(kernel_id), "space"):
            yield kernel_id


def main(asked: argparse.Namespace) -> int:
    """By --gpu, --kernels, --candidates and --seed of `tune`.

    0; 130 interrupted: kernels ranked so far are in the file. Raises UnknownGpu, UnknownKernel.
    """
    gpu, kernels = gpus.resolve(asked.gpu), list(_kernels(asked.kernels))
    rows = pick(peers(0), ROWS)
    known = space.read(gpu.name) if space.path(gpu.name).exists() else {"kernels": {}}
    known |= {"label": space.LABEL, "gpu": gpu.name, "arch": gpu.arch, "rows": [row.label for row in rows]}
    known |= {"versions": run_folder.versions()}
    space.FOLDER.mkdir(exist_ok=True)
    for number, kernel_id in enumerate(kernels, 1):
        print(f"[{number}/{len(kernels)}] {kernel_id}", end=": ", flush=True)
        try:
            found = rank(kernel_id, rows, gpu, asked.candidates, asked.seed)
        except KeyboardInterrupt:
            return INTERRUPTED
        known["kernels"][kernel_id] = found["ranked"]
        space.path(gpu.name).write_text(json.dumps(known, indent=1) + "\n")
        best = found["ranked"][0] if found["ranked"] else None
        said = f"best {best['name']} at {best['share']:.2f} of the default's estimate" if best else "none is left"
        print(f"{found['tried']} policies, {len(found['dropped'])} dropped, {said}", flush=True)
        for name, why in found["dropped"].items():
            print(f"    {name}: {why}")
    print(f"{space.LABEL}: {space.path(gpu.name)}")
    return 0
