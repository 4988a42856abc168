"""Which files make a kernel or a choice, and a hash over them: a result belongs to all the lines that it ran."""

import ast
import hashlib
import inspect
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from compare.identity import FOLDER, plain


def _root(file: Path) -> Path:
    """The folder that the file's topmost package stands in; the file's own where it is in no package."""
    folder = file.parent
    while (folder / "__init__.py").exists() and folder != FOLDER:
        folder = folder.parent
    return folder


def _called(node: ast.Call) -> str:
    """What `import_module(...)` names, as it is said; with a dot at the end where the rest is put together at run time;
    or nothing."""
    if ast.unparse(node.func).split(".")[-1] != "import_module" or not node.args:
        return ""
    said = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
    return said.value if isinstance(said, ast.Constant) and isinstance(said.value, str) else ""


def _absolute(name: str, package: str) -> str:
    """`..x` said in `package`, as a name from the top."""
    said = name.lstrip(".")
    level = len(name) - len(said)
    above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
    return ".".join([*above, said])


def _imported(root: Path, tree: ast.AST, package: str) -> Iterator[str]:
    """The modules that a module's imports are of: `from a import b` of a.b where there is one, else of a; a name with a
    dot at the end stands for every module of that package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), package).rstrip(".")
            inside = [f"{base}.{alias.name}" for alias in node.names]
            yield from (name if _modules(root, name) else base for name in inside)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call):
            yield _absolute(_called(node), package)


def _modules(root: Path, name: str) -> list[Path]:
    """The file of a module or a package; of a name that ends in a dot, every module of that package."""
    path = root.joinpath(*name.split("."))
    if not name or name.endswith("."):
        return sorted(path.glob("*.py")) if name else []
    return [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()][:1]


def read_by(
    starts: Iterable[Path],
    packages: Collection[str],
    without: Collection[str] = (),
    root: Path = FOLDER,
    *,
    code_alone: bool = False,
) -> list[Path]:
    """`starts`, every module under `root` of `packages` that they import, directly or not, and every file beside one of
    these that it names in a string: sorted. Modules named in `without` are passed by. Nothing is imported for it.

    code_alone: without those files, and without `__init__.py`.
    """
    found, left = set(starts), list(starts)
    while left:
        file = left.pop()
        tree = _tree(file)
        strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and _is_name(node.value)}
        found |= {beside for text in strings if not code_alone and (beside := file.parent / text).is_file()}
        for name in _imported(root, tree, ".".join(file.relative_to(root).parts[:-1])):
            if name.split(".")[0] in packages and name not in without:
                new = [path for path in _modules(root, name) if path not in found]
                new = [path for path in new if not code_alone or path.name != "__init__.py"]
                found.update(new)
                left += new
    return sorted(found)


def _tree(file: Path) -> ast.Module:
    """Of a stranger's file that does not parse, an empty one: the cell that imports it says why."""
    try:
        return ast.parse(plain(file.read_text(encoding="utf-8", errors="replace")))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) < 100 and value.isprintable() and "/" not in value


def files(start: Path) -> list[Path]:
    """`start` and every file of its package that it imports, directly or not, sorted; nothing is imported for it.

    `__init__.py` is left out, for it only re-exports. Files of other packages are not the kernel's: the spec has a hash
    of its own, libraries have versions.
    """
    start = start.resolve()
    root = _root(start)
    package = start.relative_to(root).parts[:1] if start.parent != root else ()  # in no package: alone
    return read_by([start], package, root=root, code_alone=True)


def sha(kernel: Any, named: str = "") -> str:
    """The first 16 hex digits of SHA-256 over the kernel's files and their names; empty for a kernel without a file.

    named: the imported module in which the kernel was found, which need not be the one of its class.
    """
    module = kernel if isinstance(kernel, ModuleType) else inspect.getmodule(type(kernel))
    starts = [getattr(found, "__file__", None) for found in (module, sys.modules.get(named))]
    paths = {path for start in filter(None, starts) for path in files(Path(start))}
    return sha_of(sorted(paths)) if paths else ""


def sha_of(paths: Iterable[Path]) -> str:
    """The first 16 hex digits of SHA-256 over files and their names."""
    digest = hashlib.sha256()
    for path in paths:
        text = plain(path.read_text(encoding="utf-8", errors="surrogateescape"))
        digest.update(f"{path.name}\0{text}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]
