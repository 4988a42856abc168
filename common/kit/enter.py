"""Become another user for good, and then another program: what stands between a judge that is root and a kernel.

Run by its path as `python -I -S enter.py PLAN PROGRAM...`: standard library only, and nothing of the environment's or
of a folder's. PLAN is JSON: uid, gid, groups, `reading` (whether it keeps the one capability to read and search what is
closed to others), and `look`: paths to open as that user. With `look` those that do not open are printed, one a line,
and no program is run. With `end` every other process of that user is ended, and none is run.
"""

import ctypes
import json
import os
import resource
import signal
import stat
import sys

MOST_PROCESSES = 8192  # and threads, of a user that nobody else is
_KEEP_CAPABILITIES, _NO_NEW_PRIVILEGES, _AMBIENT, _RAISE = 8, 38, 47, 2  # of linux/prctl.h
_VERSION, _READ_SEARCH = 0x20080522, 2  # of linux/capability.h
libc = ctypes.CDLL(None, use_errno=True)


def call(name, *arguments):
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)


def become(uid, gid, groups, reading):
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = MOST_PROCESSES if hard == resource.RLIM_INFINITY else min(hard, MOST_PROCESSES)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    call("prctl", _KEEP_CAPABILITIES, int(reading), 0, 0, 0)
    os.setresuid(uid, uid, uid)
    if reading:
        bit = 1 << _READ_SEARCH
        call("capset", (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0))
        call("prctl", _AMBIENT, _RAISE, _READ_SEARCH, 0, 0)
    call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if set(os.getresuid() + os.getresgid()) != {uid, gid}:
        raise PermissionError("another user could not be become")


def closed(path):
    """Whether it does not open: a device to write, anything else to read."""
    try:
        device = stat.S_ISCHR(os.stat(path).st_mode)
        os.close(os.open(path, os.O_RDWR if device else os.O_RDONLY))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def main():
    plan, program = json.loads(sys.argv[1]), sys.argv[2:]
    become(plan["uid"], plan["gid"], plan["groups"], plan["reading"])
    if plan.get("end"):
        os.kill(-1, signal.SIGKILL)
        return
    if not program:
        print(*filter(closed, plan["look"]), sep="\n")
        return
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
