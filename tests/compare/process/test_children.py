"""The children of compare are named in one table."""

import ast
import importlib.util
from pathlib import Path

from compare.process import children

ROOT = Path(__file__).parents[3]
NAMED = set(children.CHILDREN)


def texts(path):
    return {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}


def test_no_other_file_names_a_child():
    files = [path for folder in ("common", "compare") for path in (ROOT / folder).rglob("*.py")]
    table = Path(children.__file__)
    assert {path: texts(path) & NAMED for path in files if texts(path) & NAMED} == {table: NAMED}


def test_each_is_a_module_that_can_be_run():
    for child in NAMED:
        source = Path(importlib.util.find_spec(child).origin).read_text()
        assert source.endswith('if __name__ == "__main__":\n    main()\n'), child
        assert children.command(child)[1:] == ["-m", child]
