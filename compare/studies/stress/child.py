"""The process that launches: one config after the other on the same tensors, each as often as it was asked for.

The first launch is judged by the checker; every other one must leave the same bits in `out` and in the LSE, which hold
NaN before it. Bits are compared on the device, and the host waits once in CHUNK launches. What launched no product with
its left operand in registers is `unconcerned` and not repeated.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from common import gpus
from common.oracle.integrity import words
from common.oracle.tolerance import check
from compare.bench.arena import Arena
from compare.bench.subject import Subject, device_is_sick, failure
from compare.bench.task import versions
from compare.competitors import registry
from compare.process.channel import Channel
from compare.record.records import Status
from compare.static.crosscompile import launched_code
from compare.static.nvidia_code import products
from compare.workloads import Workload

UNCONCERNED = "unconcerned"
CHUNK = 200  # launches between two signs of life
NAN = float("nan")
MOST = 1e6  # of an error budget: JSON has no infinity


def repeat(
    launch: Callable[[], None], outs: Sequence[torch.Tensor], count: int, alive: Callable[[], bool]
) -> tuple[int, list[int]]:
    """`launch` up to `count` times: how often it was, and which of them left other bits in `outs` than are there now.

    alive: called behind each CHUNK, with the device idle; False ends it.
    """
    firsts = [words(out).clone() for out in outs]
    differs = torch.zeros(count, dtype=torch.bool, device=outs[0].device)
    done = 0
    while done < count:
        for number in range(done, min(done + CHUNK, count)):
            for out in outs:
                out.fill_(NAN)
            launch()
            changed = [(words(out) != first).any() for out, first in zip(outs, firsts, strict=True)]
            differs[number] = torch.stack(changed).any()
        done = min(done + CHUNK, count)
        if outs[0].device.type == "cuda":
            torch.cuda.synchronize(outs[0].device)
        if not alive():
            break
    return done, differs.nonzero().flatten().tolist()


class Stress:
    """task: gpu, device, workload, limit_s (of one config's launches), lost (configs that took a process along)."""

    def __init__(self, task: dict[str, Any], channel: Channel) -> None:
        self.channel, self.limit_s, self.lost = channel, task["limit_s"], set(task["lost"])
        self.device = torch.device(task["device"])
        self.gpu = gpus.resolve(task["gpu"]) if task["gpu"] in gpus.TABLE else gpus.detect()
        self.arena = Arena(Workload.from_dict(task["workload"]), 1, self.device)

    def job(self, job: dict[str, Any]) -> bool:
        """One config; whether the device survived it."""
        if job["id"] not in self.lost:
            self.channel.send("start", cell=job["id"])
            begin = time.monotonic()
            try:
                fields = self._stressed(job)
            except Exception as error:
                fields = failure(error)
            seconds = round(time.monotonic() - begin, 2)
            self.channel.send("row", cell=job["id"], fields={"seconds": seconds} | fields)
        if device_is_sick(self.device):
            return False
        self.channel.send("finished")
        return True

    def _stressed(self, job: dict[str, Any]) -> dict[str, Any]:
        arena = self.arena
        config = registry.config_from(registry.load(job["kernel"]).DEFAULT, job["config"])
        subject = Subject(job["kernel"], arena, self.gpu, config, "given")
        lse = arena.lse if "lse" in subject.kernel.SUPPORTS else None

        def launch() -> None:
            subject.launch(0, lse)

        arena.refill()  # what the one before did to the inputs is not this one's fault
        arena.compute_expected()
        arena.poison(NAN)
        found = [products(code.assembly) for code in launched_code(launch)]
        arena.sync()
        wgmma = {"register": sum(a for a, _ in found), "shared": sum(b for _, b in found)}
        if not wgmma["register"]:
            return {"status": UNCONCERNED, "reason": "no wgmma takes its left operand from registers", "wgmma": wgmma}
        told = self._judged(subject, lse) | {"wgmma": wgmma}
        if told["status"] != Status.OK:
            return told
        return told | self._repeated(job, launch, [arena.outs[0], *([] if lse is None else [lse])])

    def _judged(self, subject: Subject, lse: torch.Tensor | None) -> dict[str, Any]:
        arena = self.arena
        verdict = check(arena.outs[0], lse, arena.batches[0], arena.features, subject.kernel.CONTRACT, arena.expected)
        status = Status.OK if verdict.ok else Status.INCORRECT
        worst = min(round(getattr(verdict, verdict.rule), 4), MOST)
        return {"status": status, "reason": verdict.reason, "worst": worst}

    def _repeated(
        self, job: dict[str, Any], launch: Callable[[], None], outs: Sequence[torch.Tensor]
    ) -> dict[str, Any]:
        end = time.monotonic() + self.limit_s

        def alive() -> bool:
            self.channel.send("start", cell=job["id"])
            return time.monotonic() < end

        done, differ = repeat(launch, outs, job["launches"], alive)
        told: dict[str, Any] = {"done": done, "differ": len(differ)}
        if not differ:
            return told
        reason = f"{len(differ)} of {done} launches have other bits than the first, number {differ[0] + 1} before all"
        return told | {"status": Status.NONDETERMINISTIC, "reason": reason}


def main() -> None:
    channel = Channel()
    channel.send("ready", versions=versions())
    stress = Stress(json.loads(sys.stdin.readline()), channel)
    for line in sys.stdin:
        if not stress.job(json.loads(line)):
            return  # the next config gets a process whose device answers


if __name__ == "__main__":
    main()
