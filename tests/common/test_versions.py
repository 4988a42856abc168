"""Which versions will do, who says so and how often; everything that states one agrees with common/tested.toml."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

from common import versions

ROOT = Path(__file__).parents[2]
NEWEST = {"torch": "2.15.0", "triton": "3.9.0", "helion": "1.5.1"}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture
def installed(monkeypatch):
    """Installs packages by saying so; nothing was said yet, and kernels are compiled."""
    monkeypatch.setenv(versions.SAID, "")  # so that it is put back, whatever a test says
    monkeypatch.delenv(versions.SAID)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    versions.remark.cache_clear()

    def install(**found):
        monkeypatch.setattr(versions, "here", lambda package: (NEWEST | found)[package])

    yield install
    versions.remark.cache_clear()


def test_the_extras_begin_and_end_at_the_sets_that_passed():
    """A plain install gives a tested set: pip takes the newest that the bounds allow."""
    asked = {extra: [one for one in EXTRAS[extra] if not one.startswith("diptych")] for extra in EXTRAS}
    assert asked["cpu"] == [versions.requirement("torch", "cpu"), versions.requirement("triton", "cpu")]
    assert asked["cuda"] == [versions.requirement("torch"), versions.requirement("triton")]
    assert asked["helion"] == [versions.requirement("helion")]
    assert all("diptych[compare,helion]" in EXTRAS[extra] for extra in ("cpu", "cuda"))


def test_the_libraries_of_the_command_are_those_of_its_extra_and_said_where_they_are_absent(installed, monkeypatch):
    assert set(versions.LIBRARIES["compare"]) == {one.partition(">=")[0] for one in EXTRAS["compare"]}
    installed()
    versions.ensure("compare")
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("pandas", "elftools") else real(name)
    )
    with pytest.raises(versions.Unsuitable, match=r"^pandas, pyelftools: found none, needed .*'\.\[compare\]'"):
        versions.ensure("compare")
    for who in ("check", "triton"):
        versions.ensure(who)


def test_the_newest_of_each_package_are_one_set():
    newest = {package: max(versions.series(one[package]) for one in versions.SETS) for package in versions.PACKAGES}
    assert {package: versions.series(versions.SETS[-1][package]) for package in versions.PACKAGES} == newest


def test_the_pinned_set_is_that_of_the_constraints():
    (pinned,) = [one for one in versions.SETS if one["name"] == "pinned"]
    text = (ROOT / "constraints-cpu.txt").read_text()
    assert all(f"\n{package}=={pinned[package]}\n" in text for package in versions.PACKAGES)


def test_the_page_on_installing_has_every_set():
    rows = [
        f"| {one['torch']} | {one['triton']} | {one['helion']} | {one['on']} | {one['passed']} | `{one['test']}` |"
        for one in reversed(versions.SETS)
    ]
    assert "\n".join(rows) in (ROOT / "docs" / "installing.md").read_text()


@pytest.mark.parametrize(
    ("version", "series"),
    [("3.7.1", (3, 7)), ("2.13.0+cpu", (2, 13)), ("3.6.0+git1a2b3c", (3, 6)), ("2.16.0a0+git9", (2, 16)), ("4", (4,))],
)
def test_a_version_is_known_by_its_minor_series(version, series):
    assert versions.series(version) == series


def test_a_package_may_come_from_a_vendors_distribution(monkeypatch):
    held = {"pytorch-triton-rocm": "3.6.0+rocm"}

    def version(name):
        if name not in held:
            raise versions.metadata.PackageNotFoundError(name)
        return held[name]

    monkeypatch.setattr(versions.metadata, "version", version)
    assert versions.here.__wrapped__("triton") == "3.6.0+rocm"
    held.clear()
    assert versions.here.__wrapped__("triton") == versions.UNKNOWN
    monkeypatch.setattr(versions.importlib.util, "find_spec", lambda name: None)
    assert versions.here.__wrapped__("triton") == ""


def test_what_is_absent_or_too_old_is_named_with_what_is_needed_and_pips_command(installed):
    installed(torch="", triton="3.5.1")
    with pytest.raises(ImportError) as caught:
        versions.ensure("triton")
    assert str(caught.value) == (
        "torch: found none, needed >=2.11,<2.16; triton: found 3.5.1, needed >=3.6,<3.10:"
        " pip install 'torch>=2.11,<2.16' 'triton>=3.6,<3.10'"
    )


def test_the_interpreter_needs_a_newer_triton(installed, monkeypatch):
    installed(triton="3.6.0")
    versions.ensure("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(versions.Unsuitable, match=r"triton: found 3\.6\.0, needed >=3\.7,<3\.10: pip install"):
        versions.ensure("triton")


def test_a_vendors_build_is_to_come_from_where_it_came_from(installed):
    installed(torch="2.9.0+rocm6.4")
    with pytest.raises(versions.Unsuitable, match=r"'torch>=2.11,<2.16' \(from where the rocm6.4 build came from\)$"):
        versions.ensure("compare")


def test_helion_may_be_absent_but_not_too_old_where_it_is_not_needed(installed):
    installed(helion="")
    versions.admit("compare")
    with pytest.raises(versions.Unsuitable, match="helion: found none"):
        versions.ensure("helion")
    installed(helion="1.4.2")
    with pytest.raises(versions.Unsuitable, match=r"helion: found 1\.4\.2"):
        versions.admit("compare")


def test_a_module_without_metadata_is_taken_and_untested(installed):
    installed(triton=versions.UNKNOWN)
    versions.ensure("helion")
    assert versions.untested().startswith("torch 2.15.0, triton of unknown version, helion 1.5.1: untested together")


def test_versions_that_were_never_together_are_untested(installed):
    installed(torch="2.11.0")
    assert versions.tested() == "" and versions.tested(("triton", "helion")) == "newest-torch"
    installed(torch="2.11.0+cu130", triton="3.6.0", helion="")
    assert versions.tested() == "measured"


def test_an_entry_point_says_once_that_a_set_is_untested(installed, capsys):
    installed(triton="3.10.0")
    versions.admit("compare")
    versions.admit("check")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.remark("triton")
    line = f"torch 2.15.0, triton 3.10.0, helion 1.5.1: untested together; `{versions.TEST}` tests them\n"
    assert capsys.readouterr().err == line


def test_a_call_warns_once_of_the_packages_that_it_needs(installed):
    installed(helion="1.6.0")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for who in ("triton", "helion", "helion"):
            versions.remark(who)
    assert [str(one.message).partition(": ")[0] for one in seen] == ["torch 2.15.0, triton 3.9.0, helion 1.6.0"]


def test_a_tested_set_is_not_spoken_of(installed, capsys):
    for one in versions.SETS:
        installed(**{package: one[package] for package in versions.PACKAGES})
        versions.admit("compare")
    assert capsys.readouterr().err == ""


# What follows is tried by processes, whose metadata and modules are what a folder in front of the others says.


def package(folder, name, version):
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def forbid(folder, *names):
    """Modules that are not there, whatever is installed."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "from importlib import machinery, metadata\n"
        "class Finder(machinery.PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        f"        return None if name.partition('.')[0] in {names} else super().find_spec(name, path, target)\n"
        "sys.meta_path[sys.meta_path.index(machinery.PathFinder)] = Finder\n"
        "found = metadata.version\n"
        "def version(name):\n"
        f"    if name in {names}:\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return found(name)\n"
        "metadata.version = version\n"
    )


