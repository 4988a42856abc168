"""Refuse a stranger's `common`: the name is common, and the first one on sys.path wins."""

from __future__ import annotations

import importlib
from pathlib import Path

PROJECT = "diptych"


class StrangerPackage(ImportError):
    """A package of another project was imported under the name of one of ours; the message names both paths."""


def ensure_own_packages() -> None:
    """Raise StrangerPackage unless `common` is the one that lies beside this package."""
    ours = Path(__file__).resolve().parent.parent / "common"
    package = importlib.import_module("common")
    if getattr(package, "__project__", None) != PROJECT:
        found = package.__file__ or list(package.__path__)
        raise StrangerPackage(f"`common` is {found}, not Diptych's {ours}; put {ours.parent} before it on PYTHONPATH")
