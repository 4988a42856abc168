"""Who may import whom, how long things may get, and what project files may not mention."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("common", "dsl_triton", "dsl_helion", "compare")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MAX_FILE, MAX_HOST, MAX_KERNEL, MAX_PARAMETERS = 300, 60, 120, 20

CONTRACT = {
    "common.spec.cache",
    "common.spec",
    "common.spec.states",
    "common.spec.metadata",
    "common.gpus",
    "common.spec.kernel",
}
PUBLIC_CALL = {
    "common.serving.call",
    "common.serving.choice",
    "common.serving.facade",
    "common.serving.grid",
    "common.serving.handle",
    "common.serving.library",
    "common.serving.plan",
}
LIBRARIES = {"torch", "numpy", "pandas", "matplotlib", "jinja2", "rich", "elftools", "msgpack", "sklearn"}
CROSSCOMPILE = {
    "compare.static.crosscompile",
    "compare.static.jit",
    "compare.static.nvidia_code",
    "compare.static.compile",
    "compare.static.helion_target",
}
COMPILERS = CROSSCOMPILE | {"compare.static.codeobject", "compare.tune.tune", "compare.competitors.baselines"}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def identifier(path: Path) -> str:
    return str(path.relative_to(ROOT))


def within(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


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


def allowed(importer: str, module: str, inside: bool) -> bool:
    """docs: architecture, `Who may import whom`."""
    if module.startswith("."):  # only where a package is run by its path, under another name
        return within(importer, {"common.interpreter"}) and not module.startswith("..")
    top, owner = module.split(".")[0], importer.split(".")[0]
    if top in sys.stdlib_module_names or top == owner:
        return True
    if owner == "common":
        extra = {"pytest", "hypothesis"} if importer == "common.conformance" else set()
        if within(importer, {"common.interpreter"}) and inside:
            extra = {"triton", "helion"}
        return top in {"torch", "numpy"} | extra
    if owner in ("dsl_triton", "dsl_helion"):
        return top in {"torch", owner.removeprefix("dsl_")} or within(module, CONTRACT | PUBLIC_CALL)
    if top in ("dsl_triton", "dsl_helion"):
        return importer == "compare.competitors.registry"
    if top in LIBRARIES | {"common"}:
        return True
    if importer == "compare.bench.clocks" and top == "pynvml":
        return inside  # optional: nvidia-smi answers without it
    if within(importer, {"compare.competitors.baselines"}):
        return inside  # the vendor's package, whatever it is called
    return inside and top in {"triton", "helion"} and within(importer, COMPILERS)


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
    """Parameters of a kernel that are neither strides nor compile-time constants."""
    arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return [
        a.arg
        for a in arguments
        if "stride" not in a.arg and not (a.annotation and "constexpr" in ast.unparse(a.annotation))
    ]


@pytest.mark.parametrize("path", SOURCES, ids=identifier)
def test_imports_follow_the_layers(path):
    wrong = [
        f"line {line}: {module}" + (" inside a function" if inside else "")
        for module, inside, line in edges(ast.parse(path.read_text()))
        if not allowed(module_of(path), module, inside)
    ]
    assert not wrong, f"{module_of(path)} may not import " + "; ".join(wrong)


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("common.spec", "import triton"),
        ("common.interpreter", "import triton"),
        ("common.interpreter.of_helion", "import helion"),
        ("common.interpreter", "from ..cases import build"),
        ("common.kit.isolate", "from .isolated import main"),
        ("common.oracle.reference", "from hypothesis import given"),
        ("dsl_triton.naive", "from common.oracle.reference import reference"),
        ("dsl_triton.naive", "from common import reference"),
        ("dsl_triton.naive", "import dsl_helion.naive"),
        ("dsl_helion.naive", "import triton"),
        ("dsl_helion.naive", "def f():\n import triton"),
        ("compare.bench.gate", "from dsl_triton import naive"),
        ("compare.bench.gate", "import importlib\nimportlib.import_module('dsl_triton.naive')"),
        ("compare.bench.gate", "def f():\n import triton"),
        ("compare.static.crosscompile", "import triton"),
        ("compare.competitors.baselines.sdpa", "import flash_attn"),
        ("compare.report.report", "import seaborn"),
    ],
)
def test_a_forbidden_import_is_seen(importer, statement):
    assert not all(allowed(importer, module, inside) for module, inside, _ in edges(ast.parse(statement)))


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=identifier)
def test_files_stay_short(path):
    assert len(path.read_text().splitlines()) <= MAX_FILE


@pytest.mark.parametrize("path", SOURCES, ids=identifier)
def test_functions_stay_short(path):
    tree = ast.parse(path.read_text())
    own = kernels(tree)
    limits = [(f, MAX_KERNEL if f in own else MAX_HOST) for f in functions(tree)]
    assert not [f"{f.name}: {length(f)} lines, allowed {limit}" for f, limit in limits if length(f) > limit]


@pytest.mark.parametrize("path", SOURCES, ids=identifier)
def test_kernels_take_few_parameters(path):
    counted = {f.name: len(parameters(f)) for f in kernels(ast.parse(path.read_text()))}
    assert not {name: count for name, count in counted.items() if count > MAX_PARAMETERS}


@pytest.mark.parametrize(
    "source",
    [
        "@triton.jit\ndef f(a, stride_b, C: tl.constexpr, d): pass",
        "@helion.kernel(static_shapes=False)\ndef f(a, stride_b, C: hl.constexpr, d): pass",
        "def f(a, stride_b, C: tl.constexpr, d): pass\ng = binding.kernel(f)",
    ],
    ids=["triton", "helion", "wrapped"],
)
def test_a_kernel_is_recognised(source):
    (kernel,) = kernels(ast.parse(source))
    assert parameters(kernel) == ["a", "d"]


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


@pytest.mark.parametrize("text", ["/wo" + "rk/main", "/ho" + "me/somebody/x", "https://py" + "pi.org/simple"])
def test_a_machine_path_is_seen(text):
    assert FOREIGN.search(text)
