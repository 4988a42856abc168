"""Compile the same configs by releases of Triton and Helion and say what changed for the worse. No GPU, no times.

    python -m compare study versions --triton 3.6.0,3.7.1,3.8.0,3.9.0 --helion 1.5.0,1.5.1 --targets gfx942,sm_90

One `pip install --no-deps --target` per release, into a temporary folder in front of PYTHONPATH (a Triton about 700 MB,
removed afterwards; what is installed is used where it is); a release that cannot be had is `unavailable`. Every config
that the committed heuristics of both DSLs choose for ROWS, the native kernel's for sm_90 and the two REBUILT
regressions become lines of docs/results/versions.jsonl, by each Triton with the newest Helion and by the newest Triton
with each Helion. Lines that are there are not compiled again, so an interrupted run goes on; those of older sources
are dropped. Ctrl-C or SIGTERM ends the command behind the configs in hand, a second one at once. The page
docs/results/versions.md and the scripts of docs/results/versions/scripts, one a kind of regression, are written from
the lines. 316 configs take half an hour of two cores: 790 times 3 s of Helion's, most of it tracing, which asks the
Triton that is installed and is done anew for each, and 650 times 1 s of the others.
Exit codes: 0; 1 where a rebuilt regression was not flagged by itself; 2 usage; 130 interrupted, its lines kept.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from common import gpus
from common.gpus import Gpu
from common.process import cores, end_all
from compare.competitors import registry
from compare.exits import INTERRUPTED, USAGE, say, terminable
from compare.record import folder as run_folder
from compare.static.compile import Outcome, compile_in_child
from compare.studies.versions import page as versions_page
from compare.studies.versions import scripts as versions_scripts
from compare.studies.versions.subjects import HELIONS, KERNELS, RELEASES, TARGETS, Pair, Subject, pairs, steps, subjects

HELP = "the committed configs over several releases of Triton and Helion"

DATA = run_folder.ROOT / "docs" / "results" / "versions.jsonl"
PAGE = DATA.with_suffix(".md")
INSTALL_LIMIT_S = 600
# What a compiler says that was ended with its command, by a signal to the whole group: no word about the config.
INTERRUPTED_CHILD = tuple(f"ended with {-number}" for number in (signal.SIGINT, signal.SIGTERM))
POLL_S = 0.1
STOPPING = "it stops behind the configs in hand; a second signal ends them at once, without their lines"
FACTS = ("kernel", "num_warps", "num_stages", "registers", "spills", "shared_bytes", "matrix", "loads", "instructions")


class Unavailable(RuntimeError):
    """A release that pip cannot give; the message is pip's last line. release: {"triton": "3.9.0"} or its like."""

    def __init__(self, package: str, release: str, reason: str) -> None:
        super().__init__(reason)
        self.release = {package: release}


class Shelf:
    """Releases of packages, each installed into a folder when it is first asked for; `close` removes them all."""

    def __init__(self) -> None:
        self._stack, self._folders = contextlib.ExitStack(), {}

    def close(self) -> None:
        self._stack.close()

    def folder(self, package: str, release: str) -> str | None:
        """For PYTHONPATH; None where it is the installed one. Raises Unavailable."""
        if (package, release) not in self._folders:
            self._folders[package, release] = self._stack.enter_context(installed(release, package))
        return self._folders[package, release]

    @contextlib.contextmanager
    def compiling(self, pair: Pair, cache: str) -> Iterator[None]:
        """Children started inside compile by that pair, and keep what they compile in `cache`. Raises Unavailable."""
        named = [(package, release) for package, release in vars(pair).items() if release]
        with _in_front([path for one in named if (path := self.folder(*one))], cache):
            yield


