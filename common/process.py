"""Start a child process, read its lines, end it; whatever the child does, only the child suffers. Standard library
only.

In: a command. Out: its lines, one at a time, or `Lost` with what became of it.
"""

import atexit
import contextlib
import enum
import io
import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FLOOD_BYTES = 64 << 20
LOG_TAIL = 2000  # bytes of a lost child's log that the message holds
POLL_S = 0.1
SEND_S = 60.0  # seconds within which a child must take a line
REAP_S = 30.0  # seconds within which a killed child ends; a driver or a tracer may delay it
DESCRIPTOR = "{descriptor}"  # the word of a command that is replaced by the number of the child's socket
_living: set[subprocess.Popen[bytes]] = set()
_starting = threading.RLock()


def print_every_character() -> None:
    """Print a character that stdout's encoding lacks as its escape, as Python does on stderr."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def cores() -> int:
    """How many cores this process may use: its affinity, where the system has one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_to(part: int, of: int) -> bool:
    """Pin this process, its threads and later children to the part-th of `of` equal parts of its cores.

    Returns False, and does nothing, where the system has no affinity or fewer cores than parts.
    """
    if not hasattr(os, "sched_setaffinity"):
        return False
    ours = sorted(os.sched_getaffinity(0))
    share = len(ours) // of
    if not share:
        return False
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has just ended
            os.sched_setaffinity(int(thread), ours[part * share : (part + 1) * share])
    return True


@atexit.register
def _end_all() -> None:
    """Kill every process that was started here and still runs, those of other threads too."""
    for process in list(_living):
        _kill(process)


