"""A run of the conformance kit: the cases of a level on a kernel from anywhere, and what is said of them.

    diptych-check my_package:my_kernel --level smoke

The options are `diptych_check.py`'s. docs/conformance.md walks through it.
"""

import argparse
import contextlib
import json
import os
import secrets
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

import common
from common.kit import levels, pace
from common.kit.asked import Asked
from common.kit.declared import limits_of, supports_of
from common.kit.isolate import Isolated, Limits, Noted
from common.kit.kit import LATE, NOT_ASKED, Kit, Result, Unavailable
from common.kit.lanes import Lanes
from common.kit.own_files import OwnFiles, imported
from common.kit.report_file import ReportFile
from common.kit.seal import seal
from common.process import cores, print_every_character
from common.spec import SpecError
from common.spec.refusals import expect_file

TELL_S = 20.0  # seconds between two messages on progress
LINE = 200
NOTHING = "nothing was asked: all cases are declared unsupported, or too large for a CPU"
NO_ANSWER = "nothing was judged: no answer came in time"
MOST_LATE = 5  # unanswered cases in a row, before any verdict, after which the rest is skipped
MOST_PROCESSES, SHARE = 4, 8  # by default: the most processes, and the least cases of each
NO_REPORT = "report: not written"
MOST_LIMITS = 2**20  # characters of a file of --limits, which may have no end
TAKES = {"first": ": few that find most", "full": ": a plain-torch kernel takes about ten minutes"}
SHOWN = {"adapter": "auto", "device": "auto", "interpret": "auto", "time-limit": None, "supports": None, "limits": None}
CHOICES = {"level": levels.LEVELS, "interpret": ("auto", "on", "off"), "device": ("auto", "cpu", "cuda")}
CHOICES |= {"adapter": ("auto", "paged", "flash_attn_varlen", "flash_attn_kvcache", "protocol")}


def _misused(asked: argparse.Namespace) -> str:
    """Why the options contradict each other; empty where they do not."""
    if getattr(common, "__project__", None) != "diptych":
        return f"common: found {common.__file__}, allowed Diptych's; run diptych-check instead"
    for name, allowed in CHOICES.items():
        if (found := getattr(asked, name)) not in (*allowed, *[None] * (name == "level")):
            return f"--{name}: found {found!r:.60}, allowed {', '.join(allowed)}"
    for name, other in (("level", "case"), ("report", "list")):  # neither would be used
        if getattr(asked, name) is not None and getattr(asked, other):
            return f"--{name}: found {getattr(asked, name)!r:.60} beside --{other}, allowed one of the two"
    if asked.device == "cuda" and not torch.cuda.is_available():
        return "--device: found cuda, and torch finds no GPU here; allowed cpu, auto"
    try:
        _outside(asked)
        if asked.report is not None:
            ReportFile(asked.report)
        for expression in asked.case:
            levels.read(expression)
    except SpecError as error:
        return f"--{error.argument.lower()}: found {error.found}, allowed {error.allowed}"
    return ""


def _limits(path: str | None) -> dict[str, Any] | None:
    """The JSON object in the file of --limits. Raises SpecError."""
    if path is None:
        return None
    allowed = f"a JSON file of less than {MOST_LIMITS} characters"
    expect_file(path, "limits", allowed)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.loads(file.read(MOST_LIMITS))
    except (OSError, ValueError, RecursionError) as error:
        why = f"{path:.60}: {getattr(error, 'strerror', None) or error!s:.80}"
        raise SpecError("limits", why, allowed) from error
    return limits_of(found)


def _outside(asked: argparse.Namespace) -> dict[str, Any]:
    """What the command line declares in the kernel's place. Raises SpecError."""
    said = {"limits": _limits(asked.limits)}
    if asked.supports is not None:
        said["supports"] = sorted(supports_of(name.strip() for name in asked.supports.split(",") if name.strip()))
    return {name: value for name, value in said.items() if value is not None}


