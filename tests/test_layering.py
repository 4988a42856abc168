"""Who may import whom (tests/rooms.toml), how long things may get, and what project files may not mention."""

import ast
import functools
import lzma
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("common", "dsl_triton", "dsl_helion", "compare")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

TABLE = tomllib.loads((ROOT / "tests" / "rooms.toml").read_text())
ROOMS: dict[str, dict] = TABLE["rooms"]
LONG: dict[str, str] = TABLE["long"]
SAME: dict[str, str] = TABLE["same"]
ASKED_AT, MAX_HOST, MAX_KERNEL, MAX_PARAMETERS = 500, 60, 120, 25
# Rooms whose __init__ is more than a docstring: two faces, and tables.
FACES = {"common.spec", "compare.workloads"}
TABLES = {"common.mutants", "compare.studies", "compare.pages"}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def identifier(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(node: ast.AST) -> list[str]:
    """Modules that one statement imports; `from common import spec` counts as common.spec, a relative one as .spec."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level:
        return [f"{'.' * node.level}{node.module or alias.name}" for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        is_package = (ROOT / node.module.replace(".", "/")).is_dir()
        return [f"{node.module}.{alias.name}" if is_package else node.module for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return [node.args[0].value] if name in ("import_module", "__import__") else []
    return []


def edges(tree: ast.AST, inside: bool = False) -> list[tuple[str, bool, int]]:
    """(module, whether the import stands inside a function, line) of every import."""
    found = []
    for node in ast.iter_child_nodes(tree):
        found += [(module, inside, node.lineno) for module in imported(node)]
        found += edges(node, inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))
    return found


def room_of(module: str) -> str:
    """The room of the table that a module stands in; empty for the packages themselves and what is no module here."""
    return next((room for room in ROOMS if module == room or module.startswith(f"{room}.")), "")


def allowed(importer: str, module: str, inside: bool) -> bool:
    """tests/rooms.toml. inside: the import stands in a function."""
    room = room_of(importer)
    row, top = ROOMS.get(room, {}), module.split(".")[0]
    if module.startswith("."):  # only where a package is run by its path, under another name
        return room == "common.interpreter" and not module.startswith("..")
    if top in sys.stdlib_module_names or top in TABLE["everywhere"] or top in row.get("libraries", ()):
        return True
    if importer.startswith("compare.competitors.baselines."):
        return inside or room_of(module) in {room, *row["imports"]}  # the vendor's package, whatever it is called
    if top in row.get("inside", ()):
        return inside
    if top not in PACKAGES:
        return False
    if module == "common":  # its name and version alone
        return room != ""
    beside = TABLE["in_compare"] if importer.startswith("compare") else ()
    return room_of(module) in {room, *row.get("imports", ()), *beside} - {""} or module in row.get("dynamic", ())


def decorators(function: ast.FunctionDef) -> set[str]:
    return {ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in function.decorator_list}


def wrapped(tree: ast.Module) -> set[str]:
    """Names of functions that `jit(f)` or `kernel(f)` makes a kernel of."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    makers = [call for call in calls if ast.unparse(call.func).split(".")[-1] in ("jit", "kernel")]
    return {argument.id for call in makers for argument in call.args if isinstance(argument, ast.Name)}


def kernels(tree: ast.Module) -> list[ast.FunctionDef]:
    marks = {"triton.jit", "helion.kernel", "gluon.jit"}
    names = wrapped(tree)
    return [f for f in functions(tree) if decorators(f) & marks or f.name in names]


def functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def length(function: ast.FunctionDef) -> int:
    return function.end_lineno - function.lineno + 1


def parameters(function: ast.FunctionDef) -> list[str]:
    return [a.arg for a in function.args.posonlyargs + function.args.args + function.args.kwonlyargs]


def test_imports_follow_the_table():
    wrong = [
        f"{identifier(path)}:{line} may not import {module}" + (" inside a function" if inside else "")
        for path in SOURCES
        for module, inside, line in edges(parsed(path))
        if not allowed(module_of(path), module, inside)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("common.spec", "import triton"),
        ("common.interpreter", "import triton"),
        ("common.interpreter.of_helion", "import helion"),
        ("common.interpreter", "from ..cases import build"),
        ("common.kit.isolate", "from .isolated import main"),
        ("common.oracle.reference", "from hypothesis import given"),
        ("common.oracle.reference", "from common.cases.batch import make_batch"),
        ("common.nowhere", "import common.spec"),
        ("dsl_triton.naive", "from common.oracle.reference import reference"),
        ("dsl_triton.naive", "from common.oracle import reference"),
        ("dsl_triton.naive", "import dsl_helion.naive"),
        ("dsl_helion.naive", "import triton"),
        ("dsl_helion.naive", "def f():\n import triton"),
        ("compare", "from compare.run import command"),
        ("compare.analysis.summary", "from compare.report import style"),
        ("compare.analysis.summary", "def f():\n from compare.report import style"),
        ("compare.bench.gate", "from dsl_triton import naive"),
        ("compare.bench.gate", "import importlib\nimportlib.import_module('dsl_triton.naive')"),
        ("compare.bench.gate", "def f():\n import triton"),
        ("compare.static.crosscompile", "import triton"),
        ("compare.competitors.baselines.sdpa", "import flash_attn"),
        ("compare.report.report", "import seaborn"),
        ("compare.__main__", "from compare.run import command"),
        ("compare.__main__", "def f():\n from compare.record import folder"),
        ("compare.run.command", "from compare.__main__ import main"),
    ],
)
def test_a_forbidden_import_is_seen(importer, statement):
    assert not all(allowed(importer, module, inside) for module, inside, _ in edges(ast.parse(statement)))


