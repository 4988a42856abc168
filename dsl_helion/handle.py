"""Record what Helion's generated host code hands to its launcher, so that common.serving.tape can repeat it.

The one private hook, the `_launcher` of a generated function, is used in binding.run and here alone.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import helion.runtime
import torch

from common.serving import tape
from common.serving.tape import Launch

_recording = threading.local()


@contextmanager
def recorded(device: torch.device) -> Iterator[list[Launch]]:
    """The launches of this thread, as they happen; empty where kernels are interpreted."""
    launches: list[Launch] = []
    if not tape.is_taped(device):
        yield launches
        return

    def launcher(function: Any, grid: Any, *args: Any, **options: Any) -> Any:
        compiled = helion.runtime.default_launcher(function, grid, *args, **options)
        launches.append(Launch.of(function, compiled, grid, args, options, tape.current_stream(device.index)))
        return compiled

    _recording.launcher = launcher
    try:
        yield launches
    finally:
        _recording.launcher = None


def launcher() -> Callable | None:
    """The launcher that a generated function should use; None for its own."""
    return getattr(_recording, "launcher", None)
