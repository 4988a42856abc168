"""Load the judge before the first kernel, and refuse to import later what a kernel could have written.

A module that is imported later, and the folders that contain it, must be older than the seal by their change time
(ctime), which a kernel cannot set. Compiled code is not read (`diptych_check.main`).
"""

import importlib
import os
import pkgutil
import sys
import time
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import common.cases
import common.oracle
import common.spec
from common.kit import levels
from common.kit.inside import Asked

WARM = ("window-page", "batch-1")  # judged once, so that libraries load what they load at a call
_seals: "list[Seal]" = []


class Seal:
    """Wraps Python's import finders: asks each as before, and checks what it finds."""

    def __init__(self, finders: list[Any]) -> None:
        self._finders, self._since = finders, time.time_ns()
        self._folders = {path: _identity(path) for path in map(_absolute, sys.path)}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module's spec. Raises ImportError for a module that a kernel could have written."""
        for finder in self._finders:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is None:
                continue
            if spec.has_location and not self._is_old(spec.origin):
                raise ImportError(f"{name}: found {spec.origin}, written since a kernel runs", name=name)
            return spec
        return None

    def find_distributions(self, *context: Any) -> Iterator[Any]:
        """For importlib.metadata."""
        for finder in self._finders:
            yield from finder.find_distributions(*context) if hasattr(finder, "find_distributions") else ()

    def invalidate_caches(self) -> None:
        for finder in self._finders:
            if hasattr(finder, "invalidate_caches"):
                finder.invalidate_caches()

    def _is_old(self, origin: str) -> bool:
        """Whether a file, and each folder from sys.path's on, existed before and is unchanged."""
        path = _absolute(origin)
        while path not in self._folders:
            above = os.path.dirname(path)
            try:
                found = os.lstat(path), os.stat(path)
            except OSError:
                return False
            if max(one.st_ctime_ns for one in found) >= self._since:
                return False
            if above == path:
                return True
            path = above
        return self._folders[path] == _identity(path)


def seal() -> None:
    """Import what judging needs, and check later imports from now on."""
    if _seals:
        return
    for package in (common.spec, common.oracle, common.cases):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    for name in WARM:
        Asked.of(levels.read(name)).why_not(lambda batch, features, out, lse: out.zero_())
    _seals.append(Seal(list(sys.meta_path)))
    sys.meta_path[:] = _seals


def _absolute(path: str) -> str:
    return os.path.abspath(path or os.getcwd())


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
