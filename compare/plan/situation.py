"""The situation of a run: the named GPU is here, it is absent, or only the CPU is used."""

from dataclasses import dataclass

import torch

from common import gpus
from common.gpus import Gpu
from compare.workloads import GrammarError


@dataclass(frozen=True)
class Situation:
    """What a run can do. target: the GPU meant, None for the CPU alone. measure: it is here, and cells are timed."""

    target: Gpu | None
    measure: bool
    device: str
    line: str

    @property
    def absent(self) -> bool:
        """Whether a GPU was named that is not here."""
        return self.target is not None and not self.measure

    @property
    def name(self) -> str:
        return self.target.name if self.target else "cpu"


def situation(asked: str | None, device: str | None) -> Situation:
    """Which of the three situations this is. Raises gpus.UnknownGpu; GrammarError for a device that is not here."""
    on = _device(device)
    here = gpus.detect(on.index) if on.type == "cuda" else None
    if device is not None and on.type == "cuda" and here is None:
        raise GrammarError(f"device: found {device!r}, which is not here, allowed cpu or a GPU that torch sees")
    target = here if asked in (None, "auto") else gpus.resolve(asked)
    if target is None:
        return Situation(None, False, "cpu", "no GPU here: checked in the interpreter on the CPU, nothing is timed")
    if here is not None and here.name == target.name:
        return Situation(target, True, str(on), f"{target.name} is here ({target.title}): checked and timed")
    found = f" (found {here.name})" if here else ""
    return Situation(target, False, "cpu", f"{target.name} is not here{found}: compiled and checked, not timed")


def _device(text: str | None) -> torch.device:
    """The torch device `cpu` or `cuda:N`; the first GPU by default. Raises GrammarError."""
    try:
        parsed = torch.device(text or "cuda")
    except RuntimeError:
        parsed = None
    if parsed is None or parsed.type not in ("cpu", "cuda"):
        raise GrammarError(f"device: found {text!r}, allowed cpu, cuda or cuda:<index>")
    return torch.device("cuda", parsed.index or 0) if parsed.type == "cuda" else torch.device("cpu")
