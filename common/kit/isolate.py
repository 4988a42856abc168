"""A kernel in a process of its own: time limit, crash, out of memory, flood, stray processes -> a status.

The process runs `common/kit/isolated.py` by its path. Whatever it does, `Child.ask` returns a Reply within its limit,
and the next question goes to a fresh process where the last one is lost. Every process that it left is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TOKEN = "DIPTYCH_ISOLATED"  # in the environment of the child and of all that it starts
POLL_S = 0.1
LOG_TAIL = 2000
LONGEST_REPLY = 2**20


@dataclass(frozen=True)
class Limits:
    """start_s: to import torch and to begin. call_s: one call, with its compiling; importing the kernel counts as one.
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


class _Lost(Exception):
    """The process can answer no more."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class _Ended(_Lost):
    """The process is no more."""


def _ended(code: int) -> _Ended:
    """What an exit code of a process that should have gone on means."""
    if code == -signal.SIGKILL:
        return _Ended("oom", "ended by SIGKILL, as the system does when memory is short")
    if code < 0:
        return _Ended("crash", f"ended by {signal.Signals(-code).name}")
    return _Ended("crash", f"ended the process with exit code {code} in the middle of a call")


def stray(token: str, but: int) -> list[int]:
    """Processes that carry the token, besides `but` and this one. Linux only; elsewhere none are found."""
    mark, found = f"{TOKEN}={token}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return [pid for pid in found if pid not in (but, os.getpid())]


class Child:
    """One process at a time, started when it is asked something.

    interpret: run common/interpreter first and set TRITON_INTERPRET=1. threads: what torch may use in the child.
    """

    def __init__(self, limits: Limits | None = None, *, interpret: bool = False, threads: int | None = None) -> None:
        self.limits, self._interpret, self._threads = limits or Limits(), interpret, threads
        self._process: subprocess.Popen[bytes] | None = None
        self.started = 0  # processes so far

    def ask(self, request: dict[str, Any], limit_s: float | None = None) -> Reply:
        """One question, one answer; never raises for what the child does."""
        nonce = secrets.token_hex(8)
        try:
            limit = self.limits.call_s if limit_s is None else limit_s
            self._put(json.dumps(request | {"nonce": nonce}).encode() + b"\n", nonce)
            said = self._parse(self._line(limit), nonce, alone=True)
        except _Lost as lost:
            tail = self._tail.decode(errors="replace").strip().rsplit("\n", 1)[-1][-300:]
            reason = lost.reason + (f"; its last line: {tail}" if tail and lost.status == "crash" else "")
            self.close()
            return Reply(lost.status, reason)
        left = stray(self._token, self._process.pid)
        if left:
            self.close()
            return Reply("crash", f"left {len(left)} process(es) running behind the call")
        return Reply(said.pop("status"), said.pop("reason", ""), said)

    def close(self) -> None:
        """End the process and all that it started."""
        if self._process is None:
            return
        for pid in [*stray(self._token, self._process.pid), self._process.pid]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        self._channel.close()
        self._process = None

    def _put(self, request: bytes, nonce: str) -> None:
        """Hand the question to a process that says it has it. Raises _Lost.

        One that answered the last question and ended behind its answer is replaced: the next kernel is not to blame.
        """
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, _Ended):
                self._channel.sendall(request)
                self._parse(self._line(self.limits.call_s), nonce)
                return
            self.close()
        self._start()
        try:
            self._channel.sendall(request)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _Lost("crash", "ended the process before the call") from error
        self._parse(self._line(self.limits.start_s), nonce)

    def _start(self) -> None:
        self._token, self._buffer, self._tail = secrets.token_hex(16), b"", b""
        self._channel, theirs = socket.socketpair()
        environment = os.environ | {TOKEN: self._token, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        if self._interpret:
            environment["TRITON_INTERPRET"] = "1"
        if self._threads is not None:
            environment["OMP_NUM_THREADS"] = str(self._threads)
        interpreter = str(HERE.parent / "interpreter" / "__init__.py") if self._interpret else ""
        command = [sys.executable, "-P", str(HERE / "isolated.py"), str(theirs.fileno()), interpreter]
        self._process = subprocess.Popen(
            [*command, str(self.limits.memory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._channel.setblocking(True)
        self.started += 1

    def _line(self, limit: float) -> bytes:
        """The next line of the channel. Raises _Lost."""
        end, flood = time.monotonic() + limit, 0
        log, channel = self._process.stdout.fileno(), self._channel
        watched = [log, channel]
        while b"\n" not in self._buffer:
            ready, _, _ = select.select(watched, [], [], POLL_S)
            if log in ready:
                part = self._drain(log)
                flood += part
                watched = watched if part else [channel]
            if flood > self.limits.flood:
                raise _Lost("crash", f"flooded its output: more than {self.limits.flood} bytes in one call")
            if channel in ready:
                part = channel.recv(65536)
                self._buffer += part
                if b"\n" in self._buffer:
                    continue
                if not part or len(self._buffer) > LONGEST_REPLY:
                    self._gone()
                    raise _Lost("crash", "closed or flooded the channel to the kit")
            if not ready and self._process.poll() is not None:
                raise _ended(self._process.returncode)
            if time.monotonic() > end:
                raise _Lost("timeout", f"no answer within {limit:.0f} s")
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _gone(self) -> None:
        """Raise what an exit code says, where the process is about to end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
            raise _ended(self._process.returncode)

    def _drain(self, log: int) -> int:
        part = os.read(log, 65536)
        self._tail = (self._tail + part)[-LOG_TAIL:]
        return len(part)

    def _parse(self, line: bytes, nonce: str, *, alone: bool = False) -> dict[str, Any]:
        """A line that the child sent to the question with this nonce; anything else, or anything behind one that is to
        stand `alone`, is the kernel's doing. Raises _Lost."""
        try:
            said = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _Lost("crash", "wrote into the channel to the kit") from error
        known = isinstance(said, dict) and said.pop("nonce", None) == nonce and isinstance(said.get("status"), str)
        if not known or (alone and self._buffer):
            raise _Lost("crash", "wrote into the channel to the kit")
        return said
