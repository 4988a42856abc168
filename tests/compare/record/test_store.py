"""Whatever ends a run - a kill, a full disk, a signal between two writes - finished cells stay and torn lines go."""

import errno
import lzma
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compare.record import packed, store
from compare.record.store import Busy, Lines, Store, load, read_records
from row_producer import record

HERE = Path(__file__).parents[2] / "support"
PRODUCER = [sys.executable, str(HERE / "row_producer.py")]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(HERE.parent.parent)}


def produce(folder, rows, fill=0, **how):
    command = [*PRODUCER, str(folder), str(rows), str(fill)]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, **how)


def ids(path):
    return [r.cell_id for r in load(path).records]


@pytest.mark.parametrize("point", range(5))
def test_kill_9_at_a_random_point_loses_no_finished_cell(tmp_path, point):
    """The process is killed a random while behind a random cell; whoever goes on ends with each cell once."""
    generator = random.Random(point)
    path, rows, fill = tmp_path / "cells.jsonl", 30, generator.choice((0, 4_000, 200_000))
    with produce(tmp_path, rows, fill) as process:
        told = [process.stdout.readline().strip() for _ in range(generator.randrange(1, rows - 5))]
        time.sleep(generator.uniform(0, 0.004))
        process.kill()
        told += process.stdout.read().split()
        assert process.wait() in (-signal.SIGKILL, 0)  # 0: on a busy machine it may have come to its end before
    found = ids(path)
    assert found[: len(told)] == told and len(found) <= len(told) + 1  # one more: on the disk, not yet told
    torn = load(path).skipped
    assert len(torn) <= 1 and all("no newline" in bad.why for bad in torn)
    with produce(tmp_path, rows, fill) as process:
        process.communicate(timeout=300)
    assert process.returncode == 0
    assert sorted(ids(path)) == sorted(f"cell{n}" for n in range(rows)) and not load(path).skipped


class FullDisk:
    """os.write that has room for so many bytes, writes what fits and then raises ENOSPC, as a file system does."""

    def __init__(self, room):
        self.room = room

    def __call__(self, file, data):
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size = min(len(data), self.room, 4096)
        self.room -= size
        return os_write(file, data[:size])


os_write = os.write


@pytest.mark.parametrize("point", range(8))
def test_a_disk_that_fills_at_a_random_byte_loses_no_finished_cell(tmp_path, monkeypatch, point):
    generator = random.Random(100 + point)
    path, rows, fill = tmp_path / "cells.jsonl", 30, generator.choice((0, 10_000))
    size = len(record(0, fill).to_json()) + 1
    monkeypatch.setattr(store.os, "write", FullDisk(generator.randrange(size * rows)))
    finished = []
    with Store(path) as kept, pytest.raises(OSError, match="No space left"):
        for number in range(rows):
            kept.append(record(number, fill))
            finished.append(f"cell{number}")
    assert ids(path) == finished and not load(path).skipped  # what did not fit is cut off again
    monkeypatch.undo()
    with Store(path) as kept:
        for number in range(len(finished), rows):
            kept.append(record(number, fill))
    assert ids(path) == [f"cell{n}" for n in range(rows)]


def test_a_limit_of_the_system_is_met_in_the_middle_of_a_line(tmp_path):
    """The same through the kernel: a file may not grow beyond 20,000 bytes."""

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    with produce(tmp_path, 50, 900, preexec_fn=limited, stderr=subprocess.PIPE) as process:
        told, said = process.communicate(timeout=300)
    assert process.returncode == 1 and "File too large" in said
    path = tmp_path / "cells.jsonl"
    assert ids(path) == told.split() and 5 < len(told.split()) < 50
    assert path.read_bytes().endswith(b"\n") and not load(path).skipped


def test_a_torn_line_is_no_result_even_where_only_its_newline_is_missing(tmp_path):
    path, line = tmp_path / "cells.jsonl", record(1).to_json()
    for cut in [*range(1, len(line), 7), len(line)]:
        path.write_text(record(0).to_json() + "\n" + line[:cut])
        loaded = load(path)
        assert [r.cell_id for r in loaded.records] == ["cell0"] and [bad.line for bad in loaded.skipped] == [2]


def test_appending_behind_a_torn_line_removes_it(tmp_path):
    path = tmp_path / "cells.jsonl"
    path.write_text(record(0).to_json() + "\n" + record(1).to_json())
    with Store(path) as kept:
        kept.append(record(2))
    assert ids(path) == ["cell0", "cell2"] and not load(path).skipped


def test_ctrl_c_between_two_writes_leaves_no_half(tmp_path, monkeypatch):
    calls = []

    def interrupted(file, data):
        calls.append(data)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return os_write(file, data[:10])

    monkeypatch.setattr(store.os, "write", interrupted)
    with Store(tmp_path / "cells.jsonl") as kept, pytest.raises(KeyboardInterrupt):
        kept.append(record(0))
    assert (tmp_path / "cells.jsonl").read_bytes() == b""


def test_ctrl_c_while_the_disk_is_waited_for_keeps_the_whole_line(tmp_path, monkeypatch):
    def interrupted(file):
        raise KeyboardInterrupt

    with Store(tmp_path / "cells.jsonl") as kept:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(store.os, "fsync", interrupted)
            kept.append(record(0))
        kept.append(record(1))
    assert ids(tmp_path / "cells.jsonl") == ["cell0", "cell1"]


def test_two_runs_do_not_write_to_one_file(tmp_path):
    with Store(tmp_path / "cells.jsonl"), pytest.raises(Busy, match="another process"):
        Store(tmp_path / "cells.jsonl")
    with store.Lines(tmp_path / "cells.jsonl"):
        pass


OTHERS = ['{"a": 1}', '{"study": "x"}\n', "", "{", '{"study": "counts"}\n[1', '{"study": "counts"}\n{"of": 1}\n']


@pytest.mark.parametrize("content", [*OTHERS, '{"study": "counts"}\n{\n'])
def test_a_file_of_another_run_stays_as_it_is(tmp_path, content):
    path, head = tmp_path / "of a user", {"study": "counts"}
    path.write_text(content)
    if content in OTHERS[2:]:
        with store.Findings(path, head) as kept:
            assert kept.found == [{"of": 1}] * content.endswith("1}\n")
    else:
        with pytest.raises(ValueError, match=re.escape(f"out: found {path} ")):
            store.Findings(path, head)
        assert path.read_text() == content
        store.Lines(path).close()  # nobody holds it


def test_who_needs_a_whole_file_hears_the_line(tmp_path):
    path = tmp_path / "cells.jsonl"
    path.write_text(record(0).to_json() + "\n{}\n" + record(1).to_json() + "\n")
    with pytest.raises(ValueError, match="line 2: schema"):
        read_records(path)


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