@dataclass(frozen=True)
class Plan:
    """What a run asks: its cases, in the words of its first line, and a kit for each process."""

    cases: list[str]
    words: str
    kits: list[Kit]

    @classmethod
    def of(cls, asked: argparse.Namespace) -> "Plan":
        """Make the plan, and seal the judge before a child starts. Raises Unavailable."""
        given, level, why, kits = asked.case, asked.level, "", []
        if asked.seed == "random":
            asked.seed = secrets.randbits(31)
        if not (asked.list and (given or level)):
            seal()
            kits = make(asked)
        if level is None and not given:
            interpreted = kits[0].declared.interpreted
            level, why = ("first", "; its kernels are interpreted here") if interpreted else ("smoke", "")
        cases = given or list(levels.level(level, asked.seed))
        if asked.processes is None:
            kits = kits[: max(1, len(cases) // SHARE)]
        words = "the given" if given else f"level {level}{TAKES.get(level, '')}{why}"
        return cls(cases, words, kits)


def make(asked: argparse.Namespace) -> list[Kit]:
    """A kit for each process, with one seed and one pace; the first knows what the kernel declares. Raises
    Unavailable."""
    device = asked.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    processes = _processes(asked, device)
    interpret = (asked.interpret == "on" or (asked.interpret == "auto" and device == "cpu")) and _has_triton()
    limits = Limits() if device == "cpu" else Limits(memory=0)
    assumed = pace.ON_GPU if device == "cuda" else pace.INTERPRETED if interpret else pace.PLAIN
    given = {name: getattr(asked, name.replace("-", "_")) for name in SHOWN}
    options = [f"--{name}={given[name]}" for name, default in SHOWN.items() if given[name] != default]
    threads = None if processes == 1 else max(1, cores() // processes)
    of = {"outside": _outside(asked), "options": tuple(options), "pace": pace.Pace(asked.time_limit, assumed)}
    how = {"interpret": interpret, "threads": threads, "noted": Noted()}
    first, *others = [Isolated(limits, **how) for _ in range(processes)]
    if device == "cuda" and not first.not_isolated and not first.ask({"ask": "gpu"}).said.get("gpu"):
        for child in (first, *others):
            child.share("torch finds no GPU as another user")
    kit = Kit(asked.kernel, asked.seed, first, asked.adapter, device, **of)
    try:
        kit.declared  # noqa: B018  asked first: a kernel that is not there is one error and not one a case
    except (Unavailable, KeyboardInterrupt):
        kit.close()
        raise
    return [kit, *(kit.beside(child) for child in others)]


def _processes(asked: argparse.Namespace, device: str) -> int:
    """How many processes run cases. Cases named by the user stay in one process: one may fail only behind another."""
    if asked.processes is not None:
        return asked.processes
    return 1 if asked.case or device != "cpu" else min(cores(), MOST_PROCESSES)


def _has_triton() -> bool:
    from importlib.util import find_spec

    return find_spec("triton") is not None


class Summary:
    """Gathers the results of a run and closes it: the smallest failing case, what was asked, the report.

    strict: a case without an answer in time fails the run.
    """

    def __init__(
        self, kit: Kit, report: str | None, planned: int, say: Callable[[str], None], *, strict: bool = False
    ) -> None:  # fmt: skip
        self.kit, self.results, self.smallest = kit, [], None
        self.strict = strict
        self.report, self.reported = None if report is None else ReportFile(report), ""
        self.own, self.changed = OwnFiles(others=imported()), []
        self._planned, self._say = planned, say
        self._begun = self._told = time.monotonic()

    def add(self, result: Result) -> None:
        """Add a result. Prints failures and unjudged cases at once, and progress from time to time."""
        self.results.append(result)
        for line in _told(result):
            self._say(line)
        done, now = len(self.results), time.monotonic()
        if now - self._told >= TELL_S and done < self._planned:
            self._told, left = now, (now - self._begun) / done * (self._planned - done)
            wrong = sum(one.failed for one in self.results)
            self._say(f"{done} of {self._planned} cases, {wrong} wrong; about {_time(left)} more")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    @property
    def asked(self) -> Asked:
        """The number of cases with a verdict."""
        lse = "lse" in self.kit.declared.supports
        return Asked.of([levels.read(result.case) for result in self.results if result.judged], lse=lse)

    @property
    def late(self) -> list[Result]:
        """The number of cases without an answer in time."""
        return [result for result in self.results if result.status == LATE]

    @property
    def hopeless(self) -> bool:
        """Whether the kernel never answers: its first cases had no answer."""
        return len(self.late) >= MOST_LATE and not any(result.judged for result in self.results)

    def close(self, minimise: bool = True) -> None:
        """Shrink the smallest failure, end the child and its descendants, then check the judge's files and write the
        report. minimise: whether a smaller failing case is looked for."""
        failed = [result for result in self.results if result.failed and result.repro]
        alone = [result for result in failed if result.repro.count("--case") == 1]
        if alone and minimise:
            first = min(alone, key=lambda result: levels.size(levels.read(result.case)))
            self._say(f"looking for a smaller case than {first.case} (--no-minimise does without)")
            shrunk = self.kit.smallest(first.case)
            self.smallest = shrunk if shrunk.failed else first
        self.kit.close()
        self.changed = self.own.changed()
        if self.report:
            try:
                digest = self.report.write(json.dumps(self.to_dict(), indent=1) + "\n")
                self.reported = f"report: {self.report.path}, sha256 {digest}"
            except OSError as error:
                self.reported = f"{NO_REPORT}: {error}"

    def to_dict(self) -> dict[str, Any]:
        """The report."""
        kit, asked = self.kit, self.asked
        declared = kit.declared
        return {
            "kernel": kit.kernel,
            "seed": kit.seed,
            "device": kit.device,
            "seconds": round(self.seconds, 1),
            "tampered": bool(self.spoiled),
            "changed": self.changed,
            "read": sorted(kit.child.noted.read),
            "not_ended": kit.child.noted.unended,
            "isolated": not kit.child.not_isolated,
            "not_isolated": kit.child.not_isolated,
            "supports": sorted(declared.supports),
            "contract": declared.contract.words(),
            "weaker_than_default": declared.contract.weaker,
            "asked": asked.to_dict(),
            "declared_and_not_asked": asked.missing(declared.supports),
            "not_judged": [result.case for result in self.late],
            "smallest": asdict(self.smallest) if self.smallest else None,
            "cases": [asdict(result) for result in self.results],
        }

    def lines(self) -> list[str]:
        """The verdict first, then what it stands on, then each failure with the command that repeats it."""
        counts = Counter("declared unsupported" if one.declared else one.status for one in self.results)
        told = [self._verdict(), *_heading(self.kit), *self._warnings()]
        told += ["cases: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))]
        told[-1] += f", in {_time(self.seconds)}"
        told += [line for result in self.results for line in _told(result)]
        if self.smallest:
            told.append(f"smallest failing case: {self.smallest.case}: {self.smallest.reason}")
            told.append(f"    {self.smallest.repro}")
        return told + [self.reported] * bool(self.reported)

    @property
    def spoiled(self) -> str:
        """Why no result of this run counts; empty where they do."""
        noted = self.kit.child.noted
        named = {
            "files of the kit changed while the kernel ran": self.changed,
            "the kernel read how it is judged": sorted(noted.read),
            "processes of the kernel could not be ended": noted.unended,
        }
        found = [f"{why}: nothing below counts: {', '.join(map(str, which))}" for why, which in named.items() if which]
        return found[0] if found else ""

    def _verdict(self) -> str:
        """The verdict in less than 200 characters."""
        failed = [result for result in self.results if result.failed]
        if self.spoiled:
            return _short(self.spoiled)
        if failed:
            one = self.smallest or failed[0]
            cause = f", and equals what {one.cause} would give" if one.cause else ""
            return _short(f"WRONG in {len(failed)} of {self.asked.cases} cases{cause}; {one.case}: {one.reason}")
        cases, late = self.asked.cases, len(self.late)
        if not cases:
            return f"{NO_ANSWER} in any of {late} cases" if late else NOTHING
        weaker = self.kit.declared.contract.weaker_words
        under = f", under a precision weaker than the default: {weaker}" if weaker else ""
        under += f"; not isolated: {self.kit.child.not_isolated}" if self.kit.child.not_isolated else ""
        if late:
            return _short(f"right in {cases} of {cases + late} cases; {late} NOT JUDGED: no answer in time{under}")
        return _short(f"right in all {cases} cases that were asked{under}")

    def _warnings(self) -> list[str]:
        asked, declared = self.asked, self.kit.declared
        told = asked.lines()
        if missing := asked.missing(declared.supports):
            told.append(f"warning: declared and not asked: {', '.join(missing)}")
        if self.late:
            more = "which fails the run (--strict)" if self.strict else "which --strict lets fail"
            told.append(
                f"warning: no answer in time in {len(self.late)} cases, {more}; --time-limit gives them more time"
            )
        if declared.contract.weaker:
            told.append(f"warning: held to a weaker precision than the default: {declared.contract.weaker_words}")
        return told

    @property
    def code(self) -> int:
        """The exit code: 0 right, 1 wrong, 5 nothing was judged."""
        late = self.strict and self.late
        if self.spoiled or late or self.reported.startswith(NO_REPORT) or any(one.failed for one in self.results):
            return 1
        return 0 if any(one.judged for one in self.results) else 5


def _told(result: Result) -> list[str]:
    """What the terminal shows of a result that is not `ok`, and the command that repeats it."""
    if not result.failed and result.status != LATE:
        return []
    status = "not judged" if result.status == LATE else result.status
    return [f"{status}  {result.case}: {result.reason}", f"    {result.repro}"]


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _short(text: str) -> str:
    return text if len(text) < LINE else text[: LINE - 4] + "..."


def _heading(kit: Kit) -> list[str]:
    declared = kit.declared
    supports = ", ".join(sorted(declared.supports)) + ("" if declared.supports_given else " (it declares nothing)")
    lines = [f"called as {declared.adapter} on {kit.device}; supports {supports}"]
    lines.append("held to " + ", ".join(f"{name} {word}" for name, word in declared.contract.words().items()))
    limits = "; ".join(f"{name} {_ends(value)}" for name, value in declared.limits.items())
    return lines + ([f"limits: {limits}"] if limits else [])


def _ends(value: Any) -> str:
    """The values that a limit allows; of a long list, its ends."""
    if isinstance(value, list):
        words = [str(one) for one in value]
        return ", ".join(words if len(words) <= 6 else [*words[:2], "...", words[-1]])
    return str(value)


def _say(line: str) -> None:
    """Print a line. Raises BrokenPipeError where its reader has gone; later ones then go nowhere."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _judge(found: Summary, lanes: Lanes, cases: list[str], exitfirst: bool) -> bool:
    """Ask every case. Returns whether the kit itself never failed; its error is printed and ends no run."""
    whole = True
    for case in cases:
        try:
            result = Result(case, NOT_ASKED) if found.hopeless else lanes.result(case)
        except Exception:
            traceback.print_exc()
            whole = False
            continue
        found.add(result)
        if exitfirst and (result.failed or (found.strict and result.status == LATE)):
            break
    return whole


def run(asked: argparse.Namespace) -> int:
    """What the parsed words of `diptych-check` ask for; returns the exit code of `Summary.code`, 2 for usage and no
    such kernel, 130 interrupted."""
    print_every_character()
    try:
        why = _misused(asked)
        plan = None if why else Plan.of(asked)
    except Unavailable as error:
        why = str(error)
    if why:
        print(f"diptych-check: {why}", file=sys.stderr)
        return 2
    if asked.list:
        with contextlib.suppress(BrokenPipeError):
            _say("\n".join(plan.cases))
        for kit in plan.kits:
            kit.close()
        return 0
    return _asked(plan, asked)


def _asked(plan: Plan, asked: argparse.Namespace) -> int:
    """Ask the plan's cases and print the verdict; returns the exit code. Where the reader of a pipe has gone, as with
    Ctrl-C, what was not asked stays so."""
    kit, at_once = plan.kits[0], f", {len(plan.kits)} at once" if len(plan.kits) > 1 else ""
    found = Summary(kit, asked.report, len(plan.cases), _say, strict=asked.strict)
    lanes, interrupted, whole = Lanes(plan.kits, plan.cases), False, True
    try:
        _say(f"{len(plan.cases)} cases ({plan.words}){at_once}, seed {kit.seed}")
        whole = _judge(found, lanes, plan.cases, asked.exitfirst)
    except (KeyboardInterrupt, BrokenPipeError):
        interrupted = True
    lanes.close()
    with contextlib.suppress(BrokenPipeError):
        found.close(minimise=not (asked.no_minimise or interrupted))
        _say("\n".join([f"conformance of {kit.kernel}, seed {kit.seed}", *found.lines()]))
    return 130 if interrupted else found.code if whole else 1
