"""The command line of `python -m compare.run`: its options, and what they refuse."""

from __future__ import annotations

import argparse
from pathlib import Path

from compare.analysis import diff
from compare.competitors.registry import HEURISTICS
from compare.plan.options import at_least_one, count, positive, share
from compare.plan.situation import Situation
from compare.record.contract import CACHES, MAX_TIME_S, PRECISION, PROCESSES, TIMERS, Contract
from compare.workloads import GrammarError, suites


def _add_where(new: argparse.ArgumentParser) -> None:
    where = new.add_argument_group("where and how")
    where.add_argument(
        "--gpu", help="assert that this GPU is here (h200, mi300, auto); absent: compiled for it, no times"
    )
    where.add_argument("--require-gpu", action="store_true", help="exit 3 unless the GPU is here")
    where.add_argument("--device", help="torch device (cuda:0; cpu: the interpreter even where a GPU is)")
    where.add_argument("--out", metavar="DIR", help="the run's own folder (default results/<UTC>_<gpu>_<commit>)")
    where.add_argument(
        "--cpu-budget", type=positive, default=30.0, metavar="S", help="interpreter, a cell (default 30 s)"
    )
    where.add_argument(
        "--timeout", type=positive, default=300.0, metavar="S", help="without a sign of life (default 300 s)"
    )
    where.add_argument(
        "--heuristics",
        choices=HEURISTICS,
        default="tree",
        help="whose configs: the GPU's measured tree where there is one (tree), untuned (default), Listing 2 (paper)",
    )


def _add_timing(new: argparse.ArgumentParser) -> None:
    timing = new.add_argument_group("how cells are timed, where a GPU is measured (docs/measuring.md)")
    timing.add_argument("--timer", choices=TIMERS, help="graph (default), events, host, or the paper's protocol")
    timing.add_argument("--cache", choices=CACHES, help="before each call (default cold; the paper's timer: hot)")
    timing.add_argument(
        "--precision",
        type=share,
        default=PRECISION,
        metavar="P",
        help=f"rounds end when the paired 99%% interval is within it (default {100 * PRECISION:g}%%)",
    )
    timing.add_argument(
        "--max-time",
        type=positive,
        default=MAX_TIME_S,
        metavar="S",
        help=f"or when the rounds of a workload and process took this long (default {MAX_TIME_S:g} s)",
    )
    timing.add_argument(
        "--processes", type=at_least_one, default=PROCESSES, metavar="N", help=f"fresh ones (default {PROCESSES})"
    )
    timing.add_argument("--configs", type=count, default=0, metavar="N", help="N random configs too, graph timer only")


def _add_again(new: argparse.ArgumentParser) -> None:
    again = new.add_argument_group("going on with a run, and against another one (docs/comparing-runs.md)")
    again.add_argument(
        "--resume", nargs="?", const="", metavar="DIR", help="go on in DIR (default --out, else the last of this plan)"
    )
    again.add_argument("--retry", action="store_true", help="with --resume: what failed or was unavailable, once more")
    again.add_argument(
        "--against", metavar="RUN", help="then say what changed since this run, as compare.analysis.diff does"
    )
    diff.add_options(again)


def refuse_alone(arguments: argparse.Namespace) -> None:
    """Raise GrammarError for an option that says how, without the one that says what."""
    if arguments.retry and arguments.resume is None:
        raise GrammarError("--retry: found alone, allowed with --resume")
    if arguments.fail_on and not arguments.against:
        raise GrammarError("--fail-on: found alone, allowed with --against")
    if arguments.resume and arguments.out and Path(arguments.resume) != Path(arguments.out):
        raise GrammarError(f"--out: found {arguments.out} beside --resume {arguments.resume}, allowed one folder")


def contract(arguments: argparse.Namespace, now: Situation) -> Contract:
    """The timing contract of a run; one process where nothing is timed. Raises GrammarError for what does not fit."""
    timer = arguments.timer or "graph"
    cache = arguments.cache or ("hot" if timer == "paper" else "cold")
    if timer == "paper" and cache == "cold":
        raise GrammarError(
            "--cache: found cold, allowed hot with --timer paper, which repeats one call on the same data"
        )
    if arguments.configs and (timer, cache) != ("graph", "cold"):
        raise GrammarError(f"--configs: found with timer {timer} and cache {cache}, allowed with graph and cold alone")
    processes = arguments.processes if now.measure else 1
    return Contract(timer, cache, arguments.precision, arguments.max_time, processes)


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        prog="python -m compare.run",
        description="Check paged-attention kernels against one spec, time those that are right, and report.",
        epilog="Exit codes: 0 all fine; 1 a wrong or crashed cell; 2 usage; 3 the GPU is required and absent; "
        "4 --fail-on; 5 nothing could run; 130 interrupted, finished cells kept.",
    )
    what = new.add_argument_group("what to compare")
    what.add_argument("--suite", help=f"{', '.join(suites.SUITES)} (default smoke, with static for an absent GPU)")
    what.add_argument(
        "--workload", help="a batch (32q1s2k_16q512s1536); beside --suite or --trace, globs of their rows"
    )
    what.add_argument(
        "--trace", metavar="FILE", help="CSV of TIMESTAMP,ContextTokens,GeneratedTokens: real serving load"
    )
    what.add_argument("--kernels", help="comma-separated ids or globs (triton/*), or package.module[:name]")
    what.add_argument(
        "--shape", help="heads:kv_heads:head_size or a model, of --workload and --trace (default llama-3-8b)"
    )
    what.add_argument("--block-size", type=int, help="tokens of a KV-cache page, of these (default 16)")
    what.add_argument("--dtype", help="bf16 (default), fp16, fp32, of these")
    what.add_argument("--window", type=int, help="sliding window, the query's own token included")
    what.add_argument(
        "--new-kv", action="store_true", help="give kernels the step's new K and V too; the rows get +kv as a suffix"
    )
    what.add_argument("--seed", type=int, default=0, help="of the values; lengths do not move with it")
    _add_where(new)
    _add_timing(new)
    _add_again(new)
    steps = new.add_argument_group("assumptions of --trace")
    steps.add_argument("--batches", type=int, help="steps kept, at even quantiles of KV tokens (default 16)")
    steps.add_argument("--step-ms", type=float, help="fixed part of a step (default 5 ms)")
    steps.add_argument("--token-us", type=float, help="per scheduled token (default 25 us)")
    show = new.add_argument_group("what to print")
    show.add_argument("--list", action="store_true", help="kernels, suites and the selected rows; runs nothing")
    show.add_argument("--dry-run", action="store_true", help="the cells that would run; runs nothing")
    show.add_argument("-q", "--quiet", action="store_true", help="first and last line only")
    show.add_argument("-v", "--verbose", action="store_true", help="log tails of failures as they come")
    show.add_argument("--version", action="store_true", help="spec hash, timing contract and versions")
    return new
