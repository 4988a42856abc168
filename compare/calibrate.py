"""How much of each budget right kernels use: random cases through torch's SDPA, FlashAttention 3 and our own kernels.

    python -m compare.calibrate --gpu h200 --cases 2000 --jobs 14 --out docs/results/h200/calibration.json

The checker's constants were derived and tried on a CPU; this is the measurement that they hold on a GPU's own rounding.
A worst ratio above 0.95, or one rejection, is a reason to look, and never one to touch a constant for one kernel.
Without --gpu, on a machine without one, the kernels are interpreted: a few short cases then.
With --out what is judged is kept line by line in FILE's neighbour .jsonl: the same command goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from common import gpus, interpreter
from common.cases.batch import make_batch
from common.gpus import Gpu, UnknownGpu
from common.oracle.reference import Expected, reference
from common.oracle.tolerance import check
from common.serving.grid import on_grid
from common.spec import Features, PagedBatch
from common.spec.kernel import Capacity, asked_of
from compare.bench.subject import device_is_sick
from compare.calibrate_cases import CLASSES, case_name, random_lens
from compare.calibrate_lanes import CannotResume, Found, Plain, Progress, Slice, alternating, lanes, run
from compare.competitors import registry, sources
from compare.exits import INTERRUPTED, NO_GPU, OK, USAGE, WRONG
from compare.plan.situation import situation
from compare.record import folder as run_folder
from compare.record.store import Busy
from compare.tally import Tally, table

KERNELS = "baseline/sdpa,baseline/flash_attn3,triton/*,helion/*"


def launch(kernel_id: str, batch: PagedBatch, features: Features, gpu: Gpu | None) -> tuple[torch.Tensor, Any]:
    """(out, lse or None) of one kernel at the config of an untuned user, both NaN before the call."""
    kernel = registry.load(kernel_id)
    told = batch.stats
    asked = on_grid(told.num_seqs, told.num_decodes, told.max_query_len, told.max_seq_len)
    needs, sees = asked_of(batch, features), features.sees
    config, _ = registry.default_config(kernel_id, kernel, batch.shape, asked, gpu, needs=needs, sees=sees)
    workspace = kernel.workspace(batch.shape, Capacity.of(batch), config)
    if hasattr(kernel, "prepare"):
        workspace = kernel.prepare(batch, features, config, workspace)
    out = torch.full_like(batch.query, math.nan)
    lse = torch.full(batch.query.shape[:2], math.nan, device=batch.device) if "lse" in kernel.SUPPORTS else None
    kernel.launch(batch, features, out, config, workspace, lse=lse)
    return out, lse


class Calibration:
    """All cases through all kernels."""

    def __init__(self, kernels: tuple[str, ...], device: torch.device, gpu: Gpu | None, longest: int) -> None:
        self.device, self.gpu, self.longest = device, gpu, longest
        self.tallies = {kernel_id: Tally() for kernel_id in kernels}
        self.broken: list[str] = []  # slices whose process or device did not survive them; they can be repeated

    def case(self, seed: int) -> None:
        """One batch, its reference, and a verdict for each kernel."""
        shape, ask = CLASSES[seed % len(CLASSES)]
        lens = random_lens(random.Random(seed), self.longest)
        batch = make_batch(lens, shape, seed=seed, device=self.device)
        keys = min(batch.stats.max_seq_len, ask.sliding_window or batch.stats.max_seq_len)
        features = ask.features(batch, seed, keys)
        expected = reference(batch, features)
        for kernel_id, tally in self.tallies.items():
            self._judge(kernel_id, tally, batch, features, expected, case_name(seed, lens, shape))

    def _judge(
        self, kernel_id: str, tally: Tally, batch: PagedBatch, features: Features, expected: Expected, case: str
    ) -> None:
        """One kernel on one batch. What it raises is counted; RuntimeError where the device did not survive it."""
        try:
            out, lse = launch(kernel_id, batch, features, self.gpu)
            contract = registry.load(kernel_id).CONTRACT
            verdict = check(out, lse, batch, features, contract, expected)
        except Exception as error:
            tally.failed(error, case)
            if device_is_sick(self.device):
                raise RuntimeError(f"{kernel_id} lost the device at {case}: {error}") from error
            return
        tally.judged(verdict, batch.shape.dtype, lse is not None, case)

    def add(self, plain: Plain) -> None:
        for kernel_id, found in plain.items():
            self.tallies[kernel_id].add(*found)

    @property
    def bad(self) -> bool:
        return bool(self.broken) or any(tally.bad for tally in self.tallies.values())


def share(
    seeds: Slice, kernels: tuple[str, ...], device: str, longest: int, until: float, alone: bool = True
) -> tuple[Slice, Plain]:
    """The cases of a process until the clock `until`: the seeds that were judged, and the plain tallies by kernel.

    alone: the process has no other work, and shares the cores with others of its kind.
    """
    if alone:
        torch.set_num_threads(1)
    device = torch.device(device)
    if device.type == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before a kernel imports triton
        interpreter.install()
    gpu = gpus.detect(device.index or 0) if device.type == "cuda" else None
    calibration, judged = Calibration(kernels, device, gpu, longest), []
    for seed in seeds:
        if time.time() >= until:
            break
        calibration.case(seed)
        judged.append(seed)
    return tuple(judged), {kernel_id: tally.plain() for kernel_id, tally in calibration.tallies.items()}


def calibrate(calibration: Calibration, seeds: Sequence[int], jobs: int, until: float = math.inf) -> Iterator[Found]:
    """All cases over `jobs` processes, in this one where that is one. Adds them up; yields each slice as it ends."""
    fixed = {"kernels": tuple(calibration.tallies), "device": str(calibration.device), "longest": calibration.longest}
    work = partial(share, **fixed, until=until)
    queues = [alternating(lane, len(CLASSES)) for lane in lanes(seeds, len(CLASSES), jobs)]
    if jobs == 1:
        found: Iterator[Found] = (work(part, alone=False) for part in (queues[0] if queues else ()))
    else:
        found = run(queues, work)
    for part, plain in found:
        if isinstance(plain, Exception):
            calibration.broken.append(f"cases {', '.join(map(str, part))}: {type(plain).__name__}: {plain}")
        elif part:
            calibration.add(plain)
        yield part, plain


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(prog="python -m compare.calibrate", description=__doc__.splitlines()[0])
    new.add_argument("--gpu", help="assert that this GPU is here; exit 3 if not")
    new.add_argument("--cases", type=int, default=2000)
    new.add_argument("--jobs", type=int, default=1, help="processes on the one device (default 1)")
    new.add_argument(
        "--first", type=int, default=0, help="the first seed (default 0): a problem is repeated by its own"
    )
    new.add_argument("--kernels", default=KERNELS, help=f"comma-separated ids or globs (default {KERNELS})")
    new.add_argument("--minutes", type=float, help="no case begins after so many; the same command goes on then")
    new.add_argument("--longest", type=int, help="keys of a sequence at most (default 4096, interpreted 24)")
    new.add_argument("--out", metavar="FILE", help="FILE.json, and FILE.jsonl to go on from; else only the table")
    return new


def identity(calibration: Calibration) -> dict[str, Any]:
    """What has to be the same for cases to be added up."""
    gpu = calibration.gpu
    return {
        "kernels": {kernel_id: sources.of_kernel(kernel_id) for kernel_id in calibration.tallies},
        "gpu": gpu.name if gpu else None,
        "longest": calibration.longest,
        "spec_hash": run_folder.spec_hash(),
        "versions": run_folder.versions(),
    }


def write(
    path: Path, calibration: Calibration, arguments: argparse.Namespace, argv: list[str], done: int, seconds: float
) -> None:
    """The file as of `done` cases, replaced whole."""
    gpu = calibration.gpu
    found = {
        "what": "largest error as a part of its budget, per kernel, dtype and rule, over random cases (1 rejects)",
        "command": " ".join(["python", "-m", "compare.calibrate", *argv]),
        "gpu": {"name": gpu.name, "title": gpu.title} if gpu else None,
        "commit": run_folder.commit(),
        "spec_hash": run_folder.spec_hash(),
        "versions": run_folder.versions(),
        "cases": done,
        "planned": arguments.cases,
        "first_seed": arguments.first,
        "longest": calibration.longest,
        "shape_classes": len(CLASSES),
        "seconds": round(seconds, 1),
        "broken": calibration.broken,
        "kernels": {kernel_id: tally.summary() for kernel_id, tally in calibration.tallies.items()},
    }
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
    os.replace(unfinished, path)


def work(calibration: Calibration, arguments: argparse.Namespace, argv: list[str]) -> int:
    """All cases that no earlier run judged; every slice is on the disk before the next is awaited. How many are left.

    Raises CannotResume.
    """
    begin = time.perf_counter()
    until = math.inf if arguments.minutes is None else time.time() + 60 * arguments.minutes
    out = Path(arguments.out) if arguments.out else None
    progress = Progress(out.with_suffix(".jsonl"), identity(calibration)) if out else None
    for plain in progress.tallies() if progress else ():
        calibration.add(plain)
    asked = range(arguments.first, arguments.first + arguments.cases)
    left = [seed for seed in asked if not progress or seed not in progress.done]
    done = len(asked) - len(left)
    if done:
        print(f"{done} of {len(asked)} cases were judged before", file=sys.stderr)
    for part, plain in calibrate(calibration, left, arguments.jobs, until):
        if isinstance(plain, Exception):
            print(calibration.broken[-1], file=sys.stderr, flush=True)
        elif part:
            done += len(part)
            if progress:
                progress.add(part, plain)
                write(out, calibration, arguments, argv, done, time.perf_counter() - begin)
        print(f"{done} of {len(asked)} cases, {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    if progress:
        write(out, calibration, arguments, argv, done, time.perf_counter() - begin)
        progress.close()
    return len(asked) - done


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 no kernel rejected or failed; 1 one was; 2 usage; 3 the GPU named is not here; 130 cases left."""
    argv = sys.argv[1:] if argv is None else argv
    options = parser()
    arguments = options.parse_args(argv)
    for name, least in (("cases", 1), ("jobs", 1), ("longest", 2)):
        found = getattr(arguments, name)
        if found is not None and found < least:
            options.error(f"--{name}: found {found}, allowed at least {least}")
    try:
        now, kernels = situation(arguments.gpu, None), registry.select(arguments.kernels)
        if arguments.out:
            run_folder.ensure_writable(Path(arguments.out).parent)
    except (UnknownGpu, registry.UnknownKernel, run_folder.CannotWrite) as error:
        print(error, file=sys.stderr)
        return USAGE
    if not kernels:
        options.error(f"--kernels: found {arguments.kernels!r}, which names none")
    if now.absent:
        print(f"{now.target.name} is not here: nothing can be calibrated", file=sys.stderr)
        return NO_GPU
    print(f"{now.name}: {arguments.cases} cases through {', '.join(kernels)}", file=sys.stderr)
    device = torch.device(now.device)
    gpu = gpus.detect(device.index or 0) if now.measure else None
    calibration = Calibration(kernels, device, gpu, arguments.longest or (4096 if now.measure else 24))
    try:
        left = work(calibration, arguments, argv)
    except (CannotResume, Busy) as error:
        print(error, file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("interrupted: the same command goes on where it stopped", file=sys.stderr)
        return INTERRUPTED
    print(table(calibration.tallies))
    print("\n".join(calibration.broken), end="\n" if calibration.broken else "")
    if left:
        print(f"{left} cases are left: the same command goes on with them", file=sys.stderr)
    return WRONG if calibration.bad else INTERRUPTED if left else OK


if __name__ == "__main__":
    sys.exit(main())
