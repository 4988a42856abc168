"""Record what a launch hands to Triton's JIT, so that common.serving.tape can repeat it without the JIT.

The one private hook, `JITFunction.run`, is touched here alone; tests/common/serving/test_call_kept.py is its canary.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from common.serving import tape
from common.serving.tape import Launch

_recording = threading.Lock()


@contextmanager
def recorded(device: torch.device) -> Iterator[list[Launch]]:
    """The launches of this thread, as they happen; empty where kernels are interpreted, which have no JIT."""
    launches: list[Launch] = []
    if not tape.is_taped(device):
        yield launches
        return
    me, original = threading.get_ident(), JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = original(self, *args, grid=grid, warmup=warmup, **kwargs)
        if threading.get_ident() == me:
            stream = tape.current_stream(device.index)
            launches.append(Launch.of(self, None if warmup else compiled, grid, args, kwargs, stream))
        return compiled

    with _recording:
        JITFunction.run = run
        try:
            yield launches
        finally:
            JITFunction.run = original
