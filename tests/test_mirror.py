"""Two panels, one picture: a Triton file and the Helion file of its path define the same things in the same order.

Compared on the syntax tree, private helpers too: functions with parameters and their defaults, classes with fields and
their defaults, public constants with values. What differs stands in mirror.toml with its reason; so does a file that
only one folder has. A reason for what no longer differs fails.

What a DSL spells its own way is no difference: its own name, `tl.constexpr(x)` for x, and in functions that run on the
GPU capitals for what is known when they are compiled and `_ptr` for a tensor's address. Such functions may also have
the parameters that `[parameters]` of mirror.toml gives their DSL, because a tensor knows its strides in Helion alone.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DSLS = ("triton", "helion")
TABLE = tomllib.loads(Path(__file__).with_name("mirror.toml").read_text())
WORDS = {dsl: list(TABLE["parameters"][dsl]) for dsl in DSLS}


def listed(dsl: str) -> set[str]:
    folder = ROOT / f"dsl_{dsl}"
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}


def source(dsl: str, file: str) -> str:
    return (ROOT / f"dsl_{dsl}" / file).read_text()


FILES = sorted(listed("triton") & listed("helion"))


def spelled(node: ast.AST | None, dsl: str) -> str:
    """The expression in one line, `tl.constexpr(x)` as x and the DSL's own name as `dsl`."""
    if node is None:
        return ""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.constexpr":
        node = node.args[0]
    return re.sub(rf"\bdsl_{dsl}\b|'{dsl}'", "dsl", ast.unparse(node))


def parameters(function: ast.FunctionDef, dsl: str) -> Iterator[tuple[str, str]]:
    """(name, default) in order; a bare * where keywords begin."""
    a = function.args
    plain = a.posonlyargs + a.args
    missing = [None] * (len(plain) - len(a.defaults))
    yield from ((p.arg, spelled(default, dsl)) for p, default in zip(plain, missing + a.defaults, strict=True))
    if a.vararg or a.kwonlyargs:
        yield f"*{a.vararg.arg if a.vararg else ''}", ""
    yield from ((p.arg, spelled(default, dsl)) for p, default in zip(a.kwonlyargs, a.kw_defaults, strict=True))
    if a.kwarg:
        yield f"**{a.kwarg.arg}", ""


def assigned(node: ast.Assign | ast.AnnAssign, dsl: str) -> Iterator[tuple[str, str]]:
    """(name, type and value) of every name of an assignment, of `A, B = 1, 2` too."""
    kind = spelled(node.annotation, dsl) + " = " if isinstance(node, ast.AnnAssign) else ""
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        split = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
        for name, value in zip(names, node.value.elts if split else [node.value] * len(names), strict=True):
            yield ast.unparse(name), kind + spelled(value, dsl)


