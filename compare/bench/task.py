"""A job of the process that runs kernels, and its answers: events, and the rows of cells that fail."""

import dataclasses
import gc
import time
from collections.abc import Sequence
from typing import Any

import torch

from common import gpus
from compare.bench.arena import Arena
from compare.bench.intact import Intact
from compare.bench.subject import device_is_sick, failure
from compare.process.channel import Channel
from compare.record import folder as run_folder
from compare.record.contract import Contract
from compare.record.records import Evidence, GateResult, Status
from compare.workloads import Workload


class Sick(Exception):
    """This process has lost the device."""


def versions() -> dict[str, str]:
    """The versions of the interpreter, packages, GPU and driver that run here."""
    found = run_folder.versions()
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name(0)
        found["cuda" if torch.version.cuda else "rocm"] = str(torch.version.cuda or torch.version.hip)
    return found


def _plain(outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome with its dataclasses as dicts, for JSON."""
    return {k: dataclasses.asdict(v) if dataclasses.is_dataclass(v) else v for k, v in outcome.items()}


def rotated(cells: Sequence[Any], process: int, processes: int) -> list[Any]:
    """The order in which process number `process` sets cells up and first runs them: each process begins elsewhere."""
    shift = process * len(cells) // processes
    return [*cells[shift:], *cells[:shift]]


def free_memory() -> int:
    """Return the GPU's memory to the driver, except context and loaded code; returns the bytes that torch still holds.

    Launches nothing. The tensors and graphs of a row are freed with it, unless a compiler's exception holds them in a
    cycle.
    """
    gc.collect()
    if not torch.cuda.is_initialized():
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


class Task:
    """A job: the cells of one workload on one device, in the plan's order; `turns` is this process's order."""

    def __init__(self, plain: dict[str, Any], channel: Channel) -> None:
        self.workload = Workload.from_dict(plain["workload"])
        self.cells: list[tuple[str, str]] = [tuple(cell) for cell in plain["cells"]]
        self.contract = Contract(**plain["contract"])
        self.turns = rotated(self.cells, plain["process"], self.contract.processes)
        self.heuristics: str = plain.get("heuristics", "tree")
        self.device = torch.device(plain["device"])
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.gpu = gpus.resolve(plain["gpu"]) if plain["gpu"] in gpus.TABLE else gpus.detect(self.device.index or 0)
        self.channel, self.intact = channel, Intact()
        self._begun: dict[str, float] = {}

    def start(self, cell: str | None) -> None:
        self.channel.send("start", cell=cell)
        if cell is not None:
            self._begun.setdefault(cell, time.perf_counter())

    def row(self, cell: str, outcome: dict[str, Any]) -> None:
        seconds = time.perf_counter() - self._begun[cell]
        self.channel.send("row", cell=cell, outcome=_plain(outcome) | {"seconds": round(seconds, 3)})

    def failed(self, cell: str, error: Exception, identity: dict[str, Any]) -> None:
        """Send the row of a cell that raised. Raises Sick where the device did not survive."""
        self.intact.changed()  # what it left behind is not the next one's
        self.row(cell, identity | failure(error))
        if device_is_sick(self.device):
            raise Sick

    def arena(self, sets: int, pad_tokens: int = 0) -> Arena | None:
        """The tensors of the job; None where making them failed, which becomes the row of every cell."""
        self.start(None)
        try:
            return Arena(self.workload, sets, self.device, pad_tokens)
        except Exception as error:
            for cell, _ in self.cells:
                self.start(cell)
                self.failed(cell, error, {})
            return None


def ok(verdict: GateResult, *evidence: Evidence) -> dict[str, Any]:
    return {"status": Status.OK, "reason": "", "evidence": list(evidence), "gate": verdict}