def _start(command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
    with _starting:
        process = subprocess.Popen(command, start_new_session=True, **how)
        _living.add(process)
    return process


@contextlib.contextmanager
def started() -> Iterator[set[int]]:
    """The running processes that were started here. While the context is open, none is started."""
    with _starting:
        yield {process.pid for process in _living}


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its session, unless it has ended."""
    if process not in _living:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(REAP_S)
    _living.discard(process)


class Lost(Exception):
    """A child is lost.

    status: timeout, flood, oom (SIGKILL, as the system sends when memory is short) or crash. code: its exit code, None
    while it lives. log_tail: the end of its log; from `once`, all of it.
    """

    def __init__(self, status: str, reason: str, log_tail: str = "", code: int | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.log_tail, self.code = status, reason, log_tail, code


class Over(enum.Enum):
    """How lines travel: over the child's stdin and stdout, or over a socket whose descriptor its command names."""

    STDIO, SOCKET = range(2)


class Child:
    """One process in its own session: only the parent gets Ctrl-C, and decides. The child ends with the parent.

    Other output goes to a file, never to a pipe, which would block the child when nobody reads it. flood: bytes that
    the log may grow by since `mark`. longest: bytes of a line. name: what `Lost.reason` calls the child.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        flood: float = FLOOD_BYTES,
        over: Over = Over.STDIO,
        longest: float = math.inf,
        name: str = "the process",
    ) -> None:
        self._flood, self._longest, self._name = flood, longest, name
        self._log, self._marked, self._buffer = tempfile.TemporaryFile(), 0, b""  # noqa: SIM115 - closed by end()
        how: dict[str, Any] = {"env": environment, "stderr": self._log}
        if over is Over.STDIO:
            self._process = _start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **how)
            self._to, self._from = self._process.stdin, self._process.stdout
        else:
            self._to, theirs = socket.socketpair()
            with theirs:
                number = theirs.fileno()
                how |= {"stdin": subprocess.DEVNULL, "stdout": self._log, "pass_fds": [number]}
                self._process = _start([str(number) if word == DESCRIPTOR else word for word in command], **how)
                self._from = self._to

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def unread(self) -> bytes:
        """The bytes behind the last line."""
        return self._buffer

    def send(self, line: bytes, files: Sequence[int] = ()) -> None:
        """Write a line, and over a socket pass these descriptors with it. Raises Lost."""
        try:
            if isinstance(self._to, socket.socket):
                self._send(line + b"\n", files)
            else:
                self._to.write(line + b"\n")
                self._to.flush()
        except (BrokenPipeError, ConnectionResetError):
            raise self._gone() from None
        except TimeoutError:
            raise self.lost("timeout", f"took no line for {SEND_S:.0f} s") from None

    def _send(self, line: bytes, files: Sequence[int]) -> None:
        self._to.settimeout(SEND_S)
        try:
            sent = socket.send_fds(self._to, [line], files) if files else 0
            self._to.sendall(line[sent:])
        finally:
            self._to.settimeout(None)

    def line(self, silence_s: float) -> bytes:
        """The next line, without its end. Raises Lost after `silence_s`, when the child ends, or when it floods."""
        deadline = time.monotonic() + silence_s
        while b"\n" not in self._buffer:
            if self._logged() - self._marked > self._flood:
                raise self.lost("flood", f"wrote more than {self._flood / 2**20:.0f} MiB to its output")
            if time.monotonic() > deadline:
                raise self.lost("timeout", f"no sign of life for {silence_s:.0f} s")
            ended = self.ended  # asked before looking: its last words are heard
            if select.select([self._from], [], [], 0.0 if ended else POLL_S)[0]:
                self._buffer += self._chunk()
            elif ended:
                raise self._gone()
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def mark(self, at: int | None = None) -> None:
        """Count floods and log tails from here on, or from byte `at`."""
        self._marked = self._logged() if at is None else at

    def lost(self, status: str, reason: str, code: int | None = None) -> Lost:
        """A Lost with the end of the log."""
        begin = max(self._marked, self._logged() - LOG_TAIL)
        return Lost(status, reason, os.pread(self._log.fileno(), LOG_TAIL, begin).decode(errors="replace"), code)

    def kill(self) -> None:
        """Kill the process and its session. A thread that waits for its line gets Lost."""
        _kill(self._process)

    def end(self) -> None:
        """Kill the process and close its channels; called by the thread that sends and listens."""
        self.kill()
        for stream in (self._to, self._from, self._log):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                stream.close()

    def _chunk(self) -> bytes:
        try:
            found = os.read(self._from.fileno(), 1 << 16)
        except ConnectionResetError:
            found = b""
        if not found or (len(self._buffer) + len(found) > self._longest and b"\n" not in found):
            raise self._gone()
        return found

    def _logged(self) -> int:
        return os.fstat(self._log.fileno()).st_size

    def _gone(self) -> Lost:
        """The status for the exit code of a child that should not have ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        code = self._process.poll()
        if code is None:
            return self.lost("crash", f"{self._name} closed its output")
        died = f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return self.lost("oom" if code == -signal.SIGKILL else "crash", f"{self._name} {died}", code)


def once(
    command: Sequence[str], environment: Mapping[str, str], given: bytes, limit_s: float, *, merged: bool = False,
    folder: str | os.PathLike[str] | None = None,
) -> tuple[int, bytes, bytes]:  # fmt: skip
    """Run a process on this stdin; returns its exit code, stdout and stderr. merged: stderr goes to stdout. folder: the
    working directory, default the current one.

    Raises Lost after `limit_s`, when its session has been killed, with all that it wrote to stdout; OSError where it
    cannot be started.
    """
    errors = subprocess.STDOUT if merged else subprocess.PIPE
    how: dict[str, Any] = {"env": environment, "cwd": folder, "stderr": errors}
    process = _start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **how)
    with process:
        try:
            out, err = process.communicate(given, timeout=limit_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            out, _ = process.communicate()
            raise Lost("timeout", f"no answer within {limit_s:.0f} s", out.decode(errors="replace")) from None
        except BaseException:
            _kill(process)
            raise
    _living.discard(process)
    return process.returncode, out, err or b""
