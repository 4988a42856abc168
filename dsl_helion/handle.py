"""Record what Helion's generated host code hands to its launcher, so that common.serving.tape can repeat it.

The one private hook, the `_launcher` of a generated function, is used in binding.run and here alone.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
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


def launcher(options: Mapping[str, Any]) -> Callable | None:
    """The launcher that a generated function should use; None for its own. options: of Triton's compiler, besides
    those that Helion's config has words for."""
    recording = getattr(_recording, "launcher", None)
    if not options:
        return recording
    return functools.partial(recording or helion.runtime.default_launcher, **options)
