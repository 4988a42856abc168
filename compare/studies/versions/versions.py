"""Compile the same configs by several releases of Triton and say what changed for the worse. No GPU, no times.

    python -m compare study versions --triton 3.6.0,3.7.1,3.8.0,3.9.0 --targets gfx942,gfx950,sm_90,sm_100

One `pip install --no-deps --target` per release, into a temporary folder in front of PYTHONPATH (about 700 MB each,
removed afterwards; the release that is installed is used where it is); a release that cannot be had is `unavailable`.
Every config that the committed heuristics of both DSLs choose for ROWS, and the two REBUILT regressions, becomes a line
of docs/results/versions.jsonl; lines that are there are not compiled again unless a kernel's source changed, so an
interrupted run goes on. The page docs/results/versions.md is written from the lines alone.
Exit codes: 0; 1 where a rebuilt regression was not flagged by itself; 2 usage; 130 interrupted, its lines kept.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from common import gpus
from common.gpus import Gpu
from compare.competitors import registry
from compare.exits import INTERRUPTED, USAGE, terminable
from compare.record import folder as run_folder
from compare.static.compile import Outcome, compile_in_child
from compare.studies.versions import page as versions_page
from compare.studies.versions.subjects import RELEASES, TARGETS, Subject, subjects

HELP = "the committed configs over several releases of Triton"

DATA = run_folder.ROOT / "docs" / "results" / "versions.jsonl"
PAGE = DATA.with_suffix(".md")
INSTALL_LIMIT_S = 600
# What a compiler says that was ended with its command, by a signal to the whole group: no word about the config.
INTERRUPTED_CHILD = tuple(f"ended with {-number}" for number in (signal.SIGINT, signal.SIGTERM))
FACTS = ("kernel", "num_warps", "num_stages", "registers", "spills", "shared_bytes", "matrix", "loads", "instructions")


class Unavailable(RuntimeError):
    """A release that pip cannot give; the message is pip's last line."""


@contextlib.contextmanager
def installed(release: str) -> Iterator[str | None]:
    """A folder with that release of triton, for PYTHONPATH; None where it is the installed one. Raises Unavailable."""
    if importlib.metadata.version("triton") == release:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix=f"triton-{release}-") as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        try:
            done = subprocess.run(
                [*command, f"triton=={release}"], capture_output=True, text=True, timeout=INSTALL_LIMIT_S
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"pip took more than {INSTALL_LIMIT_S} s") from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise Unavailable((lines or ["pip failed without a word"])[-1])
        yield folder


@contextlib.contextmanager
def _in_front(folder: str | None, cache: str) -> Iterator[None]:
    """Children started inside import triton from `folder`, and keep what they compile in `cache`."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "TRITON_CACHE_DIR")}
    path = [folder, before["PYTHONPATH"]] if folder else [before["PYTHONPATH"]]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    os.environ["TRITON_CACHE_DIR"] = cache
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def line_of(release: str, gpu: Gpu, subject: Subject, outcome: Outcome) -> dict:
    """One line of the data file: plain values."""
    launches = []
    for fact in outcome.facts:
        held = fact.get("occupancy") or {}
        more = {"programs": held.get("programs"), "redundancy": fact.get("matrix_redundancy")}
        launches.append({name: fact[name] for name in FACTS} | more)
    last = (outcome.log_tail.strip().splitlines() or [""])[-1]  # a compiler's first line says where, its last one what
    reason = outcome.reason if last in outcome.reason else f"{outcome.reason} {last}"[:300]
    told = {"status": str(outcome.status), "reason": reason, "launches": launches}
    return {"triton": release, "target": gpu.arch, **subject.as_dict(), **told}


def read_lines(path: Path) -> list[dict]:
    """Every whole line; a torn last one is dropped."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


