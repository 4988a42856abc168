"""A file of compiled code: what comes out is what went in, and any other file says what it is and what to do."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
import torch

from common import gpus
from common.engines.options import Options
from common.engines.server import Limits, Server
from common.serving import pack
from common.spec import SpecError

HERE = Path(__file__).resolve().parent
MADE = {"gpu": "h200", "units": "132", "torch": "2.11.0", "triton": "3.6.0", "helion": "1.5.0", "python": "cpython-312",
        "sources": "0123456789abcdef"}  # fmt: skip


@pytest.fixture
def cache(tmp_path):
    """A cache as Triton lays it out, with texts, a lock and what a broken process left."""
    folder = tmp_path / "cache"
    kernel = folder / "ABC"
    (kernel / "tmp.pid_1_x").mkdir(parents=True)
    files = {"k.json": b"{}", "k.cubin": b"\x7fELF", "k.ptx": b"text", "lock.lock": b"", "tmp.pid_1_x/k.json": b"{"}
    group = {name: str(kernel / name) for name in ("k.json", "k.cubin", "k.ptx")}
    for name, content in (files | {"__grp__k.json": json.dumps({"child_paths": group}).encode()}).items():
        (kernel / name).write_bytes(content)
    (folder / "diptych_helion").mkdir()
    (folder / "diptych_helion" / "a.py").write_text("# kept")
    return folder


def test_code_is_unpacked_as_triton_and_helion_look_for_it(cache, tmp_path):
    digest, count = pack.pack(cache, file := tmp_path / "a.pack", MADE)
    assert count == 4 and len(digest) == 64
    there = tmp_path / "elsewhere"
    assert pack.unpack(file, there, MADE) == 4 and pack.unpack(file, there, MADE) == 0
    assert (there / "ABC" / "k.cubin").read_bytes() == b"\x7fELF"
    assert (there / "diptych_helion" / "a.py").read_text() == "# kept"
    group = json.loads((there / "ABC" / "__grp__k.json").read_text())["child_paths"]
    assert group == {name: str(there / "ABC" / name) for name in ("k.json", "k.cubin")}
    assert sorted(path.name for path in (there / "ABC").iterdir()) == ["__grp__k.json", "k.cubin", "k.json"]


@pytest.mark.parametrize("name", sorted(MADE))
def test_code_of_another_gpu_version_or_source_is_refused(cache, tmp_path, name):
    pack.pack(cache, file := tmp_path / "a.pack", MADE | {name: "other"})
    with pytest.raises(SpecError, match=f"code for {name} other, allowed {name} {MADE[name]}; make one here") as told:
        pack.unpack(file, there := tmp_path / "elsewhere", MADE)
    assert "a.pack" in str(told.value) and not there.exists()


def test_a_damaged_file_is_refused_whole(cache, tmp_path):
    pack.pack(cache, file := tmp_path / "a.pack", MADE)
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"no archive", whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]):
        file.write_bytes(content)
        with pytest.raises(SpecError, match="make one here"):
            pack.unpack(file, there := tmp_path / "elsewhere", MADE)
        assert not there.exists()


def rewritten(file, change):
    """The file with its members changed by `change`, a function of a dict."""
    with tarfile.open(file, "r:xz") as archive:
        members = {one.name: archive.extractfile(one).read() for one in archive}
    change(members)
    with tarfile.open(file, "w:xz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def _head(members, change):
    head = json.loads(members[pack.FIRST])
    change(head)
    members[pack.FIRST] = json.dumps(head).encode()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda members: members.update({"ABC/k.cubin": b"other"}), "ABC/k.cubin is not what was packed"),
        (lambda members: members.pop("ABC/k.cubin"), "ABC/k.cubin is not what was packed"),
        (lambda members: members.update({"more": b""}), "more is not what was packed"),
        (lambda members: members.pop(pack.FIRST), "KeyError"),
        (lambda members: _head(members, lambda head: head.update(format=2)), "format 2"),
        (lambda members: _head(members, lambda head: head.update(files=7)), "TypeError"),
    ],
)
def test_a_file_that_somebody_changed_is_refused(cache, tmp_path, change, named):
    pack.pack(cache, file := tmp_path / "a.pack", MADE)
    rewritten(file, change)
    with pytest.raises(SpecError, match=named):
        pack.unpack(file, tmp_path / "elsewhere", MADE)


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out"])
def test_no_file_is_written_beside_the_cache(cache, tmp_path, name):
    pack.pack(cache, file := tmp_path / "a.pack", MADE)

    def add(members):
        members[name] = b""
        _head(members, lambda head: head["files"].update({name: hashlib.sha256(b"").hexdigest()}))

    rewritten(file, add)
    with pytest.raises(SpecError, match="is not what was packed"):
        pack.unpack(file, tmp_path / "elsewhere", MADE)
    assert not (tmp_path / "out").exists()


def test_an_empty_cache_and_a_folder_that_cannot_be_written_are_named(cache, tmp_path):
    with pytest.raises(SpecError, match="--from"):
        pack.pack(tmp_path / "nothing", tmp_path / "a.pack", MADE)
    pack.pack(cache, file := tmp_path / "a.pack", MADE)
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(SpecError, match="TRITON_CACHE_DIR"):
        pack.unpack(file, tmp_path / "taken", MADE)


def test_a_server_takes_its_code_from_the_file_that_it_is_told(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(pack, "gpu_of", lambda device: gpus.resolve("h200"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "elsewhere"))
    made = pack.made_with(torch.device("cpu"))
    assert made["gpu"] == "h200" and len(made["sources"]) == 16
    pack.pack(cache, file := tmp_path / "a.pack", made)
    limits = Limits(64, 2, 64)
    Server(Options.of({"DIPTYCH_PACK": str(file), "DIPTYCH_KERNEL": "triton/auto"}), limits, torch.device("cpu"))
    assert (tmp_path / "elsewhere" / "ABC" / "k.cubin").exists()
    with pytest.raises(SpecError, match="no such file"):
        Server(Options.of({"DIPTYCH_PACK": str(tmp_path / "none")}), limits, torch.device("cpu"))