def run(folder, *command, **variables):
    environment = {n: v for n, v in os.environ.items() if n not in (versions.SAID, "TRITON_INTERPRET")}
    environment |= {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])} | variables
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


ENTRIES = {
    "compare": ("-m", "compare", "explain", "q1s2k"),
    "compare.run": ("-m", "compare.run", "--list"),
    "diptych-check": ("-m", "diptych_check", "no_such:kernel"),
}


@pytest.mark.parametrize(
    ("entry", "name", "found"),
    [("compare", "torch", "0.9.1"), ("compare.run", "triton", "none"), ("diptych-check", "helion", "0.9.1"),
     ("diptych-check", "torch", "none")],
)  # fmt: skip
def test_an_entry_point_refuses_what_is_too_old_or_absent_in_one_line(tmp_path, entry, name, found):
    forbid(tmp_path, name) if found == "none" else package(tmp_path, name, found)
    done = run(tmp_path, *ENTRIES[entry])
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(rf"{name}: found {re.escape(found)}, needed \S+: pip install '{name}\S+'\n", done.stderr)


def test_a_run_without_a_gpu_refuses_a_triton_too_old_for_its_interpreter_in_one_line(tmp_path):
    package(tmp_path, "triton", "3.6.0")
    wanted = ("--kernels", "triton/q_block", "--workload", "q1s20", "--out", "out")
    done = run(tmp_path, "-m", "compare.run", *wanted, CUDA_VISIBLE_DEVICES="-1")
    assert done.returncode == 2 and done.stdout == "" and not (tmp_path / "out").exists()
    (said,) = [line for line in done.stderr.splitlines() if "untested" not in line]
    assert re.fullmatch(r"triton: found 3\.6\.0, needed >=3\.7,\S+: pip install 'triton>=3\.7,\S+'", said)