def definitions(text: str, dsl: str) -> tuple[dict[str, str], set[str]]:
    """What is said of each name in file order, members as `Class.name` and `function(parameter)`; and the functions
    that carry a mark of Triton's: they run on the GPU. Private constants are left out, they are how and not what.
    """
    found: dict[str, str] = {}
    on_gpu: set[str] = set()

    def read(body: list[ast.stmt], scope: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                found[scope + node.name] = ""
                for name, default in parameters(node, dsl):
                    found[f"{scope}{node.name}({name.lower().removesuffix('_ptr')})"] = default
                if any(ast.unparse(mark).startswith("triton.") for mark in node.decorator_list):
                    on_gpu.add(scope + node.name)
            elif isinstance(node, ast.ClassDef):
                header = [spelled(part, dsl) for part in (*node.decorator_list, *node.bases, *node.keywords)]
                found[scope + node.name] = ", ".join(header)
                read(node.body, f"{scope}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for name, said in assigned(node, dsl):
                    if scope or not name.startswith("_") or name == "__all__":
                        found[scope + name] = said
            else:  # what stands under a condition would be seen by nobody
                assert not isinstance(node, ast.If | ast.Try | ast.With | ast.For), ast.unparse(node)

    read(ast.parse(text).body, "")
    return found, on_gpu


def scope_of(name: str) -> str:
    """The function of a parameter, the class of a member, "" of what stands in the file itself."""
    return name.partition("(")[0] if "(" in name else name.rpartition(".")[0]


def differences(triton: str, helion: str, words: dict[str, list[str]] = WORDS) -> set[tuple[str, str]]:
    """(kind, name): what "triton" or "helion" alone has, what "differs", and the function, class or "file" whose shared
    members stand in another "order". Of functions on the GPU without the parameters that match `words`.
    """
    (ours, on_gpu), (theirs, _) = definitions(triton, "triton"), definitions(helion, "helion")
    both = [name for name in ours if name in theirs]
    found = {("differs", name) for name in both if ours[name] != theirs[name]}
    for dsl, here, there in (("triton", ours, theirs), ("helion", theirs, ours)):
        for name in here.keys() - there.keys():
            scope, parameter = scope_of(name), name.partition("(")[2].removesuffix(")")
            by_word = scope in on_gpu and any(fnmatchcase(parameter, word) for word in words[dsl])
            if not by_word and (scope == "" or scope in both):  # what is missing has no members either
                found.add((dsl, name))
    for scope in {scope_of(name) for name in both}:
        orders = [[name for name in side if name in both and scope_of(name) == scope] for side in (ours, theirs)]
        if orders[0] != orders[1]:
            found.add(("order", scope or "file"))
    return found


def excused(file: str) -> set[tuple[str, str]]:
    table = TABLE["files"].get(file, {})
    return {(kind, name) for kind, reasons in table.items() for names in reasons for name in names.split(", ")}


def complaints(found: set[tuple[str, str]], reasons: set[tuple[str, str]]) -> list[str]:
    unexplained = [f"{kind}: {name} has no reason in mirror.toml" for kind, name in sorted(found - reasons)]
    return unexplained + [f"{kind}: {name} no longer differs" for kind, name in sorted(reasons - found)]


@pytest.mark.parametrize("file", FILES)
def test_a_file_is_the_mirror_of_its_twin(file: str) -> None:
    found = differences(source("triton", file), source("helion", file))
    assert complaints(found, excused(file)) == []


@pytest.mark.parametrize("dsl", DSLS)
def test_files_of_one_folder_alone_have_a_reason(dsl: str) -> None:
    other = DSLS[1 - DSLS.index(dsl)]
    files, reasons = listed(dsl) - listed(other), TABLE["alone"][dsl].keys()
    folders = {file: file.rpartition("/")[0] + "/" for file in files}
    assert {folders[file] if folders[file] in reasons else file for file in files} == reasons


def test_reasons_are_of_files_that_both_folders_have() -> None:
    assert TABLE["files"].keys() <= set(FILES)


@pytest.mark.parametrize("dsl, word", [(dsl, word) for dsl in DSLS for word in WORDS[dsl]])
def test_every_parameter_of_the_table_is_needed(dsl: str, word: str) -> None:
    without = WORDS | {dsl: [other for other in WORDS[dsl] if other != word]}
    pairs = [(source("triton", file), source("helion", file)) for file in FILES]
    assert any(differences(*pair, without) != differences(*pair) for pair in pairs)


def test_every_entry_has_a_reason() -> None:
    def reasons(table: dict | str) -> Iterator[str]:
        if isinstance(table, str):
            yield table
        else:
            for entry in table.values():
                yield from reasons(entry)

    assert all(" " in reason.strip() for reason in reasons(TABLE))


def opened(module: str) -> set[str]:
    """The modules that a reader of a kernel opens: those that it calls functions of, in its folder theirs too."""
    found, ahead = {module}, [module]
    while ahead:
        path = ROOT / f"{ahead.pop().replace('.', '/')}.py"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and any(name.name.islower() for name in node.names):
                own = node.module.startswith("dsl_")
                if node.module not in found and (own or (node.module.startswith("common.") and path.stem == "q_block")):
                    found.add(node.module)
                    ahead += [node.module] if own else []
    return found


def test_a_reader_of_q_block_opens_six_files() -> None:
    helpers = {f"dsl_triton.{name}" for name in ("q_block", "primitives", "masks", "features", "binding")}
    assert opened("dsl_triton.q_block") == helpers | {"common.spec.kernel"}


def test_no_triton_in_the_helion_folder() -> None:
    for path in (ROOT / "dsl_helion").rglob("*.py"):
        text = path.read_text()
        assert "inline_triton" not in text and "triton_kernel" not in text and "import triton" not in text, path


PANEL = """
from dataclasses import dataclass

SUPPORTS = frozenset({"causal"})
A, B = 1, 2

@dataclass(frozen=True)
class Config:
    tile_size: int = 16
    num_warps: int = 4

DEFAULT = Config()

def helper(x, y=1): ...

def launch(batch, out, *, lse=None): ...
"""


@pytest.mark.parametrize(
    "old, new, found",
    [
        ("helper(x, y=1)", "helper(x, z, y=1)", ("helion", "helper(z)")),  # a parameter more
        ("batch, out,", "out, batch,", ("order", "launch")),
        ("helper(x, y=1)", "helper(x, y=2)", ("differs", "helper(y)")),
        ("out, *, lse", "out, lse", ("triton", "launch(*)")),  # no keyword any more
        ("lse=None", "lse", ("differs", "launch(lse)")),
        ("def helper(x, y=1): ...", "", ("triton", "helper")),
        ("def helper", "def other(): ...\ndef helper", ("helion", "other")),
        ("tile_size: int = 16", "tile_size: int = 32", ("differs", "Config.tile_size")),
        ("tile_size: int = 16", "tile_size: float = 16", ("differs", "Config.tile_size")),
        ("    num_warps: int = 4", "", ("triton", "Config.num_warps")),
        ("    num_warps: int = 4", "    num_warps: int = 4\n    run: int = 0", ("helion", "Config.run")),
        ("class Config:", "class Config(dict):", ("differs", "Config")),
        ('{"causal"}', '{"causal", "lse"}', ("differs", "SUPPORTS")),
        ('SUPPORTS = frozenset({"causal"})', "", ("triton", "SUPPORTS")),
        ("A, B = 1, 2", "A, B = 1, 3", ("differs", "B")),
        ("DEFAULT = Config()", "DEFAULT = Config(32)", ("differs", "DEFAULT")),
        ("    tile_size: int = 16\n    num_warps: int = 4", "    num_warps: int = 4\n    tile_size: int = 16",
         ("order", "Config")),
        ("SUPPORTS = frozenset({\"causal\"})\nA, B = 1, 2", "A, B = 1, 2\nSUPPORTS = frozenset({\"causal\"})",
         ("order", "file")),
    ],
)  # fmt: skip
def test_a_planted_difference_is_found(old: str, new: str, found: tuple[str, str]) -> None:
    assert differences(PANEL, PANEL) == set()
    assert PANEL.count(old) == 1
    assert differences(PANEL, PANEL.replace(old, new)) == {found}


ON_GPU = "@triton.jit\ndef load(x_ptr, strides, row, there=True, SIZE: tl.constexpr = 1): ..."
ON_GPU_WORDS = {"triton": ["*strides"], "helion": ["gather"]}


@pytest.mark.parametrize(
    "helion, found",
    [
        ("def load(x, row, there=True, size=1): ...", set()),
        ("def load(x, row, gather, there=True, size=1): ...", set()),
        ("def load(x, row, other, there=True, size=1): ...", {("helion", "load(other)")}),
        ("def load(x, there=True, size=1): ...", {("triton", "load(row)")}),
        ("def load(row, x, there=True, size=1): ...", {("order", "load")}),
        ("def load(x, row, there=None, size=1): ...", {("differs", "load(there)")}),
    ],
)
def test_functions_on_the_gpu_may_differ_by_words_of_their_dsl(helion: str, found: set[tuple[str, str]]) -> None:
    assert differences(ON_GPU, helion, ON_GPU_WORDS) == found
    on_the_host = ON_GPU.removeprefix("@triton.jit\n")
    assert differences(on_the_host, helion, ON_GPU_WORDS) >= found | {("triton", "load(strides)")}


def test_own_names_and_constants_of_a_dsl_are_no_difference() -> None:
    triton = "SIZE = tl.constexpr(4)\nFAMILY = Family('triton', 'dsl_triton.q_block')"
    assert differences(triton, "SIZE = 4\nFAMILY = Family('helion', 'dsl_helion.q_block')") == set()
    assert differences(triton, "SIZE = 5\nFAMILY = Family('helion', 'dsl_helion.split')") == {
        ("differs", "SIZE"), ("differs", "FAMILY"),
    }  # fmt: skip


def test_a_reason_for_what_no_longer_differs_is_a_complaint() -> None:
    assert complaints({("differs", "a")}, {("differs", "a")}) == []
    assert complaints({("differs", "a")}, set()) == ["differs: a has no reason in mirror.toml"]
    assert complaints(set(), {("differs", "a")}) == ["differs: a no longer differs"]
    assert len(complaints({("triton", "a")}, {("helion", "a")})) == 2
