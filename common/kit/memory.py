"""Memory of a fixed size, made by this process and passed to a child by its descriptor, without a path.

On Linux a sealed memfd: nobody can change its size, and read-only memory cannot be written. Elsewhere an unnamed file,
of which no more is read than was asked for.
"""

import fcntl
import io
import os
import tempfile
from collections.abc import Iterable
from types import TracebackType

CHUNK = 64 << 20


class Memory:
    """Some bytes. descriptor: what a child gets."""

    def __init__(self, num_bytes: int) -> None:
        self._sealed, self._num_bytes = hasattr(os, "memfd_create"), num_bytes
        if self._sealed:
            self._file = io.FileIO(os.memfd_create("diptych", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+")
        else:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by __exit__
        os.ftruncate(self._file.fileno(), num_bytes)

    @property
    def descriptor(self) -> int:
        return self._file.fileno()

    def read(self) -> bytearray:
        """All bytes, each read once; fewer where an unsealed file was cut."""
        found = bytearray(self._num_bytes)
        for at in range(0, self._num_bytes, CHUNK):
            part = os.pread(self.descriptor, min(CHUNK, self._num_bytes - at), at)
            found[at : at + len(part)] = part
            if len(part) < min(CHUNK, self._num_bytes - at):
                return found[: at + len(part)]
        return found

    def write(self, parts: Iterable[memoryview]) -> None:
        """Write consecutively from the first byte. Raises OSError where there is no room."""
        at = 0
        for part in parts:
            left = part
            while left.nbytes:
                done = os.pwrite(self.descriptor, left[:CHUNK], at)
                at, left = at + done, left[done:]

    def seal(self, *, written: bool) -> None:
        """Fix the size for good, and the bytes where they are `written`."""
        if self._sealed:
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals | (fcntl.F_SEAL_WRITE if written else 0))

    def __enter__(self) -> "Memory":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def empty(num_bytes: int) -> Memory:
    """Zeros, for a child to write."""
    made = Memory(num_bytes)
    made.seal(written=False)
    return made


def holding(parts: Iterable[memoryview]) -> Memory:
    """These bytes, for a child to read."""
    parts = list(parts)
    made = Memory(sum(part.nbytes for part in parts))
    made.write(parts)
    made.seal(written=True)
    return made