def circle(below: dict[str, set[str]]) -> dict[str, set[str]]:
    """What of a graph is left when all that stands on nothing is taken away, again and again."""
    while free := [one for one, under in below.items() if not (under - {one}) & below.keys()]:
        below = {one: under for one, under in below.items() if one not in free}
    return below


def test_rooms_and_modules_make_no_circle():
    """Of all imports, those inside functions too; the one command imports verbs by their names."""
    assert not circle({room: set(row["imports"]) for room, row in ROOMS.items()})
    assert not circle({module_of(path): {name for name, _, _ in edges(parsed(path))} for path in SOURCES})


def started(tree: ast.AST) -> list[int]:
    """Lines on which a process is started that goes on beside what started it."""
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)]
    words = [(node.attr if isinstance(node, ast.Attribute) else node.id, node) for node in named]
    calls = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return [node.lineno for word, node in words if word == "Popen" and id(node) in calls]


def test_a_process_is_started_by_common_process_alone():
    assert [module_of(path) for path in SOURCES if started(parsed(path))] == ["common.process"]


def private(tree: ast.AST) -> list[str]:
    """Private names that a module imports from ours."""
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in froms if node.level or node.module.split(".")[0] in PACKAGES]
    return [alias.name for node in ours for alias in node.names if re.match("_(?!_)", alias.name)]


def test_no_private_name_is_imported():
    found = {f"{module_of(path)}.{name}" for path in SOURCES + TESTS for name in private(parsed(path))}
    assert found == TABLE["private"].keys()


def standing(package: str) -> set[str]:
    """The names of what stands in a package itself."""
    found = [path for path in (ROOT / package).iterdir() if path.suffix in ("", ".py") and path.name != "__pycache__"]
    return {path.stem for path in found} - {"__init__", "__main__"}


def test_what_stands_in_a_package_is_a_room_of_the_table():
    rooms = {room for room in ROOMS if not room.startswith("dsl_") and not room.endswith("__main__")}
    assert {f"{package}.{name}" for package in ("common", "compare") for name in standing(package)} == rooms


def second_nouns(names: dict[str, str], rooms: dict[str, dict]) -> list[str]:
    """Which name means what another one means. names: of what stands in a package, and the package.

    One idea has one noun: none is another's plural, stands in both packages (the table's `same` excused), or is among
    a room's `also`.
    """
    also = {word: room for room, row in rooms.items() for word in row.get("also", ())}
    found = [f"{name} is {also[name]}" for name in names if name in also]
    found += [f"{name} is {name}s" for name in names if f"{name}s" in names]
    return found


def test_one_idea_has_one_noun():
    assert standing("common") & standing("compare") == SAME.keys()
    assert not second_nouns({name: package for package in ("common", "compare") for name in standing(package)}, ROOMS)


