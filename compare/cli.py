"""The command line of `python -m compare.run`: its options, and which of three situations they make here."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import torch

from common import gpus
from common.gpus import Gpu
from compare import suites, trace
from compare.registry import BASELINES, OWN, select
from compare.workloads import Ask, GrammarError, Workload, parse_lens, parse_shape


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        prog="python -m compare.run",
        description="Check paged-attention kernels against one spec, time those that are right, and report.",
        epilog="Exit codes: 0 all fine; 1 a wrong or crashed cell; 2 usage; 3 the GPU is required and absent; "
        "5 nothing could run; 130 interrupted, finished cells kept.",
    )
    what = new.add_argument_group("what to compare")
    what.add_argument("--suite", help="smoke (default), peers")
    what.add_argument(
        "--workload", help="a batch (32q1s2k_16q512s1536); beside --suite or --trace, globs of their rows"
    )
    what.add_argument(
        "--trace", metavar="FILE", help="CSV of TIMESTAMP,ContextTokens,GeneratedTokens: real serving load"
    )
    what.add_argument("--kernels", help="comma-separated ids or globs (triton/*), or package.module[:name]")
    what.add_argument("--shape", default="llama-3-8b", help="heads:kv_heads:head_size or a model (default llama-3-8b)")
    what.add_argument("--block-size", type=int, default=16, help="tokens of a KV-cache page (default 16)")
    what.add_argument("--dtype", default="bf16", help="bf16 (default), fp16, fp32")
    what.add_argument("--window", type=int, help="sliding window, the query's own token included")
    what.add_argument("--seed", type=int, default=0, help="of the values; lengths do not move with it")
    where = new.add_argument_group("where and how")
    where.add_argument(
        "--gpu", help="assert that this GPU is here (h200, mi300, auto); absent: compiled for it, no times"
    )
    where.add_argument("--require-gpu", action="store_true", help="exit 3 unless the GPU is here")
    where.add_argument("--device", help="torch device (cuda:0; cpu: the interpreter even where a GPU is)")
    where.add_argument("--out", metavar="DIR", help="the run's own folder (default results/<UTC>_<gpu>_<commit>)")
    where.add_argument("--max-time", type=float, default=3.0, metavar="S", help="timing per workload (default 3 s)")
    where.add_argument("--cpu-budget", type=float, default=30.0, metavar="S", help="interpreter, a cell (default 30 s)")
    where.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="without a sign of life (default 300 s)"
    )
    where.add_argument("--configs", type=int, default=0, metavar="N", help="beside the default, N random configs each")
    steps = new.add_argument_group("assumptions of --trace")
    steps.add_argument(
        "--batches", type=int, default=16, help="steps kept, at even quantiles of KV tokens (default 16)"
    )
    steps.add_argument("--step-ms", type=float, default=5.0, help="fixed part of a step (default 5 ms)")
    steps.add_argument("--token-us", type=float, default=25.0, help="per scheduled token (default 25 us)")
    show = new.add_argument_group("what to print")
    show.add_argument("--list", action="store_true", help="kernels, suites and the selected rows; runs nothing")
    show.add_argument("--dry-run", action="store_true", help="the cells that would run; runs nothing")
    show.add_argument("-q", "--quiet", action="store_true", help="first and last line only")
    show.add_argument("-v", "--verbose", action="store_true", help="log tails of failures as they come")
    show.add_argument("--version", action="store_true", help="spec hash, timing contract and versions")
    return new


@dataclass(frozen=True)
class Situation:
    """What can be done. target: the GPU meant, None for the CPU alone. measure: it is here, and cells are timed."""

    target: Gpu | None
    measure: bool
    device: str
    line: str

    @property
    def absent(self) -> bool:
        """A GPU was named that is not here."""
        return self.target is not None and not self.measure

    @property
    def name(self) -> str:
        return self.target.name if self.target else "cpu"


def situation(asked: str | None, device: str | None) -> Situation:
    """Which of the three situations this is. Raises gpus.UnknownGpu; GrammarError for a device that torch refuses."""
    index = 0
    if device is not None:
        try:
            parsed = torch.device(device)
        except RuntimeError:
            raise GrammarError(f"device: found {device!r}, allowed cpu, cuda or cuda:<index>") from None
        index = parsed.index or 0
    here = None if device == "cpu" else gpus.detect(index)
    target = here if asked in (None, "auto") else gpus.resolve(asked)
    if target is None:
        return Situation(None, False, "cpu", "no GPU here: checked in the interpreter on the CPU, nothing is timed")
    if here is not None and here.name == target.name:
        return Situation(target, True, device or "cuda:0", f"{target.name} is here ({target.title}): checked and timed")
    found = f" (found {here.name})" if here else ""
    return Situation(target, False, "cpu", f"{target.name} is not here{found}: compiled and checked, not timed")


@dataclass(frozen=True)
class Selection:
    """The rows and kernels of a run. assumptions: what a reader of the figures has to know about the rows."""

    suite: str
    workloads: tuple[Workload, ...]
    kernels: tuple[str, ...]
    assumptions: tuple[str, ...] = ()


def selection(arguments: argparse.Namespace, now: Situation) -> Selection:
    """What was selected. Raises the typed errors of suites, registry, workloads and trace."""
    kernels = select(arguments.kernels) if arguments.kernels is not None else OWN + BASELINES * now.measure
    shape = parse_shape(arguments.shape, arguments.block_size, arguments.dtype)
    ask = Ask(sliding_window=_window(arguments.window))
    if arguments.trace:
        rule = trace.Rule(arguments.batches, arguments.step_ms, arguments.token_us)
        rows, notes = trace.workloads(arguments.trace, rule, shape, ask, arguments.seed)
        chosen = suites.pick(rows, arguments.workload) if arguments.workload else rows
        return Selection("trace", chosen, kernels, notes)
    if arguments.workload and not arguments.suite:
        row = Workload(arguments.workload, parse_lens(arguments.workload), shape, ask, seed=arguments.seed)
        return Selection("workload", (row,), kernels)
    name = arguments.suite or "smoke"
    rows = suites.suite(name, arguments.seed)
    if now.absent and not arguments.suite:
        rows += suites.static(arguments.seed)
    rows = tuple(
        replace(row, ask=replace(row.ask, sliding_window=ask.sliding_window or row.ask.sliding_window)) for row in rows
    )
    return Selection(name, suites.pick(rows, arguments.workload) if arguments.workload else rows, kernels)


def _window(window: int | None) -> int | None:
    if window is not None and window < 1:
        raise GrammarError(f"window: found {window}, allowed at least 1")
    return window
