"""The command line of `run`: its parser and the Options it is parsed into."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from compare.exits import Parser
from compare.plan.job import Cell
from compare.plan.options import OF_A_TRACE, RowOptions, TimingOptions, WhereOptions, flag
from compare.record.contract import MAX_TIME_S, PRECISION, PROCESSES, TIMERS
from compare.run import settings
from compare.workloads import NEW_KV, GrammarError, suites
from compare.workloads.numbers import at_least_one, positive, seed, share


def _add_where(new: argparse.ArgumentParser) -> None:
    where = new.add_argument_group("where and how")
    where.add_argument(
        "--gpu", help="assert that this GPU is here (h200, mi300, auto); absent: compiled for it, no times"
    )
    where.add_argument("--require-gpu", action="store_true", help="exit 3 unless the GPU is here")
    where.add_argument("--device", help="torch device (cuda:0; cpu: the interpreter even where a GPU is)")
    where.add_argument("--out", metavar="DIR", help="the run's own folder (default results/<UTC>_<gpu>_<commit>)")
    where.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE,...", help=settings.lines(settings.SETTINGS)
    )


def _add_timing(new: argparse.ArgumentParser) -> None:
    timing = new.add_argument_group("how cells are timed on a GPU (docs/measuring.md)")
    timing.add_argument("--timer", choices=TIMERS, help="graph (default), events, or the paper's protocol")
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
    timing.add_argument("--energy", action="store_true", help="then joules a call, of a second of replays (NVIDIA)")


def _add_again(new: argparse.ArgumentParser) -> None:
    again = new.add_argument_group("a run taken up again, or compared (docs/comparing-runs.md)")
    again.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="DIR",
        help="go on with DIR's run (default --out, or begin it; else the last of this plan)",
    )
    again.add_argument("--retry", action="store_true", help="with --resume: what failed or was unavailable, once more")


def parser() -> argparse.ArgumentParser:
    new = Parser(
        prog="python -m compare.run",
        usage="%(prog)s [OPTION ...]",
        description="Check paged-attention kernels against one spec, time those that are right, and report.",
        epilog="Example: python -m compare.run --gpu h200 --suite peers --kernels 'triton/*'. "
        "With --fleet [HOST:PORT] on the GPUs of a Ray cluster (docs/fleet.md). "
        "Exit codes: 0 all fine; 1 a wrong or crashed cell; 2 usage; 3 the GPU is required and absent; "
        "5 nothing could run; 130 interrupted, finished cells kept.",
    )
    what = new.add_argument_group("what to compare")
    what.add_argument("--suite", help=f"{', '.join(suites.SUITES)} (default smoke, with static for an absent GPU)")
    what.add_argument(
        "--workload", help="a batch (32q1s2k_16q512s1536); beside --suite or --trace, globs of their rows"
    )
    what.add_argument(
        "--trace",
        metavar="FILE[:NAME=VALUE,...]",
        help="CSV of TIMESTAMP,ContextTokens,GeneratedTokens: real serving load; assumed: "
        + settings.lines(settings.OF_A_TRACE),
    )
    what.add_argument("--kernels", help="comma-separated ids or globs (triton/*), or package.module[:name]")
    what.add_argument(
        "--shape", help="heads:kv_heads:head_size or a model, of --workload and --trace (default llama-3-8b)"
    )
    what.add_argument(
        "--new-kv", action="store_true", help="give kernels the step's new K and V too; the rows get +kv as a suffix"
    )
    what.add_argument(
        "--seed", type=seed, default=0, help="of the values; lengths do not move with it, but in `unseen`"
    )
    _add_where(new)
    _add_timing(new)
    _add_again(new)
    show = new.add_argument_group("what to print")
    show.add_argument("--list", action="store_true", help="suites, kernels, rows and their cells; runs nothing")
    show.add_argument("-q", "--quiet", action="store_true", help="first and last line only")
    show.add_argument("--version", action="store_true", help="spec hash, timing contract and versions")
    return new


@dataclass(frozen=True)
class Shown:
    """What is printed. list, version: print that and run nothing."""

    list: bool = False
    version: bool = False
    quiet: bool = False


@dataclass(frozen=True)
class Options:
    """A parsed command line. resume: a folder, empty for the last run of this plan, None for a new run. given: its
    words, for the manifest."""

    rows: RowOptions
    where: WhereOptions
    timing: TimingOptions
    shown: Shown
    out: str | None = None
    resume: str | None = None
    retry: bool = False
    given: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise GrammarError for options that need another option."""
        if self.retry and self.resume is None:
            raise GrammarError("--retry: found alone, allowed with --resume")
        if self.resume and self.out and Path(self.resume) != Path(self.out):
            raise GrammarError(f"--out: found {self.out} beside --resume {self.resume}, allowed one folder")

    @classmethod
    def of(cls, asked: argparse.Namespace, given: Sequence[str] = ()) -> "Options":
        """Options from parsed arguments. Raises GrammarError for options that exclude each other."""
        file, assumed = settings.trace(asked.trace)
        told = settings.read("--set", asked.set, settings.SETTINGS)
        values = vars(asked) | told | assumed | {"trace": file, "max_time_s": asked.max_time}
        values |= {"cpu_budget_s": told["cpu_budget"], "timeout_s": told["timeout"]}
        own = {name: values[name] for name in ("out", "resume", "retry")}
        groups = [
            group(**{name.name: values[name.name] for name in fields(group)})
            for group in (RowOptions, WhereOptions, TimingOptions, Shown)
        ]
        return cls(*groups, given=tuple(given), **own)

    def words(self, cell: Cell, suite: str) -> list[str]:
        """The command-line words that run one cell of a suite again."""
        words, label = [], cell.workload.label.removesuffix(NEW_KV)
        given = asdict(self.rows) | asdict(self.where) | asdict(self.timing)
        assumed = _pairs(given, OF_A_TRACE)
        given["trace"] = f"{given['trace']}:{assumed}" if assumed else given["trace"]
        for name in ("gpu", "trace", "device"):
            words += _said(given, name)
        if suite in suites.SUITES:
            words += ["--suite", "static" if label in _labels("static") else suite]
        for name in ("shape", "timer"):
            words += _said(given, name)
        words += _said(given, "seed") if self.rows.seed else []
        given["heuristics"] = None if self.where.heuristics == "tree" else self.where.heuristics
        told = _pairs(given, ("block_size", "dtype", "window", "cache", "heuristics"))
        words += ["--set", told] if told else []
        words += ["--new-kv"] if self.rows.new_kv else []
        return [*words, "--workload", label, "--kernels", cell.kernel]


def parse(argv: Sequence[str]) -> Options:
    """Parse a command line. Raises GrammarError for options that exclude each other; exits with 2 for unknown ones."""
    return Options.of(parser().parse_args(argv), argv)


def _said(given: Mapping[str, Any], name: str) -> list[str]:
    """The words of an option; empty if it was not given."""
    return [] if given[name] is None else [flag(name), str(given[name])]


def _pairs(given: Mapping[str, Any], names: Iterable[str]) -> str:
    """Settings as `--set` takes them, `name=value,...`; empty if none was given."""
    return ",".join(f"{settings.dashed(name)}={given[name]}" for name in names if given[name] is not None)


def _labels(suite: str) -> set[str]:
    return {row.label for row in suites.SUITES[suite](0)}
