"""What a captured graph holds, asked of NVIDIA's driver: kernels a call without a profiler."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

LIBRARY = "libcuda.so.1"
WORK = (0, 1, 2)  # CUgraphNodeType: kernel, copy, fill; events, waits and empty nodes are no work


class CannotCount(RuntimeError):
    """The driver is not here, or refused; the message is the reason."""


def _ask(function: Callable[..., int], *arguments: Any) -> None:
    if code := function(*arguments):
        raise CannotCount(f"{getattr(function, '__name__', 'driver')}: found CUresult {code}, allowed 0")


def count(graph: int, load: Callable[[str], Any] = ctypes.CDLL) -> int:
    """Kernels, copies and fills of a `cudaGraph_t` (`torch.cuda.CUDAGraph.raw_cuda_graph`). Raises CannotCount.

    Child graphs are not looked into: a capture makes none.
    """
    try:
        driver = load(LIBRARY)
    except OSError as error:
        raise CannotCount(str(error)) from error
    handle, size = ctypes.c_void_p(graph), ctypes.c_size_t()
    _ask(driver.cuGraphGetNodes, handle, None, ctypes.byref(size))
    nodes, kind = (ctypes.c_void_p * size.value)(), ctypes.c_int()
    _ask(driver.cuGraphGetNodes, handle, nodes, ctypes.byref(size))
    found = 0
    for node in nodes:
        _ask(driver.cuGraphNodeGetType, ctypes.c_void_p(node), ctypes.byref(kind))
        found += kind.value in WORK
    return found
