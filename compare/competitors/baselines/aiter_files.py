"""AITER's two files alone, where AITER is not installed: its kernels are then compiled for a GPU that is not here.

`unified_attention.py` (which chooses and launches) and `kernels.py` (`_triton_kernels/unified_attention.py` of the
wheel) stand unchanged in a package `aiter_triton` on the path. What they import of AITER, the number of units and the
dtype of an fp8, stands in for it while they are loaded. The project ships neither file.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch

BARE = "aiter_triton"
UNITS = 304  # compute units of an MI300X, for which it chooses without a GPU
_TRITON = "aiter.ops.triton"
_KERNELS, _LAUNCH = f"{_TRITON}._triton_kernels.unified_attention", f"{_TRITON}.unified_attention"


def _units() -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else UNITS


@contextlib.contextmanager
def _standing_in() -> Iterator[None]:
    """Inside, `import aiter...` finds what the two files ask for; afterwards sys.modules is as it was."""
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "aiter"}
    held = {f"{_TRITON}.utils.device_info": {"get_num_sms": _units},
            f"{_TRITON}.utils.types": {"e4m3_dtype": torch.float8_e4m3fnuz}}  # fmt: skip
    for name in (*held, f"{_TRITON}._triton_kernels"):
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            sys.modules[path] = module = ModuleType(path)
            module.__path__ = []
        vars(sys.modules[name]).update(held.get(name, {}))
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "aiter"]:
            del sys.modules[name]
        sys.modules.update(before)


def _execute(name: str, file: Path) -> ModuleType:
    """A file as the module `name`; triton reads the source of its kernels from the file."""
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load() -> ModuleType:
    """The module that has `unified_attention`. Raises ImportError where a file is missing or asks for more."""
    spec = importlib.util.find_spec(BARE)
    if spec is None:
        raise ImportError(f"no package {BARE}")
    folder = Path(next(iter(spec.submodule_search_locations or ())))
    for name in ("kernels", "unified_attention"):
        if not (folder / f"{name}.py").is_file():
            raise ImportError(f"{BARE} has no {name}.py")
    with _standing_in():
        _execute(_KERNELS, folder / "kernels.py")
        return _execute(_LAUNCH, folder / "unified_attention.py")
