"""A report written once, at the end, from memory: it replaces whatever came to its place meanwhile.

Its folder is held open from before the first kernel, so that it cannot be swapped; the file is written under a
temporary name and renamed.
"""

import contextlib
import hashlib
import os
import secrets
import stat
import weakref
from pathlib import Path

from common.spec import SpecError


class ReportFile:
    """Raises SpecError where no report can be written: before a run of minutes, not after it."""

    def __init__(self, path: str) -> None:
        try:
            self.path = Path(path).resolve()
            self._folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            weakref.finalize(self, os.close, self._folder)
            if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
                raise FileExistsError("it is there, and no regular file")
            os.unlink(self._begun(b""), dir_fd=self._folder)
        except (OSError, ValueError) as error:
            raise SpecError(
                "report", f"{path!r:.60}", f"a file that can be written: {getattr(error, 'strerror', None) or error}"
            ) from error

    def write(self, text: str) -> str:
        """Write the report; returns its sha256. Raises OSError, and then leaves no part of it."""
        raw = text.encode()
        begun = self._begun(raw)
        try:
            os.rename(begun, self.path.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(begun, dir_fd=self._folder)
            raise
        if not os.path.samestat(os.fstat(self._folder), os.stat(self.path.parent)):
            raise OSError(f"another folder stands at {self.path.parent} now")
        return hashlib.sha256(raw).hexdigest()

    def _begun(self, raw: bytes) -> str:
        """The name of a new file in the folder with these bytes, synced."""
        name = f".{self.path.name[:200]}.{secrets.token_hex(8)}"
        made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=self._folder)
        try:
            with open(made, "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._folder)
            raise
        return name
