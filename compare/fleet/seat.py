"""What stands on a node: one GPU or one core, which says who it is and does shares of a work. Knows nothing of Ray.

A seat that times is alone on its GPU, before a share and behind it: where another process shows there, or the disk is
full, the share does not count and the seat is of no use.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from common import versions
from common.process import Lost, cores, keep_to, once

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("common", "compare", "dsl_triton", "dsl_helion")
PROBE_LIMIT_S = 180.0  # importing torch from a busy network disk takes minutes
LEAVING_S = 30.0  # that what a killed seat left on the GPU may take to end
DISK_BYTES = 256 << 20  # below, compilers fail for want of room, and a row would say that its kernel did


class Unfit(RuntimeError):
    """The seat must not work now; the message says why. What it did of a share since `do` does not count."""


class Work(Protocol):
    """What a seat does. `do` finds something of a share at a time."""

    def open(self, seat: str) -> None: ...

    def do(self, share: Any) -> Iterator[Any]: ...

    def close(self) -> None: ...


def code() -> str:
    """16 hex digits over the project's files here: a seat has the driver's."""
    digest = hashlib.sha256()
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class Seat:
    """One GPU of a node (timed), or one core of it. name: what rows call it. pretended: a GPU that it is not, whose
    cells are checked and compiled as those of an absent one. part: which of how many seats of its node it is.

    A seat that times keeps to its part of the cores, for torch starts a thread a core: two seats with all 32 cores each
    took 5.0 s a cell of 128 decodes over 8k keys, where one with 16 took 2.6.
    """

    def __init__(self, name: str, timed: bool, pretended: str | None = None, part: tuple[int, int] = (0, 1)) -> None:
        self.name, self._timed, self._pretended = name, timed, pretended
        self._work: Work | None = None
        self._address, self._cores = "", cores()
        if timed:  # Ray gives an actor of one core one thread; a plain run has those of its host
            os.environ.pop("OMP_NUM_THREADS", None)
            # where seats share the cores each has its part of them all the same: all seats' are those of the node
            self._cores = cores() if keep_to(*part) else max(cores() // part[1], 1)

    def facts(self) -> dict[str, Any]:
        """Who it is, in plain values; `unfit` says why it may not work, empty where it may. cores: its part of them."""
        told: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "cores": self._cores}
        told |= {"gpu": None, "software": {}, "code": code(), "unfit": ""}
        try:
            versions.ensure("compare", welcome=versions.PACKAGES)
            told |= self._probed()
            self._address = told.get("address", "")
            if self._timed and not self._pretended and told["gpu"] is None:
                raise Unfit("torch sees no GPU here")
            self._wait_alone()
        except (Unfit, versions.Unsuitable, Lost) as error:
            told["unfit"] = str(error)
        return told

    def open(self, work: Work) -> None:
        """Take a work; the one before it ends."""
        self.close()
        self._work = work
        work.open(self.name)

    def do(self, share: Any) -> Iterator[Any]:
        """What the work finds of a share. Raises Unfit, also behind it: then nothing of it counts."""
        self._ensure_alone()
        yield from (found for found in self._work.do(share))  # Ray sends into it, and a work may be a plain iterator
        self._ensure_alone()

    def close(self) -> None:
        """End the work and its processes."""
        if self._work is not None:
            self._work.close()
            self._work = None

    def _probed(self) -> dict[str, Any]:
        """Asked of a child: this process makes no context on the GPU."""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        from compare.process import children  # imports torch

        words = [*children.command(children.PROBE), "gpu" if self._timed else "cpu"]
        status, out, err = once(words, environment, b"", PROBE_LIMIT_S)
        if status:
            raise Unfit(f"the probe exited with {status}: {err.decode(errors='replace').strip()[-500:]}")
        return json.loads(out.decode().strip().rpartition("\n")[2])

    def _wait_alone(self) -> None:
        """What a killed seat left behind ends with what it is at."""
        end = time.monotonic() + LEAVING_S
        while True:
            try:
                return self._ensure_alone()
            except Unfit:
                if time.monotonic() > end:
                    raise
                time.sleep(1.0)

    def _ensure_alone(self) -> None:
        """Raise Unfit where something else is on the GPU, or the disk is full."""
        free = shutil.disk_usage(tempfile.gettempdir()).free
        if free < DISK_BYTES:
            raise Unfit(f"{free >> 20} MiB of disk are free for temporary files, needed {DISK_BYTES >> 20}")
        if self._timed and self._address:
            others = strangers(_users(self._address), tree(os.getpid()))
            if others:
                told = "; ".join(f"process {pid} with {mib} MiB" for pid, mib in others)
                raise Unfit(f"others use the GPU: {told}")


def _users(address: str) -> list[tuple[int, int]]:
    """(pid, MiB) of what uses the GPU; nothing where nobody tells."""
    from compare.bench.clocks import vendor  # imports torch

    try:
        return vendor().users(address)
    except Exception:  # amdsmi: no package, no driver, no right to ask
        return []


def strangers(found: list[tuple[int, int]], own: set[int]) -> list[tuple[int, int]]:
    """Those of `found` that are not our own processes (the first of which is this one).

    The driver may count processes otherwise than this container does: where it names none of ours, but we have
    children, only more of them than we have are strangers.
    """
    others = [one for one in found if one[0] not in own]
    if len(others) == len(found) and len(own) > 1:
        return others[len(own) - 1 :]
    return others


def tree(pid: int) -> set[int]:
    """A process and all below it, by what the system's table of processes says."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()  # its name may hold anything
        except OSError:  # it has just ended
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found, fresh = {pid}, {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found
