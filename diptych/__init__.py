"""Diptych's packages under one name: diptych.common, diptych.compare, diptych.dsl_triton and diptych.dsl_helion.

A wheel holds them in this folder and nowhere else, for `common` and `compare` are other people's names too. In a
checkout, and where one is installed as editable, they stand beside this folder under their own names, and `diptych.x`
is the same module as `x`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

PACKAGES = ("common", "compare", "dsl_triton", "dsl_helion")
_HERE = Path(__file__).resolve().parent


class _Beside(MetaPathFinder, Loader):
    """`diptych.x` is the module `x` of the folder beside this one."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        own = name.removeprefix(f"{__name__}.")
        if own == name or own.split(".")[0] not in PACKAGES:
            return None
        if (found := importlib.util.find_spec(own)) is None:
            return None
        if found.origin is None or not Path(found.origin).resolve().is_relative_to(_HERE.parent):
            where = found.origin or list(found.submodule_search_locations or ())
            hint = f"put {_HERE.parent} before it on PYTHONPATH"
            raise ImportError(f"`{own}` is {where}, not Diptych's; {hint}", name=own)
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(name, self, origin=found.origin, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(spec.name.removeprefix(f"{__name__}."))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = module.__spec__.loader_state  # what the import system has just put another one over

    def get_code(self, name: str) -> CodeType | None:
        """For `python -m diptych.x`."""
        own = name.removeprefix(f"{__name__}.")
        return importlib.util.find_spec(own).loader.get_code(own)


if not (_HERE / "common").is_dir():
    sys.meta_path.insert(0, _Beside())  # else `diptych.common.spec` is found on the path of `common`, and loaded again
