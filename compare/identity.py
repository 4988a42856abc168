"""Our own packages: refuse a stranger's `common`, for the first one on sys.path wins; and what a wheel calls them.

In a wheel they are diptych.common and so on (setup.py), whose sources say so: hashes are taken as if they did not.
"""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

PROJECT = "diptych"
FOLDER = Path(__file__).resolve().parents[1]  # that holds our packages
IMPORTED_FROM = Path(__file__).resolve().parents[__name__.count(".")]  # what stands on sys.path: in a checkout the same
INSTALLED = IMPORTED_FROM != FOLDER
_IN_FRONT = re.compile(rf"\b{PROJECT}\.(?=(?:common|compare|dsl_triton|dsl_helion)\b)")


class StrangerPackage(ImportError):
    """A package of another project was imported under the name of one of ours; the message names both paths."""


def ensure_own_packages() -> None:
    """Raise StrangerPackage unless `common` is the one that lies beside this package."""
    import common as package

    if getattr(package, "__project__", None) != PROJECT:
        found = package.__file__ or list(package.__path__)
        ours = FOLDER / "common"
        raise StrangerPackage(f"`common` is {found}, not Diptych's {ours}; put {FOLDER} before it on PYTHONPATH")


def code(packages: Iterable[str]) -> str:
    """A hash of all source files of these packages, 16 hex digits."""
    digest = hashlib.sha256()
    for path in sorted(path for package in packages for path in (FOLDER / package).rglob("*.py")):
        digest.update(str(path.relative_to(FOLDER)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def plain(source: str) -> str:
    """A module's source, or a module's name, as in a checkout, wherever it was read."""
    return _IN_FRONT.sub("", source)