def test_a_files_name_does_not_repeat_its_room():
    """`report/report_svg.py` is `report/svg.py`."""
    assert not [identifier(path) for path in SOURCES if path.stem.startswith(f"{path.parent.name}_")]


FOLDERS = sorted(path for package in ("common", "compare") for path in (ROOT / package).rglob("__init__.py"))


def test_a_room_says_its_idea_and_what_comes_in_and_out():
    for path in FOLDERS:
        tree, module = parsed(path), module_of(path)
        said = ast.get_docstring(tree) or ""
        assert said, module
        if module in ROOMS:
            assert re.search(r"^In: ", said, re.MULTILINE) and "Out: " in said, module
            assert len(tree.body) == 1 or module in FACES | TABLES | {"common.interpreter"}, module


def test_a_long_file_is_one_idea():
    """Above 500 lines a file is on the table's list, which says why."""
    long = {identifier(path) for path in SOURCES + TESTS if len(path.read_text().splitlines()) > ASKED_AT}
    assert long == LONG.keys()


def test_functions_stay_short():
    found = []
    for path in SOURCES:
        own = kernels(parsed(path))
        limits = [(f, MAX_KERNEL if f in own else MAX_HOST) for f in functions(parsed(path))]
        found += [f"{identifier(path)}: {f.name}: {length(f)} lines, allowed {n}" for f, n in limits if length(f) > n]
    assert not found


def test_kernels_take_few_parameters():
    counted = {f"{identifier(path)}: {f.name}": len(parameters(f)) for path in SOURCES for f in kernels(parsed(path))}
    assert not {name: count for name, count in counted.items() if count > MAX_PARAMETERS}


@pytest.mark.parametrize(
    "source", ["@triton.jit\n", "@helion.kernel(static_shapes=False)\n", "g = binding.kernel(f)\n"]
)
def test_a_kernel_is_recognised(source):
    of = "hl" if "helion" in source else "tl"
    text = f"def f(a, stride_b, C: {of}.constexpr, d): pass\n"
    (kernel,) = kernels(ast.parse(source + text if source.startswith("@") else text + source))
    assert parameters(kernel) == ["a", "stride_b", "C", "d"]


# Written in pieces, so that this file does not find itself.
FOREIGN = re.compile(
    "|".join(
        [r"/wo" + r"rk/", r"/ro" + r"ot/", r"/ho" + r"me/\w", r"/tm" + r"p/", r"file:" + "//"]
        + [
            host.replace("|", "")
            for host in (r"pypi\.|org", r"python|hosted", r"download\.|pytorch", r"hugging|face\.co")
        ]
    )
)
TEXT = {".py", ".md", ".toml", ".txt", ".json", ".jsonl", ".csv", ".svg", ".html", ".yml", ".yaml", ".in", ".sh", ""}


def project_files() -> list[Path]:
    folders = (*PACKAGES, "tests", "docs", ".ci")
    inside = [path for folder in folders for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    top = [path for path in ROOT.iterdir() if path.name not in (".git", ".gitignore")]
    return sorted(path for path in inside + top if path.is_file() and path.suffix in TEXT)


def test_no_machine_paths_and_no_registry_hosts():
    found = [
        f"{identifier(path)}:{number}: {match.group()}"
        for path in project_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if (match := FOREIGN.search(line))
    ]
    assert not found


@pytest.mark.slow
def test_no_machine_paths_in_committed_logs():
    logs = {identifier(path): lzma.decompress(path.read_bytes()).decode() for path in (ROOT / "docs").rglob("*.xz")}
    assert not {name: found.group() for name, text in logs.items() if (found := FOREIGN.search(text))}


def test_a_planted_process_private_import_second_noun_or_machine_path_is_seen():
    assert started(ast.parse("subprocess.Popen(a)\nPopen(b)\nx: subprocess.Popen\nsubprocess.run(c)")) == [1, 2]
    assert private(ast.parse("from compare.process.crew import Crew, _Worker")) == ["_Worker"]
    nouns = dict.fromkeys(("record", "records", "reporting", "figures"), "compare")
    assert second_nouns(nouns, ROOMS) == ["records is compare.record", "figures is compare.report", "record is records"]
    assert all(map(FOREIGN.search, ("/wo" + "rk/main", "/ho" + "me/somebody/x", "https://py" + "pi.org/simple")))
