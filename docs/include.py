"""Fill the blocks of the project's documents from its sources and from committed runs, so that they cannot go stale.

`python docs/include.py` writes what lies between `<!-- include: ... -->` and `<!-- end -->`, in one of four forms:
    path.py#function                    a function or class, whole
    path.py#function "first" .. "last"  its lines from the one that holds "first" to the next one that holds "last"
    path.py                             a whole program, without its docstring
    path.md#Heading                     a section of a document, without its heading; path.svg: the figure
A document or figure of a run that nobody committed yet leaves one line that says so.

A link whose text is the dotted name of something in the sources, as [`common.gpus.resolve`](...), leads to the line
that defines it.
"""

import argparse
import ast
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"<!-- include: (?P<what>[^\n]+?) -->\n.*?<!-- end -->", re.DOTALL)
ASKED = re.compile(r'(?P<path>[^#\s]+)(?:#(?P<name>.+?))?(?: "(?P<first>[^"]+)" \.\. "(?P<last>[^"]+)")?')
LINK = re.compile(r"\[`(?P<name>(?:common|compare|dsl_triton|dsl_helion)(?:\.\w+)+)`\]\([^)\s]*\)")


def documents() -> list[Path]:
    front = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
    return [*(ROOT / name for name in front if (ROOT / name).exists()), *sorted((ROOT / "docs").glob("*.md"))]


def _defines(node: ast.AST) -> str | None:
    """What a definition or an assignment to one name names."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) and len(node.targets) == 1 else None


def source(path: Path, name: str, first: str | None, last: str | None) -> str:
    """The lines of a function, a class or a table, as a code block. Raises KeyError for what is not there."""
    text = path.read_text(encoding="utf-8")
    found = [node for node in ast.walk(ast.parse(text)) if _defines(node) == name]
    if len(found) != 1:
        raise KeyError(f"{path}: found {len(found)} of {name}, allowed 1")
    lines = text.splitlines()[found[0].lineno - 1 : found[0].end_lineno]
    if first is not None:
        begin = next((i for i, line in enumerate(lines) if first in line), None)
        end = None if begin is None else next((i for i in range(begin, len(lines)) if last in lines[i]), None)
        if end is None:
            raise KeyError(f"{path}: {name} holds no lines from {first!r} to {last!r}")
        lines = lines[begin : end + 1]
    shown = textwrap.dedent("\n".join(lines))
    return f"```{'python' if _parses(shown) else 'text'}\n{shown}\n```"


def _parses(code: str) -> bool:
    """Whether it is Python, and not the words of a docstring."""
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def program(path: Path) -> str:
    """A whole file behind its docstring, as a code block."""
    text = path.read_text(encoding="utf-8")
    begin = ast.parse(text).body[0].end_lineno if ast.get_docstring(ast.parse(text)) else 0
    return "```python\n" + "\n".join(text.splitlines()[begin:]).strip() + "\n```"


def section(path: Path, heading: str, home: Path) -> str:
    """What stands under a heading, down to the next one of its level or above; links lead from `home`."""
    lines, fenced, taken, level = path.read_text(encoding="utf-8").splitlines(), False, [], 0
    for line in lines:
        fenced ^= line.startswith("```")
        mark = None if fenced else re.match(r"(#+) (.*)", line)
        if level and mark and len(mark[1]) <= level:
            break
        if level:
            taken.append(line)
        elif mark and mark[2] == heading:
            level = len(mark[1])
    if not level:
        raise KeyError(f"{path}: found no heading {heading!r}")
    return re.sub(r"\]\((?!\w+:|#)", f"]({os.path.relpath(path.parent, home)}/", "\n".join(taken).strip())


def definition(name: str) -> tuple[Path, int]:
    """(the file, the line) that defines `package.module.object[.member]`, or that is a module. Raises KeyError."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        module = ROOT.joinpath(*parts[:cut])
        path = module.with_suffix(".py") if module.with_suffix(".py").exists() else module / "__init__.py"
        if path.exists():
            node, line = ast.parse(path.read_text(encoding="utf-8")), 1
            for part in parts[cut:]:
                node = next((n for n in ast.iter_child_nodes(node) if part in _names(n)), None)
                if node is None:
                    raise KeyError(f"{path.relative_to(ROOT)}: found no {part} of {name}")
                if isinstance(node, ast.ImportFrom):  # a room's face
                    return definition(f"{node.module}.{'.'.join(parts[cut:])}")
                line = node.lineno
            return path, line
    raise KeyError(f"found no module of {name}")


def _names(node: ast.AST) -> set[str]:
    """What a statement defines or imports."""
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    flat = [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return {getattr(node, "name", None) or "", *(target.id for target in flat if isinstance(target, ast.Name))}


def linked(name: str, home: Path) -> str:
    path, line = definition(name)
    return f"[`{name}`]({os.path.relpath(path, home)}{f'#L{line}' if line > 1 else ''})"


def block(what: str, home: Path) -> str:
    asked = ASKED.fullmatch(what)
    path = ROOT / asked["path"]
    if not path.exists() and path.is_relative_to(ROOT / "docs" / "results"):
        return f"*Not measured yet: no run is committed as {asked['path']}.*"
    if path.suffix == ".svg":
        return f"![{asked['name']}]({os.path.relpath(path, home)})"
    if path.suffix == ".md":
        return section(path, asked["name"], home)
    return source(path, asked["name"], asked["first"], asked["last"]) if asked["name"] else program(path)


def render(text: str, home: Path) -> str:
    """The document with every block filled and every link to a definition leading there. Raises KeyError and
    FileNotFoundError for what a block or a link cannot find."""
    text = BLOCK.sub(lambda m: f"<!-- include: {m['what']} -->\n{block(m['what'], home)}\n<!-- end -->", text)
    return LINK.sub(lambda m: linked(m["name"], home), text)


def main(argv: Sequence[str] | None = None) -> int:
    """0; writes the documents that have a stale block and names them."""
    words = {"formatter_class": argparse.RawDescriptionHelpFormatter, "description": __doc__}
    argparse.ArgumentParser(prog="python docs/include.py", **words).parse_args(argv)
    for path in documents():
        text = path.read_text(encoding="utf-8")
        if (new := render(text, path.parent)) != text:
            path.write_text(new, encoding="utf-8")
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
