"""Repairs of Triton's CPU interpreter (TRITON_INTERPRET=1), each undoable, each with a canary test.

Without them a bf16 kernel gives noise or is rejected though right, and hardly any Triton code of Helion runs.
Private names of Triton and Helion are touched in this package and nowhere else. It is run by its path too, where
`common` is a folder of somebody else, hence its relative imports.

Helion's repairs wait until Helion is imported, which takes 5 s and which a Triton kernel does not need.

In: a process that interprets, before it runs a kernel (`install`). Out: the same process, repaired.
What stays wrong: arithmetic on bf16 values (they are carried as bit patterns), so kernels cast to float32 first.
"""

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from . import of_helion, of_triton
from .of_helion import light_import, num_units, units

__all__ = ["REPAIRS", "begin", "install", "light_import", "num_units", "units", "wanted", "without"]

REPAIRS = of_triton.REPAIRS | of_helion.REPAIRS
_originals: dict[str, of_triton.Patches] = {}  # name of an active repair -> the original attributes


def wanted() -> bool:
    """Whether this process interprets kernels instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _apply(name: str) -> None:
    with of_triton.LOCK:  # threads may begin at once
        if name in _originals:
            return
        patches = REPAIRS[name]()
        _originals[name] = [(owner, attribute, getattr(owner, attribute, None)) for owner, attribute, _ in patches]
        for owner, attribute, replacement in patches:
            setattr(owner, attribute, replacement)


def _undo(name: str) -> None:
    for owner, attribute, original in _originals.pop(name):
        if original is None:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, original)


def _repair_helion() -> None:
    for name in of_helion.REPAIRS:
        _apply(name)


class _OnceImported:
    """An import hook: finds Helion where the other finders do, and repairs it right after its import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "helion":
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(self._run, spec.loader.exec_module)
        return spec

    def _run(self, exec_module: Any, module: Any) -> None:
        with light_import():
            exec_module(module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        _repair_helion()


def install() -> None:
    """Apply the repairs once, before the first launch: Triton's now, Helion's now or when it is imported.

    Does nothing unless TRITON_INTERPRET=1. Works without Helion.
    """
    if not wanted():
        return
    for name in of_triton.REPAIRS:
        _apply(name)
    if sys.modules.get("helion") is not None:
        _repair_helion()
    elif not any(isinstance(finder, _OnceImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OnceImported())


def begin() -> bool:
    """Switch this process to the interpreter if it has no GPU and TRITON_INTERPRET is unset; returns whether it
    interprets.

    For a public call, before its kernels are imported. Warns once. Where triton is already imported it is too late: the
    warning says what to do, and the launch will fail.
    """
    if "TRITON_INTERPRET" not in os.environ and not _gpus():
        if "triton" in sys.modules:
            how = "set TRITON_INTERPRET=1, or import this package before triton"
            warnings.warn(f"no GPU is here and triton is imported already: {how}", stacklevel=3)
            return False
        os.environ["TRITON_INTERPRET"] = "1"
        how = "TRITON_INTERPRET=0 turns that off"
        warnings.warn(f"no GPU is here: kernels run in Triton's interpreter, right and slow ({how})", stacklevel=3)
    install()
    return wanted()


def _gpus() -> int:
    """The number of GPUs that torch sees. Asks NVML before CUDA: a process that forks later must not have initialised
    CUDA."""
    import torch

    return torch.cuda.device_count()


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """All installed repairs but one: what a canary test needs."""
    _undo(name)
    try:
        yield
    finally:
        _apply(name)
