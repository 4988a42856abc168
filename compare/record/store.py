"""Append lines of JSON, each whole or absent however the process ends, and read them back with every bad line named.

A line counts once it ends with a newline and is fsynced. A write that fails half way (a full disk, a signal) is cut
off; what a kill leaves is cut off by the next writer and never read. Rows of schema 2 carry a checksum, so that a
changed digit is not another result.
"""

import contextlib
import fcntl
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare.record import packed
from compare.record.records import Record
from compare.record.whole import CannotWrite

NAMED = 5  # bad lines that a message names; the others are counted


class Busy(OSError):
    """Another process appends to this file; the message names it."""


class Lines(contextlib.AbstractContextManager):
    """Appends lines to a file, one process at a time. Raises Busy; OSError where a line did not get to the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        packed.unpack(path)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released with the process
        except BlockingIOError:
            os.close(self._file)
            raise Busy(f"{path}: another process is writing to it") from None
        self._end = _cut_torn_line(path, self._file)

    def append(self, line: str) -> None:
        """Write the line to the disk before returning, or not at all; a line that was complete when Ctrl-C came
        stays."""
        data = line.encode() + b"\n"
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError:  # a full disk
            self._cut()
            raise
        except BaseException:  # Ctrl-C, between two writes or during a sync
            if os.fstat(self._file).st_size == self._end + len(data):
                self._end += len(data)
            else:
                self._cut()
            raise
        self._end += len(data)

    def _cut(self) -> None:
        """Truncate to the last whole line. The first error is reported; a reader skips torn lines."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self._end)

    def close(self) -> None:
        os.close(self._file)

    def __exit__(self, *_: object) -> None:
        self.close()


def _cut_torn_line(path: Path, file: int) -> int:
    """Truncate behind the last newline; returns the remaining length."""
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        os.ftruncate(file, end)
    return end


def _ensure_begins(path: Path, head: str) -> None:
    """Raise ValueError for a file that begins with another line, whole or torn."""
    wanted = f"{head}\n".encode()
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        if not wanted.startswith(found := file.read(len(wanted))):
            said = found.partition(b"\n")[0].decode("utf-8", "replace")
            raise ValueError(f"out: found {path} of {said!r:.200}, allowed one of {head}")


class Findings(Lines):
    """A study's JSONL file, whose first line identifies the run: a later call of the same run goes on.

    found: all findings in the file, including added ones; `learn` is told each. Raises ValueError for a file of another
    run, which stays as it is, and for a line that is no JSON; Busy.
    """

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _ensure_begins(path, json.dumps(head))
        super().__init__(path)  # cuts a torn last line
        lines = path.read_bytes().splitlines()
        if not lines:
            self.append(json.dumps(head))
        self.found: list[dict[str, Any]] = []
        for number, line in enumerate(lines[1:], 2):
            try:
                self.found.append(json.loads(line))
            except ValueError as error:
                self.close()
                raise ValueError(f"out: found {path} whose line {number} is no JSON, allowed a whole file") from error
        for found in self.found:
            self.learn(found)

    def learn(self, found: dict[str, Any]) -> None:
        """What a study's own kind of findings makes of one."""

    def add(self, found: dict[str, Any]) -> None:
        self.append(json.dumps(found))
        self.found.append(found)
        self.learn(found)


class Store(Lines):
    """Appends records to a JSONL file: one line each, on the disk before `append` returns. Raises Busy, CannotWrite."""

    def append(self, record: Record) -> None:
        try:
            super().append(record.to_json())
        except OSError as error:
            cell = f"{record.kernel} on {record.workload.label}"
            raise CannotWrite(
                f"{self.path}: found `{error.strerror or error}` when {cell} was to be written; finished cells are"
                f" kept, `--resume {shlex.quote(str(self.path.parent))}` goes on"
            ) from error


@dataclass(frozen=True)
class Skipped:
    """A line that is no record: its number, from 1, and the reason."""

    line: int
    why: str


@dataclass(frozen=True)
class Loaded:
    """The records of a file in its order, and the lines that were left out."""

    path: Path
    records: list[Record]
    skipped: tuple[Skipped, ...] = ()

    @property
    def note(self) -> str:
        """What a reader of the results must know; empty where every line was read."""
        if not self.skipped:
            return ""
        named = "; ".join(f"line {bad.line}: {bad.why}" for bad in self.skipped[:NAMED])
        more = f"; and {len(self.skipped) - NAMED} more" if len(self.skipped) > NAMED else ""
        lines = "1 line" if len(self.skipped) == 1 else f"{len(self.skipped)} lines"
        return f"{self.path.name}: {lines} left out, which could not be read: {named}{more}"


def load(path: Path) -> Loaded:
    """The records of a `cells.jsonl`. Torn, corrupt and foreign lines are skipped, and listed by number.

    Raises OSError where the file cannot be read.
    """
    records, skipped = [], []
    for number, data in _lines(packed.read_bytes(path)):
        try:
            records.append(Record.from_json(_text(data)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            skipped.append(Skipped(number, _why(error)))
    return Loaded(path, records, tuple(skipped))


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, line with its newline), without empty lines."""
    for number, line in enumerate(_split(data), 1):
        if line.strip():
            yield number, line


def _split(data: bytes) -> list[bytes]:
    """Split at newlines only: a corrupt byte may look like another line end."""
    return [part + b"\n" for part in data.split(b"\n")[:-1]] + [data[data.rfind(b"\n") + 1 :]]


def _text(line: bytes) -> str:
    if not line.endswith(b"\n"):
        raise ValueError("no newline behind it: the run ended while it was written")
    return line.decode("utf-8")


def _why(error: Exception) -> str:
    text = f"no field {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    return text.splitlines()[0][:160]


def read_records(path: Path) -> list[Record]:
    """Every record of a file that must be complete. Raises ValueError naming the first bad line."""
    loaded = load(path)
    if loaded.skipped:
        raise ValueError(f"{path}, line {loaded.skipped[0].line}: {loaded.skipped[0].why}")
    return loaded.records
