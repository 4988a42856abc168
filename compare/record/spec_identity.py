"""16 hex digits that identify the spec: what is computed and what is correct. Runs of one spec can be compared and
resumed.

The digits stand for statements, wherever they are: files may be renamed, joined and split, and comments, docstrings and
imports of this project rewritten, without another spec. Changing a statement makes another spec.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache

from compare.identity import FOLDER, plain

# Files of common/: what may be asked, how the right answer and the distance from it are found, how batches are drawn.
FILES = (
    *("spec/paged_batch.py", "spec/features.py", "spec/feature_rules.py", "spec/validation.py", "spec/refusals.py"),
    *("spec/metadata.py", "spec/kernel.py", "spec/precision.py", "spec/cache.py", "spec/states.py", "spec/quantise.py"),
    *("spec/plain.py", "spec/overlap.py", "spec/ranges.py"),
    *("oracle/reference.py", "oracle/visibility.py", "oracle/tolerance.py", "oracle/rounding.py"),
    *("oracle/rows.py", "oracle/bias.py", "oracle/integrity.py", "oracle/cache.py", "cases/batch.py"),
)
_OURS = ("common", "__future__")


@cache
def spec_hash() -> str:
    """The spec's name in manifests, fingerprints and messages."""
    return hash_of(plain((FOLDER / "common" / name).read_text(encoding="utf-8")) for name in FILES)


def hash_of(sources: Iterable[str]) -> str:
    """The first 16 hex digits of SHA-256 over the statements of all sources, in any order."""
    said = {statement for source in sources for statement in _statements(ast.parse(source))}
    return hashlib.sha256("\n".join(sorted(said)).encode()).hexdigest()[:16]


def _statements(module: ast.Module) -> Iterator[str]:
    """The top-level statements; of an import each name by itself, because joined files import them on one line."""
    for node in _without_docstring(module.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            of = getattr(node, "module", "")
            yield from (f"import {of} {alias.name} {alias.asname}" for alias in node.names if not _is_ours(node))
        elif not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"):
            yield _plain(node)


def _plain(node: object) -> str:
    """A syntax tree without positions, docstrings and imports of this project. Empty fields are omitted: they depend on
    Python's version, like `ast.dump` and `ast.unparse`."""
    if isinstance(node, list):
        return f"[{', '.join(_plain(each) for each in _without_docstring(node) if not _is_ours(each))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, getattr(node, name, None)) for name in node._fields)
    said = ", ".join(f"{name}={_plain(value)}" for name, value in fields if value is not None and value != [])
    return f"{type(node).__name__}({said})"


def _without_docstring(body: list) -> list:
    """A body without its docstring; any other list unchanged."""
    first = body[0] if body else None
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return body[1:] if is_text else body


def _is_ours(node: object) -> bool:
    """Whether it imports from this project, or from __future__."""
    if isinstance(node, ast.ImportFrom):
        return bool(node.level) or (node.module or "").split(".")[0] in _OURS
    return isinstance(node, ast.Import) and any(alias.name.split(".")[0] in _OURS for alias in node.names)
