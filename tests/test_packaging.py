"""What the wheel holds; an installed torch or triton is never replaced; a stranger's `common` is met, or refused."""

import ast
import configparser
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("common", "dsl_triton", "dsl_helion", "compare")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


@pytest.fixture(scope="module")
def environment():
    """The script .ci/environment.py as a module."""
    spec = importlib.util.spec_from_file_location("environment", ROOT / ".ci" / "environment.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(folder):
    """The project's wheel, by its name in the last line."""
    code = "import setuptools.build_meta as build; print(build.build_wheel('.'))"
    return run([sys.executable, "-c", code], cwd=folder)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The project's wheel, built offline from a copy with the setuptools that is here."""
    pytest.importorskip("setuptools", minversion="77")
    copy = tmp_path_factory.mktemp("project")
    for folder in filter(lambda name: (ROOT / name).is_dir(), (*PACKAGES, "diptych", "tests", "docs")):
        shutil.copytree(ROOT / folder, copy / folder, ignore=IGNORED)
    for name in ("pyproject.toml", "LICENSE", "MANIFEST.in", "diptych_check.py", "setup.py"):
        shutil.copy(ROOT / name, copy)
    (copy / "README.md").touch()
    done = build(copy)
    assert done.returncode == 0, done.stderr[-2000:]
    return copy / done.stdout.split()[-1]


def test_the_wheel_holds_every_module_and_nothing_else(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
    sources |= {path for path in (ROOT / "diptych").rglob("*") if path.is_file()}
    ours = {str(path.relative_to(ROOT)).removeprefix("diptych/") for path in sources if "__pycache__" not in path.parts}
    assert {f"diptych/{name}" for name in ours} | {"diptych_check.py"} == held


def test_what_an_earlier_build_left_is_not_in_a_wheel(wheel):
    folder = wheel.parent
    for name in ("common/gone.py", "diptych/compare/gone.py"):
        path = folder / "build" / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    done = build(folder)
    assert done.returncode == 0 and not [name for name in zipfile.ZipFile(wheel).namelist() if "gone" in name]


def test_entry_points_are_named_as_in_a_wheel(wheel):
    """setuptools writes them as they stand; in a checkout `diptych.x` is `x`."""
    held = set(zipfile.ZipFile(wheel).namelist())
    groups = [PROJECT["scripts"], *PROJECT["entry-points"].values()]
    modules = [entry.partition(":")[0].replace(".", "/") for group in groups for entry in group.values()]
    assert not {name for name in modules if not {f"{name}.py", f"{name}/__init__.py"} & held}


def imports(source):
    """The first part of each module that a source imports from the top."""
    nodes = [*ast.walk(ast.parse(source))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.split(".")[0] for name in names}


def test_the_wheel_names_nothing_by_the_names_of_a_checkout(wheel):
    """Neither an import nor a word that somebody may type."""
    held = zipfile.ZipFile(wheel)
    sources = {name: held.read(name).decode() for name in held.namelist() if name.endswith(".py")}
    assert not {name for name, source in sources.items() if imports(source) & set(PACKAGES)}
    said = re.compile(rf"(?<![\w./-])(?:{'|'.join(PACKAGES)})\.\w+")
    found = {match.group() for source in sources.values() for match in said.finditer(source)}
    assert not {name for name in found if (ROOT / name.replace(".", "/")).exists()}


INSTALLED = """
import common, compare
from diptych.common.spec import AttentionShape
from diptych.compare.competitors import registry
from diptych.compare.plan import fingerprint
from diptych.compare.process import children
from diptych.compare.record.spec_identity import spec_hash
assert common.theirs and compare.theirs
kernels = [kernel for kernel in registry.OWN if not kernel.endswith("split")]
print(spec_hash(), [(fingerprint.source(k), fingerprint.choice(k, "tree", "h200")) for k in kernels])
"""


@pytest.fixture(scope="module")
def beside(wheel, tmp_path_factory):
    """An environment that has the wheel, and a `common` and a `compare` of somebody else: its folder of commands.

    What this one has is there too, but for editable installs: a path in a .pth is no site folder, whose .pth count.
    """
    target = tmp_path_factory.mktemp("beside")
    assert run([sys.executable, "-m", "venv", "--without-pip", str(target)]).returncode == 0
    site = next(target.glob("lib/python*/site-packages"))
    (site / "parent.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    options = ["--quiet", "--no-index", "--no-deps", "--ignore-installed"]
    done = run([str(target / "bin" / "python"), "-m", "pip", "install", *options, str(wheel)])
    assert done.returncode == 0, done.stderr
    for name in ("common", "compare"):
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("theirs = True\n")
    return target / "bin"


def run_beside(command, cwd):
    """A command of that environment; this one's path of imports does not reach it."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRITON_INTERPRET")}
    return run(list(map(str, command)), cwd=cwd, env=environment)


@pytest.mark.slow
def test_an_installed_one_lives_beside_a_strangers_common(beside, tmp_path):
    done = run_beside([beside / "diptych", "--help"], tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("usage: diptych VERB"), done.stderr
    done = run_beside([beside / "diptych", "explain", "q1s2k", "--gpu", "h200"], tmp_path)
    assert done.returncode == 0 and "triton: " in done.stdout and "helion: " in done.stdout, done.stderr
    for module in ("diptych", "diptych.compare.run"):
        assert run_beside([beside / "python", "-m", module, "--help"], tmp_path).returncode == 0


@pytest.mark.slow
def test_hashes_of_an_installed_one_are_those_of_the_checkout(beside, tmp_path):
    """Rows of both can be compared, and each goes on with a run of the other."""
    installed = run_beside([beside / "python", "-c", INSTALLED], tmp_path)
    assert installed.returncode == 0, installed.stderr
    code = INSTALLED.replace("diptych.", "").replace("assert", "0 and")
    here = run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert here.stdout == installed.stdout, here.stderr


KERNEL = """
from diptych.common.spec import PagedBatch
from diptych.dsl_triton.naive import CONTRACT, DEFAULT, SUPPORTS, launch, workspace

def zeros(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale, causal, out):
    out.zero_()
"""


@pytest.mark.slow
def test_the_kit_of_an_installed_one_judges_a_kernel_in_a_common_of_its_own(beside, tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").write_text("")
    (tmp_path / "common" / "mine.py").write_text(KERNEL)
    for kernel, verdict in (("common.mine", 0), ("common.mine:zeros", 1)):
        done = run_beside([beside / "diptych-check", kernel, "--case", "query-0"], tmp_path)
        assert done.returncode == verdict, done.stdout + done.stderr


@pytest.mark.slow
def test_a_cell_of_each_dsl_is_right_in_an_installed_one(beside, tmp_path):
    """Its workers are processes of their own, and Helion looks a kernel's names up in its module."""
    kernels = "triton/auto,helion/auto,helion/ablations.idiomatic"
    command = [beside / "diptych", "run", "--workload", "q1s33", "--kernels", kernels, "--out", "run"]
    done = run_beside(command, tmp_path)
    assert done.returncode == 0 and "3 cells: 3 ok" in done.stdout, done.stdout + done.stderr


def blocks(page, language="python"):
    return [block.split("```")[0] for block in (ROOT / page).read_text().split(f"```{language}\n")[1:]]


@pytest.mark.slow
def test_the_programs_of_the_engines_page_run_from_a_wheel(beside, tmp_path):
    """A process each that nobody told of an interpreter; transformers is a stand-in that notes what is registered."""
    (tmp_path / "transformers.py").write_text(
        "class AttentionInterface:\n    register = print\nclass AttentionMaskInterface:\n    register = print\n"
    )
    call, adapter, loop = (
        next(block for block in blocks("docs/engines.md") if words in block)
        for words in ("import paged_attention", "transformers import register", "def schedule(")
    )
    for code in (call, adapter + "import os\nprint(os.environ.get('TRITON_INTERPRET'))", loop):
        done = run_beside([beside / "python", "-c", code], tmp_path)
        assert done.returncode == 0, done.stderr
    assert "<function forward" in run_beside([beside / "python", "-c", adapter], tmp_path).stdout


@pytest.mark.parametrize("page", ["docs/engines.md", "docs/running.md", "docs/conformance.md"])
def test_who_uses_it_imports_by_the_name_that_a_wheel_has_too(page):
    assert not {name for block in blocks(page) for name in imports(block)} & set(PACKAGES)


def test_in_a_checkout_both_names_are_one_module():
    code = (
        "import common.spec, diptych.common.spec as spec, diptych.dsl_triton.masks as masks, dsl_triton.masks as same\n"
        "assert spec is common.spec and spec.__spec__.name == 'common.spec' and masks is same\n"
        "import diptych, importlib.util\n"
        "assert importlib.util.find_spec('diptych.common.nothing') is None\n"
    )
    done = run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


def test_the_second_name_is_never_a_strangers(tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").write_text("")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path}
    done = run([sys.executable, "-P", "-c", "import diptych.common"], cwd=tmp_path, env=environment)
    last = done.stderr.strip().splitlines()[-1]
    assert str(tmp_path / "common") in last and f"put {ROOT} before it" in last


def test_the_wheel_installs_the_one_command(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    scripts = configparser.ConfigParser()
    scripts.read(tmp_path.glob("*.dist-info/entry_points.txt"))
    assert dict(scripts["console_scripts"]) == PROJECT["scripts"]
    module, _, function = scripts["console_scripts"]["diptych"].partition(":")
    code = f"import sys; sys.argv = ['bin/diptych']; from {module} import {function}; sys.exit({function}())"
    done = run([sys.executable, "-P", "-c", code], env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0 and done.stdout.startswith("usage: diptych VERB"), done.stderr


def test_the_kit_of_a_wheel_finds_its_modules(wheel, tmp_path):
    """It refuses a kernel that is not there, by the kit's own words."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    done = run([sys.executable, "-P", str(tmp_path / "diptych_check.py"), "nowhere:kernel"], cwd=tmp_path)
    assert done.returncode == 2 and "found nowhere:kernel, which does not load" in done.stderr, done.stderr


def test_the_wheel_carries_the_licence_and_says_that_every_package_is_typed(wheel):
    held = zipfile.ZipFile(wheel)
    (name,) = (name for name in held.namelist() if name.endswith("/LICENSE"))
    assert "Apache License" in held.read(name).decode()
    assert {f"diptych/{package}/py.typed" for package in PACKAGES} <= set(held.namelist())


def test_the_kit_brings_numpy_alone_and_torch_triton_and_helion_are_extras():
    """Beside an installed torch: nothing that asks for one, and no tool of reports."""
    assert {re.match(r"[\w-]+", one).group() for one in PROJECT["dependencies"]} == {"numpy"}
    for extra in ("cpu", "cuda"):
        assert {"torch", "triton"} <= {r.split(">=")[0] for r in PROJECT["optional-dependencies"][extra]}


@pytest.mark.parametrize(("prefix", "kind"), [("checkout/.venv", "pinned"), ("checkout/.venv-docs", None)])
def test_an_active_environment_of_the_project_is_no_host(environment, tmp_path, monkeypatch, prefix, kind):
    """`make` in an activated .venv made it anew from itself, and left it without torch."""
    monkeypatch.setattr(environment, "ROOT", tmp_path / "checkout")
    monkeypatch.setattr(environment.sys, "prefix", str(tmp_path / prefix))
    (tmp_path / "checkout" / ".venv").mkdir(parents=True)
    (tmp_path / "checkout" / ".venv" / environment.STAMP).write_text('{"kind": "pinned"}')
    assert environment.active() == kind


def test_a_lane_holds_what_its_set_has_otherwise_than_the_pinned_one(environment):
    assert set(environment.LANES) == {"oldest", "newest", "newest-torch"}
    pinned = environment.wanted_pins("pinned")
    for name, one in environment.LANES.items():
        held = pinned | environment.wanted_pins(name)
        assert held != pinned and {package: held[package] for package in ("torch", "triton", "helion")} == {
            package: one[package] for package in ("torch", "triton", "helion")
        }
    assert "torch" not in environment.wanted_pins("newest"), "its wheel would be downloaded every day"


def test_a_lanes_environment_is_in_front_of_the_pinned_one(environment, tmp_path, monkeypatch):
    """pip is asked for nothing but what differs, and for triton and helion without what they need."""
    asked = []
    site_of = environment.site_packages
    monkeypatch.setattr(environment.venv, "create", lambda target, **how: Path(site_of(target)).mkdir(parents=True))
    monkeypatch.setattr(environment.subprocess, "run", lambda command, **options: asked.append(command[1:]))
    environment.make_lane(tmp_path / "lane", "newest", tmp_path / "pinned")
    site = Path(environment.site_packages(tmp_path / "lane"))
    assert (site / "pinned.pth").read_text() == f"{environment.site_packages(tmp_path / 'pinned')}\n{ROOT}\n"
    installing = [command for command in asked if "install" in command]
    exact = [f"{name}=={environment.LANES['newest'][name]}" for name in ("triton", "helion")]
    pip = ["-m", "pip", "--python", str(tmp_path / "lane" / "bin" / "python")]
    assert installing == [[*pip, "install", "--quiet", "--no-deps", *exact]]
    asked.clear()
    environment.make_lane(tmp_path / "lane", "newest-torch", tmp_path / "pinned")
    first = next(command for command in asked if "install" in command)
    assert first == [*pip, "install", "--quiet", f"torch=={environment.LANES['newest-torch']['torch']}"]


def test_every_direct_dependency_is_pinned(environment):
    pinned = environment.pins((ROOT / "constraints-cpu.txt").read_text())
    pinned |= environment.pins((ROOT / "constraints-docs.txt").read_text())  # of the site, in an environment of its own
    extras = [r for extra in PROJECT["optional-dependencies"].values() for r in extra]
    direct = {r.split(">=")[0] for r in PROJECT["dependencies"] + extras if not r.startswith("diptych")}
    assert direct <= set(pinned)


def fake_distribution(site, name, version):
    """A module and its metadata, as pip would have left them: enough for pip to see it and for a change to be seen."""
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text(f"__version__ = {version!r}\n")
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{name}/__init__.py,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
    (info / "INSTALLER").write_text("pip\n")


def snapshot(site):
    return {
        str(p.relative_to(site)): p.read_bytes() for p in sorted(site.rglob("*")) if p.name.endswith((".py", "DATA"))
    }


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A virtual environment that holds a vendor's torch and triton, and its Python."""
    target = tmp_path_factory.mktemp("host")
    assert run([sys.executable, "-m", "venv", str(target)]).returncode == 0
    site = next(target.glob("lib/python*/site-packages"))
    fake_distribution(site, "torch", "2.11.0+rocm7.0")
    fake_distribution(site, "triton", "3.6.0+rocm")
    return target / "bin" / "python", site


def test_installing_beside_rocm_leaves_its_triton_alone(host, wheel):
    python, site = host
    before = {name: content for name, content in snapshot(site).items() if name.startswith(("torch", "triton"))}
    done = run([str(python), "-m", "pip", "install", "--no-index", "--no-deps", str(wheel)])
    assert done.returncode == 0, done.stderr
    resolved = run([str(python), "-m", "pip", "install", "--dry-run", "--no-index", "diptych"])
    assert "triton" not in resolved.stdout.replace("dsl_triton", ""), resolved.stdout
    assert {name: content for name, content in snapshot(site).items() if name.startswith(("torch", "triton"))} == before


def test_pip_refuses_to_replace_a_vendors_triton(host, environment, tmp_path):
    """The constraints of a `host` environment make pip stop where a requirement asks for another triton."""
    python, site = host
    found = environment.installed(environment.NATIVE, [str(site)])
    assert found == {"torch": "2.11.0+rocm7.0", "triton": "3.6.0+rocm"}
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in found.items()))
    command = [str(python), "-m", "pip", "install", "--no-index", "--constraint", str(constraints)]
    assert run([*command, "triton>=3.6"]).returncode == 0
    assert run([*command, "triton>=3.7"]).returncode != 0
    assert run([str(python), "-c", "import triton; print(triton.__version__)"]).stdout == "3.6.0+rocm\n"


def test_a_changed_environment_is_noticed(environment, tmp_path):
    fake_distribution(tmp_path, "torch", "2.13.0+cpu")
    fake_distribution(tmp_path, "triton", "3.6.0")
    wanted = {"torch": "2.13.0", "triton": "3.7.1", "helion": "1.5.0"}
    assert environment.differing(wanted, [str(tmp_path)]) == ["triton 3.6.0", "helion missing"]


def test_a_strangers_common_is_refused_and_both_paths_named(tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").write_text("")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    statement = "import compare.record.records"  # as of every module of compare, by its __init__
    done = run([sys.executable, "-P", "-c", statement], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "StrangerPackage" in last and str(tmp_path / "common") in last and str(ROOT / "common") in last


def test_make_explains_itself():
    done = run(["make", "--no-print-directory"], cwd=ROOT)
    assert done.returncode == 0
    assert all(f"make {target}" in done.stdout for target in ("compare", "test", "test-slow", "lint", "wheel", "clean"))
