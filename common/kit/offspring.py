"""Every process that came of a child, found by its parents: its session, name and environment may be its own.

On Linux an orphan goes to the nearest ancestor that adopts orphans; `adopt` makes this process one. Elsewhere none is
found.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from functools import cache
from glob import glob
from pathlib import Path

from common.process import Lost, once, started

LINUX = sys.platform.startswith("linux")
ENTER = Path(__file__).resolve().parent / "enter.py"
END_S = 10.0  # in which the last of them must be gone
RELAY_S = 0.5  # in which orphans that end must have had their last one
FAST = 20  # times that processes are ended one by one, before all of their user are
_SUBREAPER, _DUMPABLE = 36, 4  # of linux/prctl.h


def adopt() -> None:
    """From now on orphans among this process's descendants become its children, and no process of the same user may
    trace it or read its memory."""
    _adopted(os.getpid())


@cache
def _adopted(me: int) -> frozenset[int]:
    """The children that it had before, which are nobody's offspring."""
    if not LINUX:
        return frozenset()
    control = ctypes.CDLL(None, use_errno=True).prctl
    if control(_SUBREAPER, 1, 0, 0, 0) or control(_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    with started() as ours:
        return frozenset(_children(me) - ours)


def left(pid: int, user: int | None = None) -> list[int]:
    """What lives below a child and is not it, orphans too; a zombie without threads does not live.

    user: that of the child alone, by which its orphans are told from those of others. Orphans that had ended when they
    were found may have started others before: it looks again until there is none, and after RELAY_S takes them for a
    process that goes on in the next one.
    """
    deadline = time.monotonic() + RELAY_S
    while True:
        # where it has ended, its number may be somebody's
        below = _below(pid) if pid in _children(os.getpid()) else set()
        orphans = {one for one in _orphans() if user is None or _user(one) in (user, None)}
        living = sorted(one for one in below | orphans if _lives(one))
        if living or not orphans or time.monotonic() > deadline:
            return living or sorted(orphans)


def end(pid: int, user: int | None = None) -> list[int]:
    """End a child and all that `left` finds; those that do not end."""
    begun, rounds = time.monotonic(), 0
    while True:
        if pid in _children(os.getpid()):
            _kill(pid)
        found, rounds = left(pid, user), rounds + 1
        for one in found:
            _kill(one)
        if not found or time.monotonic() > begun + END_S:
            return found
        if user is not None and rounds > FAST:
            _end_all_of(user)
        time.sleep(0.001)


def _end_all_of(user: int) -> None:
    """At one moment, as the user that they are of: none starts another meanwhile."""
    plan = json.dumps({"uid": user, "gid": user, "groups": [], "reading": False, "end": True})
    with contextlib.suppress(Lost, OSError):
        once([sys.executable, "-I", "-S", str(ENTER), plan], {}, b"", END_S)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _below(pid: int) -> set[int]:
    found, open_ = set(), [pid]
    while open_:
        new = _children(open_.pop()) - found
        found |= new
        open_ += new
    return found


def _orphans() -> set[int]:
    """Children of this process that it did not start, and all below them. One that has ended is reaped."""
    me = os.getpid()
    before = _adopted(me)
    with started() as ours:
        mine = _children(me) - ours - before
    for pid in mine:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return mine.union(*map(_below, mine))


def _children(pid: int) -> set[int]:
    """Of all threads of a process; where the kernel keeps no lists, by the parent that each process names."""
    if _lists():
        return {int(word) for path in glob(f"/proc/{pid}/task/*/children") for word in _read(path).split()}
    parents = {path.split("/")[2]: _after_name(path)[1:2] for path in glob("/proc/[0-9]*/stat")}
    return {int(one) for one, parent in parents.items() if parent == [str(pid)]}


@cache
def _lists() -> bool:
    return bool(glob("/proc/self/task/*/children"))


def _lives(pid: int) -> bool:
    """Whether a thread of it does: the first may have ended before the others."""
    states = [_after_name(path)[:1] for path in glob(f"/proc/{pid}/task/*/stat")]
    return any(state not in ([], ["Z"], ["X"]) for state in states)


def _user(pid: int) -> int | None:
    """Who runs a process; None where it has ended."""
    words = _read(f"/proc/{pid}/status").partition("\nUid:")[2].split()
    return int(words[0]) if words else None


def _after_name(path: str) -> list[str]:
    """The words of proc(5)'s `stat` from the state on: the name before it is in brackets and may hold any character."""
    return _read(path).rpartition(")")[2].split()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
