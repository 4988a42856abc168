"""The hash of a kernel's code, which tells whether a time was taken with the present code.

In: a DSL's folder, a kernel's name. Out: 16 hex digits of the kernel and of all that it imports from that folder.
"""

import ast
import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """The modules of the package that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package:
            parts = node.module.split(".")[1:]
            yield from ["/".join(parts), *("/".join([*parts, alias.name]) for alias in node.names)]


def _code(node: Any) -> Any:
    """A syntax tree as nested lists, without docstrings and positions: the same in every version of Python."""
    if isinstance(node, list):
        kept = [one for one in node if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
        return [_code(one) for one in kept]
    if isinstance(node, ast.AST):
        members = {name: value for name, value in ast.iter_fields(node) if value not in (None, [])}
        return [type(node).__name__, *([name, _code(value)] for name, value in sorted(members.items()))]
    return repr(node)


@lru_cache(128)
def _file(path: Path, package: str, written_ns: int) -> tuple[str, tuple[str, ...]]:
    """The hash of a module's code, and the modules of its package that it imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return hashlib.sha256(str(_code(tree)).encode()).hexdigest(), tuple(sorted(set(_imported(tree, package))))


def stamp(folder: Path, kernel: str) -> str:
    """16 hex digits over the code of a kernel of a DSL's folder and of all that it imports there; comments and
    docstrings do not count. Empty for an unknown kernel."""
    met: dict[str, str] = {}
    kernel = kernel.replace(".", "/")
    left = [kernel]
    while left:
        name = left.pop()
        if name not in met and (path := folder / f"{name}.py").exists():
            met[name], imported = _file(path, folder.name, path.stat().st_mtime_ns)
            left += imported
    digest = hashlib.sha256(str(sorted(met.items())).encode()).hexdigest()[:16]
    return digest if kernel in met else ""
