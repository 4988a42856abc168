"""How much of each budget right kernels use: random cases through torch's SDPA, FlashAttention 3 and our own kernels.

    python -m compare.calibrate --gpu h200 --cases 2000 --out docs/results/h200/calibration.json

The checker's constants were derived and tried on a CPU; this is the measurement that they hold on a GPU's own rounding.
A worst ratio above 0.95, or one rejection, is a reason to look, and never one to touch a constant for one kernel.
Without --gpu, on a machine without one, the kernels are interpreted: a few short cases then.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from common import gpus, interpreter
from common.batch import make_batch
from common.gpus import Gpu, UnknownGpu
from common.kernel import Capacity
from common.metadata import Lens
from common.reference import Expected, reference
from common.spec import AttentionShape, Features, PagedBatch
from common.tolerance import check
from compare import registry, rundir
from compare.cli import situation
from compare.subject import device_is_sick
from compare.tally import Tally, table
from compare.workloads import Ask

SLICE = 25  # cases that a process takes at once
KERNELS = "baseline/sdpa,baseline/flash_attn3,triton/*,helion/*"
BF16, FP16 = torch.bfloat16, torch.float16


# What a kernel is compiled for; cases differ in lengths and values. The segments of parallel_softmax follow the
# lengths, so it is compiled a few times per class.
CLASSES = (
    (AttentionShape(32, 8, 128, 16, BF16), Ask()),
    (AttentionShape(32, 8, 128, 16, FP16), Ask()),
    (AttentionShape(28, 4, 128, 16, BF16), Ask()),
    (AttentionShape(8, 8, 64, 16, FP16), Ask()),
    (AttentionShape(8, 8, 80, 16, BF16), Ask()),
    (AttentionShape(16, 8, 256, 32, FP16), Ask()),
    (AttentionShape(10, 2, 128, 64, BF16), Ask(sliding_window=128)),
    (AttentionShape(8, 2, 64, 48, FP16), Ask(sliding_window=33)),
    (AttentionShape(16, 2, 128, 16, BF16), Ask(softcap=30.0)),
    (AttentionShape(16, 2, 64, 16, FP16), Ask(sliding_window=128, sinks=True)),
    (AttentionShape(16, 1, 128, 128, BF16), Ask(sinks=True)),
    (AttentionShape(32, 8, 128, 16, BF16), Ask(causal=False)),
)


def random_lens(rng: random.Random, longest: int) -> list[tuple[int, int]]:
    """2 to 7 sequences: decodes, speculative tokens and chunks of prompts; contexts spread evenly in the logarithm."""
    lens = []
    for _ in range(rng.randint(2, 7)):
        query_len = min(rng.choice([1, 1, 1, rng.randint(2, 9), rng.randint(10, 130)]), longest // 2)
        context_len = int(math.exp(rng.uniform(0.0, math.log(longest - query_len)))) - 1
        lens.append((query_len, query_len + context_len))
    return lens


def launch(kernel_id: str, batch: PagedBatch, features: Features, gpu: Gpu | None) -> tuple[torch.Tensor, Any]:
    """(out, lse or None) of one kernel at the config of an untuned user, both NaN before the call."""
    kernel = registry.load(kernel_id)
    config, _ = registry.default_config(kernel_id, kernel, batch.shape, batch.stats, gpu)
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

    def case(self, seed: int) -> None:
        """One batch, its reference, and a verdict for each kernel."""
        shape, ask = CLASSES[seed % len(CLASSES)]
        lens = random_lens(random.Random(seed), self.longest)
        batch = make_batch(lens, shape, seed=seed, device=self.device)
        keys = min(batch.stats.max_seq_len, ask.sliding_window or batch.stats.max_seq_len)
        features = ask.features(shape, keys, seed, self.device)
        expected = reference(batch, features)
        for kernel_id, tally in self.tallies.items():
            self._judge(kernel_id, tally, batch, features, expected, _name(seed, lens, shape))

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


def _share(kernels: tuple[str, ...], device: str, longest: int, seeds: range) -> dict[str, tuple]:
    """The cases of one process: the plain tallies by kernel."""
    device = torch.device(device)
    if device.type == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before a kernel imports triton
        interpreter.install()
    gpu = gpus.detect(device.index or 0) if device.type == "cuda" else None
    calibration = Calibration(kernels, device, gpu, longest)
    for seed in seeds:
        calibration.case(seed)
    return {kernel_id: tally.plain() for kernel_id, tally in calibration.tallies.items()}


def calibrate(calibration: Calibration, seeds: range, jobs: int) -> Iterator[int]:
    """All cases, in slices over `jobs` processes, for compilers take most of the time. Yields how many are judged."""
    done = 0
    slices = [seeds[at : at + SLICE] for at in range(0, len(seeds), SLICE)]
    fixed = tuple(calibration.tallies), str(calibration.device), calibration.longest
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        if jobs == 1:
            shares = (_share(*fixed, part) for part in slices)
        else:
            shares = (share.result() for share in as_completed([pool.submit(_share, *fixed, part) for part in slices]))
        for share in shares:
            for kernel_id, found in share.items():
                calibration.tallies[kernel_id].add(*found)
                done = sum(calibration.tallies[kernel_id].statuses.values())
            yield done


def _name(seed: int, lens: Lens, shape: AttentionShape) -> str:
    sizes = f"{shape.num_query_heads}:{shape.num_kv_heads}:{shape.head_size} page {shape.block_size}"
    return f"case {seed} ({'_'.join(f'q{q}s{s}' for q, s in lens)}, {sizes}, {str(shape.dtype)[6:]})"


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(prog="python -m compare.calibrate", description=__doc__.splitlines()[0])
    new.add_argument("--gpu", help="assert that this GPU is here; exit 3 if not")
    new.add_argument("--cases", type=int, default=2000)
    new.add_argument("--jobs", type=int, default=1, help="processes on the one device (default 1)")
    new.add_argument(
        "--first", type=int, default=0, help="the first seed (default 0): a problem is repeated by its own"
    )
    new.add_argument("--kernels", default=KERNELS, help=f"comma-separated ids or globs (default {KERNELS})")
    new.add_argument("--longest", type=int, help="keys of a sequence at most (default 4096, interpreted 24)")
    new.add_argument("--out", metavar="FILE", help="JSON; without it only the table is printed")
    return new


def write(
    path: Path, calibration: Calibration, arguments: argparse.Namespace, argv: list[str], done: int, seconds: float
) -> None:
    """The file as of `done` cases, replaced whole: a run that is ended keeps what it had."""
    gpu = calibration.gpu
    found = {
        "what": "largest error as a part of its budget, per kernel, dtype and rule, over random cases (1 rejects)",
        "command": " ".join(["python", "-m", "compare.calibrate", *argv]),
        "gpu": {"name": gpu.name, "title": gpu.title} if gpu else None,
        "commit": rundir.commit(),
        "spec_hash": rundir.spec_hash(),
        "versions": rundir.versions(),
        "cases": done,
        "planned": arguments.cases,
        "first_seed": arguments.first,
        "longest": calibration.longest,
        "shape_classes": len(CLASSES),
        "seconds": round(seconds, 1),
        "kernels": {kernel_id: tally.summary() for kernel_id, tally in calibration.tallies.items()},
    }
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
    os.replace(unfinished, path)


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 no kernel rejected or failed; 1 one was; 2 usage; 3 the GPU named is not here."""
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
            rundir.ensure_writable(Path(arguments.out).parent)
    except (UnknownGpu, registry.UnknownKernel, rundir.CannotWrite) as error:
        print(error, file=sys.stderr)
        return 2
    if not kernels:
        options.error(f"--kernels: found {arguments.kernels!r}, which names none")
    if now.absent:
        print(f"{now.target.name} is not here: nothing can be calibrated", file=sys.stderr)
        return 3
    print(f"{now.name}: {arguments.cases} cases through {', '.join(kernels)}", file=sys.stderr)
    device = torch.device(now.device)
    gpu = gpus.detect(device.index or 0) if now.measure else None
    calibration = Calibration(kernels, device, gpu, arguments.longest or (4096 if now.measure else 24))
    begin = time.perf_counter()
    for done in calibrate(calibration, range(arguments.first, arguments.first + arguments.cases), arguments.jobs):
        seconds = time.perf_counter() - begin
        print(f"{done} cases, {seconds:.0f} s", file=sys.stderr, flush=True)
        if arguments.out:
            write(Path(arguments.out), calibration, arguments, argv, done, seconds)
    print(table(calibration.tallies))
    return int(any(tally.bad for tally in calibration.tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
