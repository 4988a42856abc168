"""The hash of a kernel follows every file of its package that it imports, and no other."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from compare.competitors import registry, sources

ROOT = Path(__file__).parents[3]
PACKAGE = {
    "__init__.py": "",
    "kernel.py": "import json\nfrom pack.primitives import load\nfrom . import rung\n",
    "primitives.py": "def load():\n    from pack.deep.leaf import f\n    return f\n",
    "rung.py": "import pack.binding as binding\n",
    "binding.py": "from pack import kernel\n",
    "deep/__init__.py": "",
    "deep/leaf.py": "import importlib\nf = importlib.import_module('pack.named')\n",
    "named.py": "def load(name):\n    return import_module(f'pack.rungs.{name}')\n",
    "rungs/__init__.py": "",
    "rungs/one.py": "",
    "rungs/two.py": "f = import_module(f'.deep.{x}', __package__)\ng = import_module(f'..beside.{x}', __package__)\n",
    "rungs/deep/one.py": "",
    "beside/one.py": "",
    "stranger.py": "import pack.kernel\n",
}
USED = sorted(name for name in PACKAGE if "__init__" not in name and name != "stranger.py")


@pytest.fixture
def pack(tmp_path):
    for name, text in PACKAGE.items():
        path = tmp_path / "pack" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "json.py").write_text("")  # a file beside the package is not of it
    return tmp_path / "pack"


def sha_of(pack: Path) -> str:
    spec = importlib.util.spec_from_file_location("pack.kernel", pack / "kernel.py")
    return sources.sha(importlib.util.module_from_spec(spec))


def test_every_import_inside_the_package_is_found(pack):
    assert [str(path.relative_to(pack.resolve())) for path in sources.files(pack / "kernel.py")] == USED


@pytest.mark.parametrize("name", sorted(PACKAGE))
def test_the_hash_follows_the_files_that_are_used_and_no_other(pack, name):
    before = sha_of(pack)
    (pack / name).write_text(PACKAGE[name] + "# another line\n")
    assert (sha_of(pack) != before) == (name in USED)


@pytest.mark.parametrize("kernel_id", [kernel for kernel in registry.OWN if kernel.endswith("/parallel_softmax")])
def test_a_rung_is_hashed_with_what_it_imports(kernel_id):
    module, _ = registry.module_path(kernel_id)
    folder, name = module.split(".")
    found = {path.name for path in sources.files(ROOT / folder / f"{name}.py")}
    assert {"parallel_softmax.py", "primitives.py", "binding.py", "reduce_segments.py"} <= found
    assert "naive.py" not in found and "spec.py" not in found


@pytest.mark.parametrize("folder", ["dsl_triton", "dsl_helion"])
def test_what_chooses_among_the_rungs_is_hashed_with_all_of_them(folder):
    found = {path.name for path in sources.files(ROOT / folder / "auto.py")}
    assert {f"{kernel.split('/')[1]}.py" for kernel in registry.OWN} <= found


def test_a_kernel_of_one_file_is_hashed_alone():
    assert sources.files(Path(__file__)) == [Path(__file__).resolve()]


def test_a_kernel_belongs_to_the_module_that_names_it_and_to_that_of_its_class(tmp_path, monkeypatch):
    (tmp_path / "named_kernel.py").write_text("from fake_kernels import honest as kernel\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    kernel = importlib.import_module("named_kernel").kernel
    monkeypatch.delitem(sys.modules, "named_kernel")
    alone = sources.sha(kernel)
    importlib.import_module("named_kernel")
    first = sources.sha(kernel, "named_kernel")
    (tmp_path / "named_kernel.py").write_text("from fake_kernels import pads as kernel\n")
    assert len({alone, first, sources.sha(kernel, "named_kernel")}) == 3
    assert sources.sha(importlib.import_module("dsl_triton.naive"), "dsl_triton.naive") == sources.sha(
        importlib.import_module("dsl_triton.naive")
    )


def test_a_file_that_is_no_python_is_hashed_by_its_bytes(pack):
    (pack / "named.py").write_bytes(b"def f(: \xfe")
    before = sha_of(pack)
    (pack / "named.py").write_bytes(b"def f(: \xff")
    assert before and sha_of(pack) != before
