"""The spec's name changes with what is computed or correct, and with nothing else."""

import ast
from pathlib import Path

import pytest

import common
from compare.record import folder as run_folder
from compare.record.spec_identity import FILES, hash_of, spec_hash

COMMON = Path(common.__file__).parent
SOURCES = {name: (COMMON / name).read_text() for name in FILES}
NOW = hash_of(SOURCES.values())
A = '"""One."""\nfrom __future__ import annotations\nimport math\nfrom dataclasses import dataclass\nX = 1\n'
B = "from dataclasses import field\nfrom common.a import X\n\ndef f(x):\n    return math.inf - X\n"


def edited(old, new):
    """The hash where `new` stands for the first `old` of each file that has one."""
    assert any(old in text for text in SOURCES.values())
    return hash_of(text.replace(old, new, 1) for text in SOURCES.values())


@pytest.mark.parametrize("name", FILES)
def test_an_edit_in_any_file_is_another_spec(name):
    tree = ast.parse(SOURCES[name])
    last = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)][-1]
    last.body = [ast.Pass()]
    assert hash_of((SOURCES | {name: ast.unparse(tree)}).values()) != NOW


def test_another_set_of_keys_that_a_row_sees_is_another_spec():
    assert edited("keys < self.seq_len", "keys <= self.seq_len") != NOW


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\nfrom common.", "\nfrom common.elsewhere."),
        ("import FP8\n", "import E4M3, FP8\n"),
        ('"""', '"""More words. '),
        ('    """Refuse a', '    """Reject a'),
        ("\ndef ", "\n# a comment\ndef "),
        ('__all__ = ["AttentionShape", ', "__all__ = ["),
    ],
    ids=["folder", "import", "docstring", "of-a-function", "comment", "exports"],
)
def test_what_changes_no_answer_is_the_same_spec(old, new):
    assert edited(old, new) == NOW


def test_files_may_be_joined_and_ordered_anew():
    joined = A.replace("import dataclass\n", "import dataclass, field\n") + B.split("\n\n")[1]
    assert hash_of([A, B]) == hash_of([B, A]) == hash_of([joined])
    assert hash_of(reversed(SOURCES.values())) == NOW


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("math.inf - X", "math.inf + X"),
        ("X = 1", "X = 1.0"),
        ("import math", "import cmath as math"),
        ("f(x)", "f(x=0)"),
    ],
)
def test_a_statement_that_differs_is_told(old, new):
    assert hash_of([A.replace(old, new), B.replace(old, new)]) != hash_of([A, B])


def test_an_import_of_ours_inside_a_function_does_not_count():
    assert hash_of(["def f():\n    from common.a import b\n    return b\n"]) == hash_of(["def f():\n    return b\n"])


def test_whatever_the_files_import_of_common_is_among_them():
    """But the GPUs by name, which say on what hardware an fp8 type works, the room's face, and which compilers are
    refused, which is no answer."""
    imported = set()
    for node in (node for text in SOURCES.values() for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "common":
            names = [alias.name for alias in node.names] if node.module == "common" else [""]
            imported |= {f"{node.module}.{name}".strip(".").split(".", 1)[1] for name in names}
    assert imported - {name.removesuffix(".py").replace("/", ".") for name in FILES} == {
        "gpus",
        "spec",
        "spec.toolchain",
    }


def test_a_run_names_the_spec_of_todays_statements():
    assert spec_hash() == NOW == run_folder.manifest([], "", {})["spec"]
