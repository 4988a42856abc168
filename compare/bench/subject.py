"""A kernel set up on an arena, and the status that each of its exceptions means."""

import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from common import interpreter
from common.gpus import Gpu
from common.spec import PagedBatch, SpecError, UnsupportedFeature
from common.spec.kernel import Capacity, asked_of, planned
from compare.bench.arena import Arena
from compare.bench.gate import Rejected
from compare.competitors import registry, sources
from compare.record import folder as run_folder
from compare.record.records import Status

LOG_TAIL = 2000  # characters of a traceback or log that a row keeps


class Subject:
    """A kernel with its config and workspace, ready to launch on every page set of an arena.

    A kernel may define `prepare` (common.spec.kernel.planned), the plan of a step, which engines make once for all
    layers. It runs outside the timed call, once a page set, and again after the values change, when it must refill the
    same buffers; `@planning` behind the id includes it in the time. A peer may have ASKS, members beyond its SUPPORTS
    that its library is asked for all the same and refuses itself. around: the context of its launches. Raises
    Rejected (unsupported) and what `registry.load` raises.
    """

    def __init__(
        self,
        kernel_id: str,
        arena: Arena,
        gpu: Gpu | None,
        config: Any = None,
        origin: str = "",
        heuristics: str = "tree",
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.kernel_id, self.arena, self.around = kernel_id, arena, around
        self.kernel = registry.load(kernel_id)
        if "triton" in sys.modules:
            interpreter.install()  # does nothing where kernels are compiled
        needs = asked_of(arena.batches[0], arena.features)
        if missing := sorted(needs - self.kernel.SUPPORTS - getattr(self.kernel, "ASKS", frozenset())):
            raise Rejected(Status.UNSUPPORTED, f"{kernel_id} does not implement {', '.join(missing)}")
        shape, stats = arena.workload.shape, arena.workload.stats
        self.config, self.origin = config, origin
        if not origin:
            asked = (kernel_id, self.kernel, shape, stats, gpu, heuristics, needs, arena.features.sees)
            self.config, self.origin = registry.default_config(*asked)
        capacity = Capacity.of(arena.batches[0])
        self._workspaces = [self.kernel.workspace(shape, capacity, self.config)] * len(arena.batches)
        self.plan()

    def plan(self) -> None:
        """Make the plan of a step, where the kernel separates it from its launch."""
        with self.around():
            for number, batch in enumerate(self.arena.batches):
                self._workspaces[number] = planned(
                    self.kernel, batch, self.arena.features, self.config, self._workspaces[number]
                )

    def launch(self, number: int, lse: torch.Tensor | None = None) -> None:
        """Launch on page set `number`."""
        self.launch_on(self.arena.batches[number], number, lse)

    def launch_on(self, batch: PagedBatch, number: int, lse: torch.Tensor | None = None) -> None:
        """Launch on a batch like page set `number`, into its output and with its workspace."""
        arena, workspace = self.arena, self._workspaces[number]
        self.kernel.launch(batch, arena.features, arena.outs[number], self.config, workspace, lse=lse)

    def identity(self) -> dict[str, Any]:
        """The fields of a record that identify the kernel."""
        return {
            "config": registry.config_dict(self.config),
            "config_origin": self.origin,
            "source_sha": sources.sha(self.kernel, registry.module_path(self.kernel_id)[0]),
        }


def _compiler_said_it(error: BaseException) -> bool:
    """Whether Triton's compiler, its resource check or Helion refused, here or further down the chain of causes."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        module = type(cause).__module__
        if type(cause).__name__ == "InterpreterError":  # wraps what an interpreted kernel raised
            return False
        if module.startswith(("triton.compiler", "triton.runtime.errors", "helion.exc")):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def status_of(error: BaseException) -> Status:
    """The status that a kernel's exception means."""
    if isinstance(error, Rejected):
        return error.status
    if isinstance(error, registry.Unavailable):
        return Status.UNAVAILABLE
    if isinstance(error, UnsupportedFeature):
        return Status.UNSUPPORTED
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return Status.OOM
    if not isinstance(error, SpecError) and _compiler_said_it(error):
        return Status.COMPILE_ERROR
    return Status.CRASH


def failure(error: BaseException) -> dict[str, Any]:
    """Status, reason and log tail of a row for an exception; paths of this project are relative."""
    status = status_of(error)
    lines = str(error).strip().splitlines() or [""]
    expected = isinstance(error, Rejected | registry.Unavailable | UnsupportedFeature)
    tail = "" if expected else "".join(traceback.format_exception(error)).replace(f"{run_folder.ROOT}/", "")[-LOG_TAIL:]
    reason = lines[0] if expected else f"{type(error).__name__}: {lines[0]}"
    return {"status": status, "reason": reason[:500], "log_tail": tail}


def device_is_sick(device: torch.device) -> bool:
    """Whether the device no longer answers in this process: after an illegal access every later call fails."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
        return int(torch.ones(1, device=device).add_(1).item()) != 2
    except RuntimeError:
        return True
