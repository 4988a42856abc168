"""A log that a commit keeps compressed is read as itself, and gone on with as plain lines."""

import lzma

import pytest

from compare.record import packed
from compare.record.store import Lines


def test_a_compressed_log_is_read_as_itself(tmp_path):
    path = tmp_path / "cells.jsonl"
    assert not packed.there(path)
    (tmp_path / "cells.jsonl.xz").write_bytes(lzma.compress(b"one\ntwo\n"))
    assert packed.there(path) and packed.read_bytes(path) == b"one\ntwo\n"


def test_who_writes_on_unpacks_it_first(tmp_path):
    path = tmp_path / "cells.jsonl"
    (tmp_path / "cells.jsonl.xz").write_bytes(lzma.compress(b"one\n"))
    lines = Lines(path)
    lines.append("two")
    lines.close()
    assert path.read_bytes() == b"one\ntwo\n" and [one.name for one in tmp_path.iterdir()] == ["cells.jsonl"]


def test_a_torn_file_is_an_error_that_names_it(tmp_path):
    (tmp_path / "cells.jsonl.xz").write_bytes(lzma.compress(b"one\n")[:-8])
    with pytest.raises(OSError, match=r"cells\.jsonl\.xz"):
        packed.read_bytes(tmp_path / "cells.jsonl")
