"""A row is kept exactly where what chose its config reads the same: whatever a choice imports, or reads beside that."""

import shutil
from pathlib import Path

import pytest

from compare.plan import fingerprint

ROOT = Path(__file__).parents[3]
READ = ("common/serving", "common/choice", "common/gpus.py", "dsl_triton", "compare/competitors/registry.py")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of what a choice reads, in the place of this checkout."""
    for name in READ:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(fingerprint, "FOLDER", tmp_path)
    return tmp_path


def chosen():
    """The hash of the files as they are now."""
    for one in vars(fingerprint).values():
        getattr(one, "cache_clear", int)()
    return fingerprint.choice("triton/q_block", "tree", "h200")


def changed(file):
    """Whether another last line of a file is another choice."""
    before, text = chosen(), file.read_text()
    file.write_text(text + "\n")
    return chosen() != before


@pytest.mark.parametrize(
    "name",
    [
        "serving/choice.py",
        "serving/grid.py",
        "serving/winners.py",
        "choice/learned.py",
        "choice/legal.py",
        "gpus.py",
    ],
)
def test_what_a_choice_reads_counts(folder, name):
    assert changed(folder / "common" / name)


def test_a_module_that_a_choice_begins_to_import_counts_with_its_data(folder):
    added, data = folder / "common" / "serving" / "added.py", folder / "common" / "serving" / "added.json"
    added.write_text("FILE = 'added.json'\n")
    data.write_text("{}")
    assert not changed(added) and not changed(data)
    with (folder / "common" / "serving" / "grid.py").open("a") as grid:
        grid.write("def late():\n    from common.serving import added\n")
    assert changed(added) and changed(data)


def test_a_choice_that_moved_into_a_package_counts_with_all_of_it(folder):
    serving, choosing = folder / "common" / "serving", folder / "common" / "choosing"
    choosing.mkdir()
    (choosing / "__init__.py").write_text("from common.choosing.family import Choice\n")
    shutil.move(serving / "choice.py", choosing / "family.py")
    registry = folder / "compare" / "competitors" / "registry.py"
    registry.write_text(registry.read_text().replace("common.serving.choice import", "common.choosing import"))
    assert changed(choosing / "family.py") and changed(choosing / "__init__.py") and changed(serving / "grid.py")


def test_neither_other_kernels_nor_tables_of_other_gpus_count(folder):
    table = folder / "dsl_triton" / "heuristics" / "learned" / "mi300.json"
    table.write_text("{}")
    assert not changed(folder / "dsl_triton" / "split.py") and not changed(table)
    assert changed(shutil.move(table, table.with_name("h200.json")))
