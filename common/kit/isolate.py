"""Run a kernel in a process of its own: time limit, crash, out of memory, flood, stray processes -> a status.

The process runs `common/kit/isolated.py` by its path, as its own user where possible (`common.kit.account`). Whatever
it does, `Isolated.ask` returns a Reply within its limit, and after a loss the next question goes to a fresh process.
Every process that it leaves is ended (`common.kit.offspring`).
"""

import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from common.kit import account, offspring
from common.process import DESCRIPTOR, Child, Lost, Over

HERE = Path(__file__).resolve().parent
LONGEST_REPLY = 2**20
WRITTEN = "wrote into the channel to the kit"
IDLE = 0.005  # processor time, as part of a limit, below which a child was idle in its second half
MOST_READ = 99  # files of the judge that are named
LOOKS = 4  # at the threads of a process that may be idle
FEW_TICKS_S = 0.04  # the system counts processor time in hundredths of a second


@dataclass(frozen=True)
class Limits:
    """start_s: to import torch and begin. call_s: one call, including compiling; importing the kernel counts as one.
    flood: bytes on stdout and stderr in one call. memory: bytes on a CPU beyond the imports; 0 = no limit."""

    start_s: float = 300.0
    call_s: float = 60.0
    flood: int = 16 * 2**20
    memory: int = 16 * 2**30


@dataclass(frozen=True)
class Reply:
    """status: ok, or what became of it: unsupported, incorrect, crash, timeout, oom. said: the child's own words."""

    status: str
    reason: str = ""
    said: dict[str, Any] = field(default_factory=dict)


@dataclass
class Noted:
    """What was observed of a kernel beside its answers, in all of its processes.

    read: files of the judge that it opened. unended: its processes that SIGKILL did not end.
    """

    read: set[str] = field(default_factory=set)
    unended: list[int] = field(default_factory=list)


def processor_s(pid: int) -> float | None:
    """Processor time of a process and of the children that it waited for; None where the system does not tell."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _runs(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "R"
    except (OSError, IndexError):  # a thread that has just ended
        return False


def runnable(pid: int) -> bool:
    """Whether a process has something to compute, though others may have the processors: at each of LOOKS moments one
    of its threads does not wait."""
    for look in range(LOOKS):
        time.sleep(0.05 if look else 0.0)
        if not any(map(_runs, Path(f"/proc/{pid}/task").glob("*/stat"))):
            return False
    return True


def _late(limit_s: float, used_s: float | None, pid: int) -> str:
    """Why there is no answer, as far as the processor time of the wait's second half shows, and what the process does
    now."""
    words = f"no answer within {limit_s:.0f} s"
    if used_s is None:
        return words
    idle = used_s < max(IDLE * limit_s, FEW_TICKS_S) and not runnable(pid)
    return f"{words}: it {'stands still: a deadlock?' if idle else 'was still computing'}"


def _named(lost: Lost, limit_s: float, flood: int) -> tuple[str, str]:
    """Status and reason of a lost child, in the words of a call."""
    if lost.status == "timeout":
        return "timeout", lost.reason
    if lost.status == "flood":
        return "crash", f"flooded its output: more than {flood} bytes in one call"
    if lost.status == "oom":
        return "oom", "ended by SIGKILL, as the system does when memory is short"
    if lost.code is None:
        return "crash", "closed or flooded the channel to the kit"
    if lost.code < 0:
        return "crash", f"ended by {signal.Signals(-lost.code).name}"
    return "crash", f"ended the process with exit code {lost.code} in the middle of a call"


def plain(said: object) -> str:
    """A child's words in one line that terminals and files can hold: without control characters and lone surrogates."""
    words = " ".join(str(said)[:1000].split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)[:500]


