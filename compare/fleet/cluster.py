"""A Ray cluster: its nodes, and seats on them as actors. The one file that imports Ray.

The code on a node is the driver's: its packages are staged in a folder, which Ray carries by the hash of what is in it.
"""

import contextlib
import importlib.util
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from common import gpus
from compare.fleet.seat import PACKAGES, ROOT, Seat, Unfit

LOCAL, AUTO = "local", "auto"
START_LIMIT_S = 240.0  # a seat starts a process, copies the files, and imports torch in a probe
CONNECT_S = 10.0  # the head of a cluster must answer within this
START = "`ray start --head` on one machine, `ray start --address=HOST:6379` on the others; or --fleet local"
LABEL = "accelerator_type:"
OBJECT_STORE = 128 << 20  # bytes, of a cluster that this process starts: a row has some KB
MEMORY_PER_CORE = 2 << 30  # bytes that a seat without a GPU needs for torch, a worker and a compiler
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")


class NoFleet(RuntimeError):
    """Ray is not installed, or there is no such cluster; the message says what to do."""


class Lost(Exception):
    """A seat died or became unfit: its current share gives nothing more."""


@dataclass(frozen=True)
class Node:
    """A node as Ray describes it. kind: the row of the GPU table that its accelerator type names, or None."""

    id: str
    host: str
    gpus: int
    cores: int
    memory: int
    label: str
    kind: str | None

    @property
    def fits(self) -> int:
        """How many seats of one core the node has cores and memory for."""
        return max(min(self.cores, self.memory // MEMORY_PER_CORE), 1) if self.cores else 0


def kind_of(label: str) -> str | None:
    """The GPU that an accelerator type names, `AMD-Instinct-MI300X-OAM` -> mi300; None where the table has none."""
    for words in (label, label.rpartition("-")[0]):
        with contextlib.suppress(gpus.UnknownGpu):
            return gpus.resolve(words).name
    return None


def _node(plain: dict[str, Any]) -> Node:
    has = plain["Resources"]
    label = next((name.removeprefix(LABEL) for name in sorted(has) if name.startswith(LABEL)), "")
    return Node(
        id=plain["NodeID"],
        host=plain["NodeManagerHostname"],
        gpus=int(has.get("GPU", 0)),
        cores=int(has.get("CPU", 0)),
        memory=int(has.get("memory", 0)),
        label=label,
        kind=kind_of(label) if label else None,
    )


def ray() -> ModuleType:
    """The module ray, with usage reports off. Raises NoFleet."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray sends usage reports by default
    try:
        import ray
    except ImportError as error:
        how = "pip install '.[fleet]' in a checkout, or pip install 'ray>=2.49,<3'"
        raise NoFleet(f"--fleet: found no Ray ({error}), needed: {how}") from error
    return ray


class Cluster:
    """A joined cluster. `leave` ends its seats, and the cluster too if this process started it."""

    def __init__(self, address: str = AUTO, outside: Sequence[str] = ()) -> None:
        """outside: modules of foreign kernels, which are copied to the nodes too. Raises NoFleet."""
        found = ray()
        ensure_heard(address)
        self.address, self._ray, self._stage = address, found, tempfile.mkdtemp(prefix="diptych-fleet-")
        stage(Path(self._stage), outside)
        own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
        try:
            self._ray.init(
                address=address,
                runtime_env={"working_dir": self._stage},
                log_to_driver=False,
                logging_level="ERROR",
                **(own if address == LOCAL else {}),
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            shutil.rmtree(self._stage, ignore_errors=True)
            told = str(error).strip().partition("\n")[0]
            raise NoFleet(f"--fleet: found no cluster at {address} ({told}), needed: {START}") from error

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        self._ray.shutdown()
        shutil.rmtree(self._stage, ignore_errors=True)

    def nodes(self) -> list[Node]:
        """The nodes that are alive, sorted by host."""
        found = [_node(plain) for plain in self._ray.nodes() if plain["Alive"]]
        return sorted(found, key=lambda node: (node.host, node.id))

    def seats(self, wanted: Sequence[tuple[Node, int]], timed: bool, pretended: bool = False) -> "list[RemoteSeat]":
        """Seats, the wanted number on each node. Nothing is started yet."""
        hosts = [node.host for node, _ in wanted]
        found = []
        for node, count in wanted:
            where = node.host if hosts.count(node.host) == 1 else f"{node.host}.{node.id[:6]}"
            found += [RemoteSeat(self, node, f"{where}:{n}", timed, pretended, (n, count)) for n in range(count)]
        return found


def ensure_heard(address: str) -> None:
    """Raise NoFleet unless `address` is auto, local, or heard at HOST:PORT. Ray itself would retry for minutes."""
    if address in (AUTO, LOCAL):
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not (port.isascii() and port.isdecimal()):
        raise NoFleet(f"--fleet: found {address}, allowed local, or HOST:PORT of a cluster that this machine is in")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise NoFleet(f"--fleet: found nobody at {address} ({why}), needed: {START}") from error


def stage(folder: Path, outside: Sequence[str]) -> None:
    """Copy our packages and these modules into the folder that the nodes import from."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=LEFT_OUT)
    for module in dict.fromkeys(name.partition(".")[0] for name in outside):
        found = importlib.util.find_spec(module)
        if found is None or not found.origin:
            continue  # loading the kernel will report the missing module
        origin = Path(found.origin)
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, folder / module, ignore=LEFT_OUT, dirs_exist_ok=True)
        else:
            shutil.copy(origin, folder / origin.name)


@dataclass
class RemoteSeat:
    """The driver's side of a seat. `begin`, `open` and `do` raise Lost for any failure of the seat."""

    cluster: Cluster
    node: Node
    name: str
    timed: bool
    pretended: bool = False
    part: tuple[int, int] = (0, 1)
    work: Any = None
    silence_s: float = 3600.0
    facts: dict[str, Any] = field(default_factory=dict)
    starts: int = 0
    _actor: Any = None
    _facts: Any = None

    def start(self) -> None:
        """Create the actor and ask for its facts. Returns at once, so that all seats start in parallel."""
        ray = self.cluster._ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.starts += 1
        alone = {"num_gpus": 1} if self.timed else {}
        if self.timed and self.node.label:
            alone["accelerator_type"] = self.node.label
        kind = self.node.kind if self.pretended else None
        here = NodeAffinitySchedulingStrategy(self.node.id, soft=False)
        actor = ray.remote(Seat).options(num_cpus=1, max_restarts=0, scheduling_strategy=here, **alone)
        self._actor = actor.remote(self.name, self.timed, kind, self.part)
        self._facts = self._actor.facts.remote()

    def begin(self, limit_s: float = START_LIMIT_S) -> dict[str, Any]:
        """Wait for the seat's facts and return them. Raises Lost, also if the seat is unfit."""
        self.facts = self._answer(self._facts, limit_s)
        if self.facts["unfit"]:
            raise Lost(self.facts["unfit"])
        return self.facts

    def open(self, work: Any, silence_s: float) -> None:
        """Send the work to the seat. A share that yields nothing for silence_s seconds is lost. Raises Lost."""
        self.work, self.silence_s = work, silence_s
        self._ask("open", START_LIMIT_S, work)

    def do(self, share: Any) -> Iterator[Any]:
        """Yield what the seat finds for a share, as it arrives. Raises Lost."""
        ray = self.cluster._ray
        with self._heard():
            stream = self._actor.do.remote(share)
            while True:
                if not ray.wait([stream], timeout=self.silence_s)[0]:
                    raise Lost(f"said nothing for {self.silence_s:.0f} s")
                try:
                    found = next(stream)
                except StopIteration:
                    return
                yield ray.get(found)

    def again(self) -> bool:
        """Replace a lost actor by a new one with the same work. Returns whether that succeeded."""
        self.end()
        if self.node.id not in {node.id for node in self.cluster.nodes()}:
            return False
        try:
            self.start()
            self.begin()
            self.open(self.work, self.silence_s)
        except Lost:
            return False
        return True

    def end(self) -> None:
        """Kill the actor and the share that it works on."""
        with contextlib.suppress(Exception):
            self.cluster._ray.kill(self._actor)

    def close(self) -> None:
        """End the work and its processes."""
        with contextlib.suppress(Lost):
            self._ask("close", 10.0)

    def _ask(self, method: str, limit_s: float, *arguments: Any) -> Any:
        return self._answer(getattr(self._actor, method).remote(*arguments), limit_s)

    def _answer(self, asked: Any, limit_s: float) -> Any:
        ray = self.cluster._ray
        with self._heard():
            try:
                return ray.get(asked, timeout=limit_s)
            except ray.exceptions.GetTimeoutError:
                busy = f"no answer within {limit_s:.0f} s: other work of the cluster may have this seat's place"
                raise Lost(busy) from None

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """Turn every error of Ray into Lost with a message of one line."""
        try:
            yield
        except Unfit as error:  # Ray raises a subclass of the error that the actor raised
            raise Lost(_line(getattr(error, "cause", error))) from error
        except self.cluster._ray.exceptions.RayError as error:
            raise Lost(_line(getattr(error, "cause", None) or error)) from error


def _line(error: BaseException) -> str:
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return f"{type(error).__name__}: {text[:300]}"