class Sweep:
    """The lines of one command, written as they come; lanes share the file."""

    def __init__(self, path: Path, limit_s: float) -> None:
        self.path, self.limit_s = path, limit_s
        whole = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
        if whole[2]:  # torn: the command was killed while it wrote
            os.truncate(path, len(whole[0]) + len(whole[1]))
        self.lines = read_lines(path)
        self._done = {(line["triton"], line["target"], line["id"]) for line in self.lines}
        self._lock = threading.Lock()

    def missing(self, release: str, gpu: Gpu, wanted: Sequence[Subject]) -> list[Subject]:
        """What has no line yet."""
        return [one for one in wanted if (release, gpu.arch, one.id) not in self._done]

    def add(self, line: dict) -> None:
        """Keep and write one line."""
        with self._lock, open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self.lines.append(line)

    def compile(self, release: str, gpu: Gpu, wanted: Sequence[Subject], step) -> None:
        """One lane: all subjects of one target, by the triton that children import. step: called behind each."""
        left = self.missing(release, gpu, wanted)
        jobs = [subject.job() for subject in left]
        for subject, outcome in zip(left, compile_in_child(jobs, gpu, limit_s=self.limit_s), strict=True):
            if not outcome.reason.endswith(INTERRUPTED_CHILD):
                self.add(line_of(release, gpu, subject, outcome))
            step()


def _lanes(sweep: Sweep, release: str, wanted: dict[Gpu, list[Subject]], lanes: int, step) -> None:
    """Targets dealt over `lanes` threads, each with a child of its own."""
    targets = list(wanted)
    stopped = threading.Event()

    def work(mine: list[Gpu]) -> None:
        for gpu in mine:
            if not stopped.is_set():
                sweep.compile(release, gpu, wanted[gpu], step)

    threads = [threading.Thread(target=work, args=(targets[n::lanes],), daemon=True) for n in range(lanes)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        stopped.set()
        raise


def run(releases: Sequence[str], targets: Sequence[Gpu], kernels: str, out: Path, lanes: int, limit_s: float) -> Sweep:
    """Compile what is missing, release by release. Unavailable ones become a line without a subject."""
    sweep = Sweep(out, limit_s)
    wanted = {gpu: subjects(gpu, registry.select(kernels)) for gpu in targets}
    total = sum(len(sweep.missing(release, gpu, wanted[gpu])) for release in releases for gpu in targets)
    with Progress(console=Console(stderr=True)) as shown:
        task = shown.add_task("compiling", total=total)
        for release in releases:
            if not any(sweep.missing(release, gpu, wanted[gpu]) for gpu in targets):
                continue
            shown.update(task, description=f"triton {release}")
            try:
                with installed(release) as folder, tempfile.TemporaryDirectory() as cache, _in_front(folder, cache):
                    _lanes(sweep, release, wanted, lanes, lambda: shown.advance(task))
            except Unavailable as error:
                sweep.add({"triton": release, "target": "", "id": "", "status": "unavailable", "reason": str(error)})
    return sweep


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--triton", default=",".join(RELEASES), help="releases, oldest first")
    parser.add_argument("--targets", default=",".join(TARGETS), help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--kernels", default="triton/*,helion/*", help="globs of kernel ids")
    parser.add_argument("--out", type=Path, default=DATA, help="the data file; the page lies beside it")
    parser.add_argument("--lanes", type=int, default=min(os.cpu_count() or 1, 2))
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that one config may compile")
    parser.add_argument("--render", action="store_true", help="write the page from the lines that are there")


def main(args: argparse.Namespace) -> int:
    """0; 1 where a rebuilt regression was not flagged by itself; 2 usage; 130 interrupted, its lines kept."""
    if unknown := set(args.targets.split(",")) - set(TARGETS):
        print(f"--targets: found {', '.join(sorted(unknown))}, allowed {', '.join(TARGETS)}", file=sys.stderr)
        return USAGE
    releases, targets = args.triton.split(","), [gpus.resolve(TARGETS[name]) for name in args.targets.split(",")]
    code = 0
    lines = read_lines(args.out)
    if not args.render:
        try:
            with terminable():  # a release's folder is removed then too
                lines = run(releases, targets, args.kernels, args.out, args.lanes, args.limit).lines
        except KeyboardInterrupt:
            code, lines = INTERRUPTED, read_lines(args.out)
    wanted = {
        target.arch: [one.id for one in subjects(target, registry.select("triton/*,helion/*"))] for target in targets
    }
    page, missed = versions_page.render(lines, releases, wanted)
    args.out.with_suffix(".md").write_text(page, encoding="utf-8")
    print(
        f"{args.out.with_suffix('.md')}: {len(lines)} lines" + (f"; not flagged: {', '.join(missed)}" if missed else "")
    )
    return code or int(bool(missed))
