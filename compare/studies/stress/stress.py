"""Whether bits change from launch to launch where wgmma takes P from registers. On the sm_90 GPU that is here.

    python -m compare study stress [--budget 300] [--kernels 'triton/*'] [--out DIR]

Every config that trees and defaults give for a prompt, and a sample of each kernel's space, is launched 2,000 times on
one prompt behind a long context; docs/results/<gpu>/stress has a line a config, by the versions of torch, triton and
ptxas, and a page of these lines. A config that is done by the same versions from the same sources is not launched
again, so the same command goes on. Each process ends with a config that hangs. For another ptxas set TRITON_PTXAS_PATH
(TRITON_PTXAS_BLACKWELL_PATH from triton 3.9 on). What fails belongs into common/spec/toolchain.py: REFUSED.
Exit codes: 0 no bit changed; 1 one did, or a config crashed or was wrong; 2 usage; 3 no such GPU; 5 one without wgmma.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common import gpus
from common.process import cores
from common.spec import SpecError
from common.spec.toolchain import dotted, toolchain
from compare.competitors import registry
from compare.exits import NO_GPU, NOTHING, OK, USAGE, WRONG, say, terminable
from compare.process import children
from compare.process.pool import Jobs, Lane, Pool
from compare.record import folder as run_folder
from compare.record.store import Busy, Lines
from compare.studies.stress import page as stress_page
from compare.studies.stress.subjects import CHOSEN, KERNELS, Subject, subjects
from compare.workloads import GrammarError, Workload, parse_lens, parse_shape
from compare.workloads.numbers import at_least_one, positive

HELP = "whether bits change where wgmma takes P from registers"
ARCH = "sm_90"
LINES = "stress.jsonl"
SILENCE_S = 90.0  # of a process: code generation and compilation of one config, or CHUNK launches of a slow one


def here(arch: str) -> dict[str, str]:
    """The versions that stand in every line."""
    found, made = run_folder.versions(), toolchain(arch)
    return {name: found[name] for name in ("torch", "triton", "helion")} | {"ptxas": dotted(made.ptxas)}


def read(path: Path) -> list[dict[str, Any]]:
    """Every whole line; a torn last one is dropped."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line]


class Kept:
    """The lines of a folder, and which of the wanted configs the present versions have still to launch."""

    def __init__(self, path: Path, wanted: Sequence[Subject], versions: dict[str, str]) -> None:
        self._file, self.versions = Lines(path), versions
        self.lines, self.wanted = read(path), {one.id: one for one in wanted}

    @property
    def current(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["id"] in self.wanted]

    @property
    def mine(self) -> list[dict[str, Any]]:
        """Of these versions."""
        return [line for line in self.current if stress_page.key_of(line) == stress_page.key_of(self.versions)]

    def missing(self) -> list[Subject]:
        done = {line["id"] for line in self.mine}
        return [one for name, one in self.wanted.items() if name not in done]

    def add(self, name: str, fields: dict[str, Any]) -> None:
        one = self.wanted[name]
        about = {"id": name, "kernel": one.kernel, "config": one.config, "origin": one.origin, "source": one.source}
        line = self.versions | about | {"workload": one.workload, "launches": one.launches} | fields
        self._file.append(json.dumps(line, separators=(",", ":")))
        self.lines.append(line)

    def close(self) -> None:
        self._file.close()


Heard = tuple[dict[str, Any], dict[str, Any]]  # a job and an event of it
MakeLane = Callable[[], Callable[[Iterator[dict[str, Any]]], Iterable[Heard]]]


