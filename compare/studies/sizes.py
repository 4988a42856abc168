"""Size and shape of each kernel's source: tokens, logical lines, cyclomatic number, escapes.

    python -m compare study sizes [--kernels 'triton/*,helion/*']

Counted is what `launch` and `workspace` reach inside the kernel's own DSL folder, function by function, and nothing is
imported for it. Device code is every kernel and every helper that a kernel calls; host code is the rest. `space`,
Config classes, imports and constants are not counted, nor what both DSLs share (`common`).
A source is normalised first: no comments, docstrings or annotations (but `constexpr`, which changes the code), one
layout. A name is one token however long it is.
Two kernels are compared where their capability rows are equal (compare.studies.capability), else the reason stands in
the row. Exit codes: 0; 2 usage; 5 nothing selected.
"""

import argparse
import ast
import io
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from compare.competitors import registry
from compare.exits import NOTHING, OK, refusing
from compare.identity import FOLDER, plain
from compare.studies import capability

HELP = "tokens, lines, cyclomatic number and escapes of each kernel's source"

ENTRIES = ("launch", "workspace")
KERNEL_MAKERS = ("jit", "kernel")  # triton.jit, helion.kernel, binding.kernel: decorators or calls
ESCAPES = ("inline_triton", "triton_kernel", "inline_asm_elementwise", "gluon", "libdevice")
VENDORS = ("cuda", "hip")  # below tl.extra: one vendor's instructions
_LAYOUT = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.comprehension, ast.match_case)


@dataclass(frozen=True)
class Size:
    """Sums over functions. cyclomatic: 1 a function and 1 a branch (if, loop, and/or, comprehension, except, case)."""

    functions: int
    tokens: int
    lines: int
    cyclomatic: int
    escapes: int


@dataclass(frozen=True)
class Source:
    """The sizes of a kernel. escapes: sorted names of what leaves the portable language, one for each place."""

    kernel: str
    device: Size
    host: Size
    escapes: tuple[str, ...]


