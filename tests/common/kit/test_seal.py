"""What a judge imports is as old as it is, and what it writes at last is what stands there."""

import hashlib
import os
import sys
import time
from importlib.machinery import PathFinder

import pytest

from common.kit.report_file import ReportFile
from common.kit.seal import Seal
from common.spec import SpecError


@pytest.fixture
def sealed(tmp_path, monkeypatch):
    """A folder that Python imports from, with a package, a link and what stands beside; and a seal of after it."""
    folder, beside = tmp_path / "folder", tmp_path / "beside"
    for one in (folder / "package", beside / "other"):
        one.mkdir(parents=True)
        (one / "__init__.py").write_text("")
    (folder / "module.py").write_text("")
    (beside / "linked.py").write_text("")
    (folder / "link.py").symlink_to(beside / "linked.py")
    monkeypatch.setattr(sys, "path", [str(folder)])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    time.sleep(0.02)  # the clock of a file's times is coarse; a kernel takes longer to start
    seal = Seal([PathFinder])
    time.sleep(0.02)
    return folder, beside, seal


def test_what_was_there_is_imported(sealed):
    _, _, seal = sealed
    assert {name: bool(seal.find_spec(name)) for name in ("module", "package", "link", "none")} == {
        "module": True, "package": True, "link": True, "none": False,
    }  # fmt: skip


def touched_back(path):
    path.write_text("HERE = True")
    os.utime(path, (1e9, 1e9))


LATER = {  # what a kernel does -> the module that it hopes for
    "a new file": (lambda folder, beside: touched_back(folder / "new.py"), "new"),
    "another text": (lambda folder, beside: touched_back(folder / "module.py"), "module"),
    "a file moved in": (lambda folder, beside: (beside / "linked.py").rename(folder / "moved.py"), "moved"),
    "a folder moved in": (lambda folder, beside: (beside / "other").rename(folder / "other"), "other"),
    "a link to a folder": (lambda folder, beside: (folder / "other").symlink_to(beside / "other"), "other"),
    "what a link leads to": (lambda folder, beside: touched_back(beside / "linked.py"), "link"),
    "the whole folder": (lambda folder, beside: (folder.rename(beside / "x"), beside.rename(folder)), "linked"),
    "a hard link": (lambda folder, beside: os.link(beside / "linked.py", folder / "hard.py"), "hard"),
}


@pytest.mark.parametrize("how", LATER)
def test_what_was_written_since_is_not(how, sealed):
    folder, beside, seal = sealed
    act, name = LATER[how]
    act(folder, beside)
    with pytest.raises(ImportError, match="written since a kernel runs"):
        seal.find_spec(name)


def test_the_seal_answers_for_the_finders_behind_it(sealed):
    _, _, seal = sealed
    seal.invalidate_caches()
    assert list(seal.find_distributions()) == []


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


IN_THE_WAY = {
    "nothing": lambda path, other: None,
    "a file": lambda path, other: path.write_text("right"),
    "a link": lambda path, other: path.symlink_to(other),
    "a hard link": lambda path, other: os.link(other, path),
    "a fifo": lambda path, other: os.mkfifo(path),
    "a file that none may write": lambda path, other: (path.write_text(""), path.chmod(0)),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_a_report_takes_the_place_of_what_came_there(what, tmp_path):
    path, other = tmp_path / "report.json", tmp_path / "other"
    other.write_text("of somebody")
    report = ReportFile(str(path))
    IN_THE_WAY[what](path, other)
    assert report.write("wrong") == digest(path)
    assert (path.read_text(), path.is_symlink(), other.read_text()) == ("wrong", False, "of somebody")
    assert sorted(os.listdir(tmp_path)) == ["other", "report.json"]


def test_a_report_that_cannot_be_written_says_so(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    report = ReportFile(str(folder / "report.json"))
    (folder / "report.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        report.write("wrong")
    assert os.listdir(folder) == ["report.json"]
    (folder / "report.json").rmdir()
    folder.rename(tmp_path / "moved")
    folder.mkdir()
    with pytest.raises(OSError, match="another folder stands at"):
        report.write("wrong")


@pytest.mark.parametrize("path", ["nowhere/report.json", "a_folder", "a_fifo", "\0"])
def test_a_report_that_could_not_be_written_is_refused_before(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("a_folder")
    os.mkfifo("a_fifo")
    with pytest.raises(SpecError, match="a file that can be written"):
        ReportFile(path)


def test_a_link_that_the_user_made_is_followed(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "report.json")
    ReportFile(str(tmp_path / "link.json")).write("right")
    assert (tmp_path / "report.json").read_text() == "right" and (tmp_path / "link.json").is_symlink()