class Isolated:
    """One process at a time, started by the first question.

    interpret: run common/interpreter first and set TRITON_INTERPRET=1. threads: for torch in the child. noted: shared
    by several instances of one kernel.
    """

    def __init__(
        self, limits: Limits | None = None, *, interpret: bool = False, threads: int | None = None,
        noted: Noted | None = None,
    ) -> None:  # fmt: skip
        self.limits, self._interpret, self._threads = limits or Limits(), interpret, threads
        self.noted = noted or Noted()
        self._child: Child | None = None
        self.started = 0  # processes so far

    @cached_property
    def not_isolated(self) -> str:
        """Why the child runs as the calling user; empty where it has its own."""
        return self._account[1]

    @cached_property
    def _account(self) -> tuple[account.Account | None, str]:
        return account.another()

    def share(self, why: str) -> None:
        """Run as the calling user from now on."""
        self.close()
        self._account = None, why
        self.not_isolated = why

    @property
    def _user(self) -> int | None:
        return self._account[0] and self._account[0].uid

    @cached_property
    def _home(self) -> account.Home:
        return account.Home(self._account[0])

    def ask(self, request: dict[str, Any], limit_s: float | None = None, files: Sequence[int] = ()) -> Reply:
        """Ask one question, with descriptors to pass to the child, and return one answer; never raises for what the
        child does."""
        nonce = secrets.token_hex(8)
        limit = self.limits.call_s if limit_s is None else limit_s
        try:
            self._put(json.dumps(request | {"nonce": nonce}).encode(), nonce, files)
            said = self._heard(nonce, limit, alone=True)
        except Lost as lost:
            tail = lost.log_tail.strip().rsplit("\n", 1)[-1][-300:]
            last = f"; its last line: {plain(tail)}" if tail and lost.status == "crash" else ""
            self.close()
            return Reply(lost.status, lost.reason + last)
        left = offspring.left(self._child.pid, self._user)
        if left:
            self.close()
            return Reply("crash", f"left {len(left)} process(es) running behind the call")
        return Reply(said.pop("status"), plain(said.pop("reason", "")), said)

    def kill(self) -> None:
        """End the running process from another thread; the asking thread loses its answer."""
        if (child := self._child) is not None:
            child.kill()

    def close(self) -> None:
        """End the process and all that it started."""
        if self._child is None:
            return
        self.noted.unended += offspring.end(self._child.pid, self._user)
        self._child.end()
        self._child = None

    def _put(self, request: bytes, nonce: str, files: Sequence[int]) -> None:
        """Send the question to a process that confirms it. Raises Lost.

        A process that ended after its last answer is replaced: the next kernel is not to blame.
        """
        if self._child is not None:
            self._child.mark()
            try:
                self._child.send(request, files)
                self._heard(nonce, self.limits.call_s)
                return
            except Lost as lost:
                if lost.code is None:
                    raise
            self.close()
        self._start()
        try:
            self._child.send(request, files)
        except Lost as lost:
            raise self._child.lost("crash", "ended the process before the call") from lost
        self._heard(nonce, self.limits.start_s)

    def _start(self) -> None:
        offspring.adopt()
        environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
        if self._interpret:
            environment["TRITON_INTERPRET"] = "1"
        if self._threads is not None:
            environment["OMP_NUM_THREADS"] = str(self._threads)
        interpreter = str(HERE.parent / "interpreter" / "__init__.py") if self._interpret else ""
        command = [sys.executable, "-P", str(HERE / "isolated.py"), DESCRIPTOR, interpreter, str(self.limits.memory)]
        if user := self._account[0]:
            command, environment = user.command(command), environment | self._home.environment()
        how = {"flood": self.limits.flood, "longest": LONGEST_REPLY}
        self._child = Child(command, environment, over=Over.SOCKET, **how)
        self.started += 1

    def _heard(self, nonce: str, limit: float, *, alone: bool = False) -> dict[str, Any]:
        """The child's answer to the question with this nonce; anything else, or anything after a line that must be the
        last (`alone`), is the kernel's doing. Before it come lines of what the kernel reads. Raises Lost."""
        end = time.monotonic() + limit
        try:
            said = json.loads(self._line(limit))
            while isinstance(said, dict) and list(said) == ["read"]:
                if len(self.noted.read) < MOST_READ:
                    self.noted.read.add(plain(said["read"]))
                said = json.loads(self._line(max(0.0, end - time.monotonic())))
        except Lost as lost:
            lost.status, lost.reason = _named(lost, limit, self.limits.flood)
            raise
        except (ValueError, RecursionError) as error:
            raise self._child.lost("crash", WRITTEN) from error
        known = isinstance(said, dict) and said.pop("nonce", None) == nonce and isinstance(said.get("status"), str)
        if not known or (alone and self._child.unread):
            raise self._child.lost("crash", WRITTEN)
        return said

    def _line(self, limit_s: float) -> bytes:
        """The child's next line. Raises Lost; a timeout says whether the child computed or was idle."""
        try:
            return self._child.line(limit_s / 2)
        except Lost as lost:
            if lost.status != "timeout":
                raise
        before = processor_s(self._child.pid)
        try:
            return self._child.line(limit_s / 2)
        except Lost as lost:
            if lost.status == "timeout":
                now = processor_s(self._child.pid)
                lost.reason = _late(limit_s, None if None in (before, now) else now - before, self._child.pid)
            raise