class _Plain(ast.NodeTransformer):
    """Removes what does not run."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        node.body = [s for s in node.body if not _is_text(s)] or [ast.Pass()]
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        if node.annotation is not None and "constexpr" not in ast.unparse(node.annotation):
            node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if "constexpr" in ast.unparse(node.annotation):
            return self.generic_visit(node)
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([self.visit(node.target)], self.visit(node.value)), node)


def _is_text(statement: ast.stmt) -> bool:
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant and isinstance(statement.value.value, str)


@cache
def normalised(function: ast.FunctionDef) -> str:
    """The function in one layout, with only what runs."""
    plain = _Plain().visit(ast.parse(ast.unparse(function)).body[0])
    return ast.unparse(ast.fix_missing_locations(plain))


def _escapes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node).split(".")
            if dotted[-1] in ESCAPES or (len(dotted) == 4 and dotted[1] == "extra" and dotted[2] in VENDORS):
                yield ".".join(dotted)


def measure(functions: Iterable[ast.FunctionDef]) -> Size:
    """The sums over the normalised functions."""
    texts = [normalised(function) for function in functions]
    trees = [ast.parse(text) for text in texts]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    tokens = (t for text in texts for t in tokenize.generate_tokens(io.StringIO(text).readline))
    branches = sum(isinstance(node, _BRANCHES) for node in nodes)
    branches += sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return Size(
        functions=len(texts),
        tokens=sum(token.type not in _LAYOUT for token in tokens),
        lines=sum(isinstance(node, ast.stmt) for node in nodes),
        cyclomatic=len(texts) + branches,
        escapes=sum(len(list(_escapes(tree))) for tree in trees),
    )


@dataclass(frozen=True)
class _Module:
    """A source file: its functions, its imported names, which functions are kernels, and what its names are set to."""

    functions: dict[str, ast.FunctionDef]
    imports: dict[str, tuple[str, str]]  # local name -> (module, name in it; "" for the module itself)
    kernels: frozenset[str]
    values: dict[str, ast.expr]


def _is_maker(node: ast.AST) -> bool:
    target = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(target).split(".")[-1] in KERNEL_MAKERS


@cache
def _module(name: str) -> _Module | None:
    """The parsed file of a dotted name; None where it is no file of this project."""
    path = FOLDER.joinpath(*name.split(".")).with_suffix(".py")
    if not path.is_file():
        return None
    tree = ast.parse(plain(path.read_text(encoding="utf-8")))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    imports: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = (FOLDER / node.module.replace(".", "/") / f"{alias.name}.py").is_file()
                target = (f"{node.module}.{alias.name}", "") if inner else (node.module, alias.name)
                imports[alias.asname or alias.name] = target
    decorated = {name for name, f in functions.items() if any(_is_maker(d) for d in f.decorator_list)}
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    calls = [node.value for node in assigned if isinstance(node.value, ast.Call)]
    wrapped = {ast.unparse(call.args[0]) for call in calls if _is_maker(call) and call.args}
    values = {node.targets[0].id: node.value for node in assigned}
    return _Module(functions, imports, frozenset(decorated | wrapped), values)


@cache
def _named(function: ast.FunctionDef, module: str) -> tuple[tuple[str, str], ...]:
    """(module, function) of every function of this project that the body names, whether called, passed or held by a
    name of a module."""
    return tuple(_each_named(function, module))


def _each_named(tree: ast.AST, module: str) -> Iterator[tuple[str, str]]:
    home = _module(module)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            place = home.imports.get(node.id, (module, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in home.imports:
            place = (home.imports[node.value.id][0], node.attr)
        else:
            continue
        owner = _module(place[0])
        if owner is not None and place[1] in owner.functions:
            yield place
        elif owner is not None and place[1] in owner.values:
            yield from _each_named(owner.values[place[1]], place[0])


def _is_kernel(place: tuple[str, str]) -> bool:
    module = _module(place[0])
    return place[1] in module.kernels


def _reached(starts: Iterable[tuple[str, str]], package: str) -> dict[tuple[str, str], ast.FunctionDef]:
    """The functions of `package` reachable from `starts`, these included, in order of discovery."""
    found: dict[tuple[str, str], ast.FunctionDef] = {}
    left = list(starts)
    while left:
        place = left.pop(0)
        if place in found or place[0].split(".")[0] != package:
            continue
        found[place] = _module(place[0]).functions[place[1]]
        left += _named(found[place], place[0])
    return found


@cache
def of_kernel(kernel_id: str) -> Source:
    """The sizes of an own kernel's code. Raises registry.UnknownKernel."""
    name = plain(registry.module_path(kernel_id)[0])
    package, module = name.split(".")[0], _module(name)
    everything = _reached([(name, entry) for entry in ENTRIES if entry in module.functions], package)
    device = _reached([place for place in everything if _is_kernel(place)], package)
    host = [function for place, function in everything.items() if place not in device]
    escapes = sorted(escape for function in everything.values() for escape in _escapes(function))
    return Source(kernel_id, measure(device.values()), measure(host), tuple(escapes))


def rows(kernels: Sequence[str]) -> list[dict[str, Any]]:
    """One flat row a kernel, for a table: kernel, device_* and host_* sizes, escapes."""
    found = []
    for kernel in kernels:
        source = of_kernel(kernel)
        row: dict[str, Any] = {"kernel": kernel}
        for part in ("device", "host"):
            row |= {f"{part}_{name}": value for name, value in asdict(getattr(source, part)).items()}
        found.append(row | {"escapes": list(source.escapes)})
    return found


def pairs(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rung by rung: Helion's device code over Triton's, or why the two may not be compared.

    results: the cells of a conformance run (compare.studies.capability). `auto` has no device code of its own.
    """
    found = []
    for rung in registry.RUNGS:
        if rung == "auto":
            continue
        triton, helion = of_kernel(f"triton/{rung}"), of_kernel(f"helion/{rung}")
        unequal = capability.differences(results, triton.kernel, helion.kernel)
        row: dict[str, Any] = {"rung": rung, "unequal": unequal}
        for name in ("tokens", "lines", "cyclomatic"):
            ours, theirs = getattr(triton.device, name), getattr(helion.device, name)
            row |= {f"triton_{name}": ours, f"helion_{name}": theirs}
            row[f"ratio_{name}"] = None if unequal else round(theirs / ours, 3)
        found.append(row)
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernels", default="triton/*,helion/*", help="comma-separated ids or globs (default all)")


@refusing(registry.UnknownKernel)
def main(arguments: argparse.Namespace) -> int:
    chosen = [k for k in registry.select(arguments.kernels) if k in (*registry.OWN, *registry.ABLATIONS)]
    for row in rows(chosen):
        sizes = " ".join(f"{k}={v}" for k, v in row.items() if k not in ("kernel", "escapes"))
        print(f"{row['kernel']:26} {sizes} escapes: {', '.join(row['escapes']) or 'none'}")
    return OK if chosen else NOTHING