@pytest.mark.parametrize(
    "entry", ["compare.run", *(pytest.param(x, marks=pytest.mark.slow) for x in list(ENTRIES)[::2])]
)
def test_an_entry_point_says_in_one_line_that_a_set_is_untested(tmp_path, entry):
    package(tmp_path, "triton", "99.1.0")
    lines = run(tmp_path, *ENTRIES[entry]).stderr.splitlines()
    assert [line for line in lines if "untested" in line] == lines[:1] and versions.TEST in lines[0]


@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_an_import_of_a_dsl_says_what_is_missing(tmp_path, dsl):
    forbid(tmp_path, dsl)
    done = run(tmp_path, "-c", f"from dsl_{dsl} import paged_attention")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith(f"common.versions.Unsuitable: {dsl}: found none, needed >=") and "pip install" in last


CALL = """
import torch
from common import interpreter
interpreter.install()
from common.cases.batch import make_batch
from common.oracle.reference import reference
from common.spec import AttentionShape, Features
from dsl_triton import paged_attention, plan_paged_attention
batch = make_batch(((1, 20), (3, 9)), AttentionShape(2, 1, 64, 16, torch.float32))
tensors = (batch.query, batch.key_cache, batch.value_cache, batch.block_table, batch.query_start_loc, batch.seq_lens)
hints = {"max_query_len": 3, "max_seq_len": 20}
plan = plan_paged_attention(batch.shape, 4, 2, 20, "cpu")
for out in (paged_attention(*tensors, **hints), plan(*tensors, **hints, out=torch.empty_like(batch.query))):
    torch.testing.assert_close(out, reference(batch, Features()).out.float(), atol=1e-4, rtol=0)
print("right")
"""


def test_the_kernels_of_triton_need_no_helion(tmp_path):
    """And warn of a set that nobody tested, once, for a plan and a call."""
    forbid(tmp_path, "helion")
    package(tmp_path, "triton", "99.1.0")
    done = run(tmp_path, "-c", CALL, TRITON_INTERPRET="1")
    assert done.returncode == 0 and done.stdout == "right\n", done.stderr
    assert done.stderr.count("untested together") == 1


def test_the_kit_needs_torch_and_numpy_alone(tmp_path):
    forbid(tmp_path, "triton", "helion", "pandas", "matplotlib", "rich", "elftools", "sklearn", "pytest")
    (tmp_path / "somebody.py").write_text(
        "import torch\nSUPPORTS = []\n"
        "def call(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, max_query_len, max_seq_len,"
        " out, softmax_scale):\n    out.zero_()\n"
    )
    done = run(tmp_path, "-m", "diptych_check", "somebody:call", "--case", "query-0")
    assert "untested" not in done.stderr and "cases: 1 " in done.stdout, done.stdout + done.stderr