@contextlib.contextmanager
def installed(release: str, package: str = "triton") -> Iterator[str | None]:
    """A folder with that release, for PYTHONPATH; None where it is the installed one. Raises Unavailable."""
    if importlib.metadata.version(package) == release:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix=f"{package}-{release}-") as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        try:
            done = subprocess.run(
                [*command, f"{package}=={release}"], capture_output=True, text=True, timeout=INSTALL_LIMIT_S
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(package, release, f"pip took more than {INSTALL_LIMIT_S} s") from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise Unavailable(package, release, (lines or ["pip failed without a word"])[-1])
        yield folder


@contextlib.contextmanager
def _in_front(folders: Sequence[str], cache: str) -> Iterator[None]:
    """Children started inside import from `folders` first, and keep what they compile in `cache`."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "TRITON_CACHE_DIR")}
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [before["PYTHONPATH"]])])
    os.environ["TRITON_CACHE_DIR"] = cache
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def line_of(pair: Pair, gpu: Gpu, subject: Subject, outcome: Outcome) -> dict:
    """One line of the data file: plain values."""
    launches = []
    for fact in outcome.facts:
        held = fact.get("occupancy") or {}
        more = {"programs": held.get("programs"), "redundancy": fact.get("matrix_redundancy")}
        launches.append({name: fact[name] for name in FACTS} | more)
    last = (outcome.log_tail.strip().splitlines() or [""])[-1]  # a compiler's first line says where, its last one what
    reason = outcome.reason if last in outcome.reason else f"{outcome.reason} {last}"[:300]
    told = {"status": str(outcome.status), "reason": reason, "launches": launches}
    return {**vars(pair), "target": gpu.arch, **subject.as_dict(), **told}


def read_lines(path: Path) -> list[dict]:
    """Every whole line; a torn last one is dropped."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def _written(line: dict) -> str:
    return json.dumps(line, separators=(",", ":")) + "\n"


class Sweep:
    """The lines of one command, written as they come; lanes share the file."""

    def __init__(self, path: Path, limit_s: float) -> None:
        self.path, self.limit_s = path, limit_s
        whole = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
        if whole[2]:  # torn: the command was killed while it wrote
            os.truncate(path, len(whole[0]) + len(whole[1]))
        self.lines = read_lines(path)
        self.stopped = threading.Event()  # no further config is begun
        self.cut = threading.Event()  # what compilers say from now on is no word about their config
        self._lock = threading.Lock()

    def drop_stale(self, current: dict[str, set[str]]) -> int:
        """Lines of other sources or configs than today's (ids by target), of no Helion that is named, and of releases
        that could not be had: how many. The file is written anew, or left alone where it holds none."""
        kept = [line for line in self.lines if "helion" in line and line["id"] in current.get(line["target"], ())]
        dropped = len(self.lines) - len(kept)
        if dropped:
            new = self.path.with_suffix(".new")
            new.write_text("".join(map(_written, kept)), encoding="utf-8")
            new.replace(self.path)
            self.lines = kept
        return dropped

    def missing(self, pair: Pair, gpu: Gpu, wanted: Sequence[Subject]) -> list[Subject]:
        """What has no line yet by what compiles it: `pair`, without Helion where it takes no part."""
        done = {(line["triton"], line["helion"], line["target"], line["id"]) for line in self.lines}
        return [one for one in wanted if (*vars(_by(pair, one)).values(), gpu.arch, one.id) not in done]

    def add(self, line: dict) -> None:
        """Keep and write one line."""
        with self._lock, open(self.path, "a", encoding="utf-8") as file:
            file.write(_written(line))
            self.lines.append(line)

    def compile(self, pair: Pair, gpu: Gpu, wanted: Sequence[Subject], step: Callable[[], object]) -> None:
        """All subjects of one target in one child. step: called behind each."""
        left = self.missing(pair, gpu, wanted)
        jobs = [subject.job() for subject in left]
        with contextlib.closing(compile_in_child(jobs, gpu, limit_s=self.limit_s)) as outcomes:  # the child ends too
            for subject in left:
                if self.stopped.is_set():
                    return
                outcome = next(outcomes)
                if self.cut.is_set():
                    return
                if not outcome.reason.endswith(INTERRUPTED_CHILD):
                    self.add(line_of(_by(pair, subject), gpu, subject, outcome))
                step()


def _by(pair: Pair, subject: Subject) -> Pair:
    return pair if subject.is_helion else Pair(pair.triton)


Wanted = dict[Gpu, list[Subject]]


def _parts(wanted: Wanted) -> list[tuple[Gpu, list[Subject]]]:
    """A child each: a target's Helion, which takes longer, before its other kernels."""
    found = [
        (gpu, [one for one in ones if one.is_helion is helion])
        for helion in (True, False)
        for gpu, ones in wanted.items()
    ]
    return [(gpu, ones) for gpu, ones in found if ones]


def _lanes(
    sweep: Sweep, pair: Pair, wanted: Wanted, lanes: int, step: Callable[[], object], tell: Callable[[str], object]
) -> None:
    """Threads that take part by part, each part in a child of its own. tell: hears what a signal does."""
    parts = deque(_parts({gpu: sweep.missing(pair, gpu, ones) for gpu, ones in wanted.items()}))

    ends: list[threading.Event] = []

    def work() -> None:
        """Its end is in the list before it takes a part, and by itself: a signal may break off Thread.start()."""
        ended = threading.Event()
        ends.append(ended)
        try:
            with contextlib.suppress(IndexError):
                while True:
                    gpu, mine = parts.popleft()
                    sweep.compile(pair, gpu, mine, step)
        finally:
            ended.set()

    try:
        for _ in range(lanes):
            threading.Thread(target=work, daemon=True).start()
        while len(ends) < lanes:
            time.sleep(POLL_S)
        _wait(ends)
    except KeyboardInterrupt:
        try:
            parts.clear()
            sweep.stopped.set()
            tell(STOPPING)
            _wait(ends)  # a child that went on would fill a cache that is removed, and outlive the command
        except KeyboardInterrupt:
            sweep.cut.set()
            end_all()
            _wait(ends)
        raise


def _wait(ends: Sequence[threading.Event]) -> None:
    """Until all are set. Not by Thread.join, which takes a thread for ended once a signal broke it off (Python 3.11),
    and a moment at a time: a signal that comes just before a wait is heard when that wait is over."""
    for ended in ends:
        while not ended.wait(POLL_S):
            pass


def run(sweep: Sweep, shelf: Shelf, asked: Sequence[Pair], wanted: Wanted, lanes: int) -> None:
    """Compile what is missing, pair by pair. A release that cannot be had becomes a line without a subject. A
    KeyboardInterrupt comes behind the configs in hand, a second one at once."""
    todo = {
        (_by(pair, one), gpu, one.id)
        for pair in asked
        for gpu, ones in wanted.items()
        for one in sweep.missing(pair, gpu, ones)
    }
    with Progress(console=Console(stderr=True)) as shown:
        tell = functools.partial(shown.console.print, markup=False, soft_wrap=True)
        task = shown.add_task("compiling", total=len(todo))
        for pair in asked:
            if not any(sweep.missing(pair, gpu, ones) for gpu, ones in wanted.items()):
                continue
            shown.update(task, description=f"triton {pair.triton}, helion {pair.helion}")
            try:
                with tempfile.TemporaryDirectory() as cache, shelf.compiling(pair, cache):
                    _lanes(sweep, pair, wanted, lanes, lambda: shown.advance(task), tell)
            except Unavailable as error:
                about = {"triton": "", "helion": "", **error.release, "target": "", "id": ""}
                sweep.add(about | {"status": "unavailable", "reason": str(error)})


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--triton", default=",".join(RELEASES), help="releases, oldest first")
    parser.add_argument("--helion", default=",".join(HELIONS), help="releases, oldest first")
    parser.add_argument("--targets", default=",".join(TARGETS), help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--kernels", default=KERNELS, help="globs of kernel ids")
    parser.add_argument("--out", type=Path, default=DATA, help="the data file; page and scripts lie beside it")
    parser.add_argument("--lanes", type=int, default=min(cores(), 2))
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that one config may compile")
    parser.add_argument("--render", action="store_true", help="write the page from the lines that are there")


def main(args: argparse.Namespace) -> int:
    """0; 1 where a rebuilt regression was not flagged by itself; 2 usage; 130 interrupted, its lines kept."""
    if unknown := set(args.targets.split(",")) - set(TARGETS):
        print(f"--targets: found {', '.join(sorted(unknown))}, allowed {', '.join(TARGETS)}", file=sys.stderr)
        return USAGE
    try:
        kernels = registry.select(args.kernels)
    except registry.UnknownKernel as error:
        say(error)
        return USAGE
    every = {arch: subjects(gpus.resolve(name), registry.select(KERNELS)) for arch, name in TARGETS.items()}
    wanted = {arch: [one for one in every[arch] if one.kernel in kernels] for arch in args.targets.split(",")}
    releases, helions = args.triton.split(","), args.helion.split(",")
    asked, sweep, shelf, code = pairs(releases, helions), Sweep(args.out, args.limit), Shelf(), 0
    folder = args.out.with_suffix("") / "scripts"
    sweep.drop_stale({arch: {one.id for one in ones} for arch, ones in every.items()})
    try:
        with terminable():  # a release's folder is removed then too
            if not args.render:
                by_gpu = {gpus.resolve(TARGETS[arch]): ones for arch, ones in wanted.items()}
                run(sweep, shelf, asked, by_gpu, args.lanes)
                versions_scripts.write(folder, _worst(sweep, releases, helions), every, shelf)
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        shelf.close()
    asked_for = {arch: {one.id: one.is_helion for one in ones} for arch, ones in wanted.items()}
    found = versions_scripts.found(folder, _worst(sweep, releases, helions), args.out.parent)
    args.out.with_suffix(".md").write_text(
        versions_page.render(sweep.lines, releases, helions, asked_for, found), encoding="utf-8"
    )
    missed = versions_page.unflagged(versions_page.by_subject(sweep.lines), steps(releases, helions))
    told = f"; not flagged: {', '.join(missed)}" if missed else ""
    print(f"{args.out.with_suffix('.md')}: {len(sweep.lines)} lines{told}")
    return code or int(bool(missed))


def _worst(sweep: Sweep, releases: Sequence[str], helions: Sequence[str]) -> list[versions_page.Regression]:
    """Of each kind of regression the worst."""
    found = versions_page.regressions(versions_page.by_subject(sweep.lines), steps(releases, helions))
    return list(versions_page.worst_of_kinds(found).values())
