"""A seat on a node: one GPU or one CPU core that does shares of a work. It does not import Ray.

A seat that times checks before and after each share that no other process uses its GPU. If one does, or the disk is
full, the share does not count and the seat is unfit.
"""

import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import versions
from common.process import Lost, cores, keep_to, once
from compare.identity import FOLDER as ROOT
from compare.identity import code

PACKAGES = ("common", "compare", "dsl_triton", "dsl_helion")
PROBE_LIMIT_S = 180.0  # importing torch from a busy network disk takes minutes
LEAVING_S = 30.0  # the processes of a killed seat may take so long to end
DISK_BYTES = 256 << 20  # with less, compilers fail and the row would blame the kernel


class Unfit(RuntimeError):
    """The seat must not work; the message says why. The current share does not count."""


class Seat:
    """One GPU of a node (timed) or one CPU core. name: appears in rows. pretended: a GPU to check and compile for, not
    timed. part: (index, count) among the seats of its node.

    A timed seat pins itself to its part of the cores: torch starts a thread for each core, and two seats with all cores
    each took twice the time for a cell.
    """

    def __init__(self, name: str, timed: bool, pretended: str | None = None, part: tuple[int, int] = (0, 1)) -> None:
        self.name, self._timed, self._pretended = name, timed, pretended
        self._work: Any = None  # compare.fleet.run.SeatedRows, which imports torch
        self._address, self._cores = "", cores()
        if timed:  # Ray sets it to 1 for an actor of one core
            os.environ.pop("OMP_NUM_THREADS", None)
            # without pinning, count an equal part of the cores
            self._cores = cores() if keep_to(*part) else max(cores() // part[1], 1)

    def facts(self) -> dict[str, Any]:
        """The seat's host, pid, cores, GPU, software and code hash; `unfit`: why it must not work, or empty."""
        told: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "cores": self._cores}
        told |= {"gpu": None, "software": {}, "code": code(PACKAGES), "unfit": ""}
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

    def open(self, work: Any) -> None:
        """Open a work; ends the work before it."""
        self.close()
        self._work = work
        work.open(self.name)

    def do(self, share: Any) -> Iterator[Any]:
        """Yield the results of a share. Raises Unfit before or after it; then none of its results count."""
        self._ensure_alone()
        yield from (found for found in self._work.do(share))  # Ray sends into it, and a work may be a plain iterator
        self._ensure_alone()

    def close(self) -> None:
        """End the work and its processes."""
        if self._work is not None:
            self._work.close()
            self._work = None

    def _probed(self) -> dict[str, Any]:
        """The probe's facts. A child asks, because this process must create no GPU context."""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        from compare.process import children  # imports torch

        words = [*children.command(children.PROBE), "gpu" if self._timed else "cpu"]
        status, out, err = once(words, environment, b"", PROBE_LIMIT_S)
        if status:
            raise Unfit(f"the probe exited with {status}: {err.decode(errors='replace').strip()[-500:]}")
        return json.loads(out.decode().strip().rpartition("\n")[2])

    def _wait_alone(self) -> None:
        """Wait until the processes of a killed seat have ended. Raises Unfit."""
        end = time.monotonic() + LEAVING_S
        while True:
            try:
                return self._ensure_alone()
            except Unfit:
                if time.monotonic() > end:
                    raise
                time.sleep(1.0)

    def _ensure_alone(self) -> None:
        """Raise Unfit if another process uses the GPU or the disk is full."""
        free = shutil.disk_usage(tempfile.gettempdir()).free
        if free < DISK_BYTES:
            raise Unfit(f"{free >> 20} MiB of disk are free for temporary files, needed {DISK_BYTES >> 20}")
        if self._timed and self._address:
            others = strangers(_users(self._address), tree(os.getpid()))
            if others:
                told = "; ".join(f"process {pid} with {mib} MiB" for pid, mib in others)
                raise Unfit(f"others use the GPU: {told}")


def _users(address: str) -> list[tuple[int, int]]:
    """(pid, MiB) of each process on the GPU; empty if the driver does not tell."""
    from compare.bench.clocks import vendor  # imports torch

    try:
        return vendor().users(address)
    except Exception:  # amdsmi: no package, no driver, no right to ask
        return []


def strangers(found: list[tuple[int, int]], own: set[int]) -> list[tuple[int, int]]:
    """The processes of `found` that are not ours.

    The driver may number processes differently than this container. If it names none of ours, assume that as
    many of them are ours as we have children.
    """
    others = [one for one in found if one[0] not in own]
    if len(others) == len(found) and len(own) > 1:
        return others[len(own) - 1 :]
    return others


def tree(pid: int) -> set[int]:
    """The pid and its descendants, from /proc."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()  # a process name may contain spaces and brackets
        except OSError:  # the process has just ended
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found, fresh = {pid}, {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found