def launch_all(kept: Kept, make: MakeLane, lanes: int, deadline: float, console: Console) -> None:
    """Every missing config, the chosen ones before the sampled; a line each, as it ends. Nothing begins behind the
    deadline (time.time())."""
    jobs = [
        {"id": one.id, "kernel": one.kernel, "config": one.config, "launches": one.launches,
         "late": int(one.origin != CHOSEN)}
        for one in kept.missing()
    ]  # fmt: skip
    done: set[str] = set()
    pool = Pool([make() for _ in range(min(lanes, len(jobs)))], Jobs(jobs), deadline=deadline)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as shown:
        task = shown.add_task("stress", total=len(jobs))
        try:
            for job, event in pool.results():
                if job["id"] in done:  # its process was lost behind its line
                    continue
                done.add(job["id"])
                lost = {name: event[name] for name in ("status", "reason") if name in event}
                fields = event.get("fields", lost)
                kept.add(job["id"], fields)
                if fields["status"] not in stress_page.FINE:
                    shown.console.print(f"{job['kernel']}: {fields['status']}: {fields['reason']}", markup=False)
                shown.update(task, advance=1, description=job["kernel"])
        finally:
            pool.close()


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--gpu", default="auto", help="assert that this GPU is here (default: the one that is)")
    new.add_argument("--kernels", default=KERNELS, help="comma-separated ids or globs")
    new.add_argument("--workload", default="q2ks8k", help="a batch of prompts (default q2ks8k)")
    new.add_argument("--shape", default="32:8:128", help="heads:kv_heads:head_size or a model (default 32:8:128)")
    new.add_argument("--dtype", default="bf16", help="bf16 (default) or fp16")
    new.add_argument("--launches", type=at_least_one, default=2000, help="of each config (default 2000)")
    new.add_argument("--samples", type=int, default=6, help="configs of each kernel's space (default 6)")
    new.add_argument("--seed", type=int, default=0, help="of the sample (default 0)")
    new.add_argument("--budget", type=positive, default=math.inf, metavar="S", help="no config begins after so many s")
    new.add_argument("--limit", type=positive, default=60.0, metavar="S", help="of one config's launches (default 60)")
    new.add_argument("--jobs", type=at_least_one, help="processes (default: half the cores, 8 at most)")
    new.add_argument("--out", type=Path, metavar="DIR", help="folder (default docs/results/<gpu>/stress)")
    new.add_argument("--render", action="store_true", help="write the page from the lines that are there; no GPU")


def main(asked: argparse.Namespace) -> int:
    """0 no bit changed; 1 one did, or a config crashed or was wrong; 2 usage; 3 no such GPU; 5 one without wgmma."""
    begin, console, present = time.time(), Console(stderr=True), gpus.detect()
    try:
        meant = present if asked.gpu == "auto" else gpus.resolve(asked.gpu)
        kernels = [one for one in registry.select(asked.kernels) if registry.is_own(one) and not one.endswith("auto")]
        shape = parse_shape(asked.shape, 16, asked.dtype)
        workload = Workload(asked.shape, parse_lens(asked.workload), shape)
    except (gpus.UnknownGpu, registry.UnknownKernel, GrammarError, SpecError) as error:
        say(error)
        return USAGE
    if meant is None or (meant != present and not asked.render):
        print(f"{asked.gpu} is not here: bits change where code runs; --render --gpu NAME writes the page again")
        return NO_GPU
    if meant.arch != ARCH:
        print(f"{meant.name} ({meant.arch}) has no wgmma: nothing to launch")
        return NOTHING
    out = asked.out or run_folder.ROOT / "docs" / "results" / meant.name / "stress"
    label = f"{asked.workload}@{asked.shape}:{asked.dtype}"
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # a GPU without a measured table
        wanted = subjects(kernels, shape, meant, label, asked.launches, asked.samples, asked.seed)
    try:
        run_folder.ensure_writable(out)
        kept = Kept(out / LINES, wanted, here(ARCH))
    except (run_folder.CannotWrite, Busy) as error:
        say(error)
        return USAGE
    task = {"gpu": meant.name, "device": "cuda", "workload": workload.to_dict(), "limit_s": asked.limit}
    lanes, deadline = asked.jobs or max(min(cores() // 2, 8), 1), begin + min(asked.budget, 10**9)

    def lane() -> Lane:
        return Lane(children.command(children.STRESS), task, deadline, silence_s=SILENCE_S)

    try:
        with terminable():
            if not asked.render and kept.missing():
                launch_all(kept, lane, lanes, deadline, console)
    finally:
        kept.close()
        command = f"python -m compare study stress --gpu {meant.name}"
        text = stress_page.render(kept.current, meant.title, wanted, command, len(kept.lines) - len(kept.current))
        (out / stress_page.NAME).write_text(text, encoding="utf-8")
        print(_summary(kept, out / stress_page.NAME))
    bad = stress_page.failed(kept.current if asked.render else kept.mine)
    return WRONG if bad else OK


def _summary(kept: Kept, path: Path) -> str:
    """One line: what was done by these versions, what failed, what was left out."""
    counts = Counter(str(line["status"]) for line in kept.mine)
    left = Counter(one.kernel for one in kept.missing())
    told = ", ".join(f"{n} {status}" for status, n in counts.most_common()) or "nothing launched"
    out = f"; left out {left.total()}: " + ", ".join(f"{n} of {kernel}" for kernel, n in left.items()) if left else ""
    return f"{stress_page.named(stress_page.key_of(kept.versions))}: {told}{out}; {path}"
