"""The conformance kit as a pytest suite: one test a case, for a kernel from anywhere.

    pytest --pyargs common.conformance --kernel my_package:my_kernel --level smoke
    diptych-check my_package:my_kernel

The options are `diptych_check.py`'s. docs/conformance.md walks through it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import common
from common.kit import levels
from common.kit.asked import Asked
from common.kit.declared import limits_of, supports_of
from common.kit.isolate import Isolated, Limits
from common.kit.kit import Kit, Result, Unavailable
from common.kit.own_files import OwnFiles
from common.spec import SpecError

TELL_S = 20.0  # between two words on how far a run is
LINE = 200
NOTHING = "nothing was asked: all cases are declared unsupported, or too large for a CPU"
TAKES = {"full": "; a plain-torch kernel takes about ten minutes"}
CHOICES = {"level": levels.LEVELS, "interpret": ("auto", "on", "off"), "device": ("auto", "cpu", "cuda")}
CHOICES |= {"adapter": ("auto", "paged", "flash_attn_varlen", "flash_attn_kvcache", "protocol")}


def _misused(config: pytest.Config) -> str:
    """Why options cannot be meant; empty where they can."""
    if getattr(common, "__project__", None) != "diptych":
        return f"common: found {common.__file__}, allowed Diptych's; run diptych-check instead"
    if not config.getoption("--kernel"):
        return "--kernel: found none, allowed package.module:name"
    for name, allowed in CHOICES.items():
        if (found := config.getoption(f"kit_{name}")) not in allowed:
            return f"--{name}: found {found!r:.60}, allowed {', '.join(allowed)}"
    if config.getoption("kit_device") == "cuda" and not torch.cuda.is_available():
        return "--device: found cuda, and torch finds no GPU here; allowed cpu, auto"
    try:
        _outside(config)
        _writable(config.getoption("kit_report"))
        for expression in config.getoption("--case"):
            levels.read(expression)
    except SpecError as error:
        return f"--{error}"
    return ""


def _writable(report: str | None) -> None:
    """Raises SpecError where a report cannot be written there, before a run of minutes ends so."""
    try:
        if report is not None:
            Path(report).open("a").close()
    except (OSError, ValueError) as error:
        raise SpecError("report", f"{report!r:.60}", f"a file that can be written: {error}") from error


def _limits(config: pytest.Config) -> dict[str, Any] | None:
    """The object in the file of --limits. Raises SpecError."""
    if (path := config.getoption("kit_limits")) is None:
        return None
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError("limits", f"{error!s:.120}", "a JSON file") from error
    return limits_of(found)


def _outside(config: pytest.Config) -> dict[str, Any]:
    """What the command declares in the kernel's place. Raises SpecError."""
    said = {"limits": _limits(config)}
    if (names := config.getoption("kit_supports")) is not None:
        said["supports"] = sorted(supports_of(name.strip() for name in names.split(",") if name.strip()))
    return {name: value for name, value in said.items() if value is not None}


def _cases(config: pytest.Config) -> list[str]:
    return config.getoption("--case") or list(levels.level(config.getoption("kit_level")))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if _misused(metafunc.config):  # said by the fixture: an exit while tests are collected loses its exit code
        metafunc.parametrize("case", ["options"])
        return
    cases = _cases(metafunc.config)
    metafunc.parametrize("case", cases, ids=cases)


def make(config: pytest.Config) -> Kit:
    def option(name: str) -> Any:
        return config.getoption(f"kit_{name}")

    device = option("device")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    interpret = option("interpret") == "on" or (option("interpret") == "auto" and device == "cpu")
    limits = Limits(call_s=option("time-limit")) if device == "cpu" else Limits(call_s=option("time-limit"), memory=0)
    seed = secrets.randbits(31) if option("seed") == "random" else option("seed")
    shown = {
        "adapter": "auto",
        "device": "auto",
        "interpret": "auto",
        "time-limit": 60.0,
        "supports": None,
        "limits": None,
    }
    options = [f"--{name}={option(name)}" for name, default in shown.items() if option(name) != default]
    child = Isolated(limits, interpret=interpret and _has_triton())
    kernel, outside = config.getoption("--kernel"), _outside(config)
    return Kit(kernel, seed, child, option("adapter"), device, outside=outside, options=tuple(options))


def _has_triton() -> bool:
    from importlib.util import find_spec

    return find_spec("triton") is not None


class Summary:
    """Gathers the results of a run and closes it: the smallest failing case, what was asked, the report."""

    def __init__(self, kit: Kit, report: str | None, planned: int, say: Callable[[str], None]) -> None:
        self.kit, self.report, self.results, self.smallest = kit, report, [], None
        self.own, self.changed = OwnFiles(), []
        self._planned, self._say = planned, say
        self._begun = self._told = time.monotonic()

    def add(self, result: Result) -> None:
        """One more; at times says how far the run is."""
        self.results.append(result)
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
        """Of the cases that the kernel was called on."""
        called = [result for result in self.results if not result.declared and result.status != "too_large"]
        lse = "lse" in self.kit.declared.supports
        return Asked.of([levels.read(result.case) for result in called], lse=lse)

    def close(self) -> None:
        """Shrink the smallest failure, end the child, write the report."""
        failed = [result for result in self.results if result.failed and result.repro]
        alone = [result for result in failed if result.repro.count("--case") == 1]
        if alone:
            first = min(alone, key=lambda result: levels.size(levels.read(result.case)))
            shrunk = self.kit.smallest(first.case)
            self.smallest = shrunk if shrunk.failed else first
        self.changed = self.own.changed()
        self.kit.close()
        if self.report:
            Path(self.report).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """The report."""
        kit, asked = self.kit, self.asked
        declared = kit.declared
        return {
            "kernel": kit.kernel,
            "seed": kit.seed,
            "device": kit.device,
            "seconds": round(self.seconds, 1),
            "tampered": bool(self.changed),
            "changed": self.changed,
            "supports": sorted(declared.supports),
            "contract": declared.contract.words(),
            "weaker_than_default": declared.contract.weaker,
            "asked": asked.to_dict(),
            "declared_and_not_asked": asked.missing(declared.supports),
            "smallest": asdict(self.smallest) if self.smallest else None,
            "cases": [asdict(result) for result in self.results],
        }

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write = terminalreporter.write_line
        terminalreporter.section(f"conformance of {self.kit.kernel}, seed {self.kit.seed}")
        for line in self.lines():
            write(line)

    def lines(self) -> list[str]:
        """The verdict first, then what it stands on, then each failure with the line that repeats it."""
        counts = Counter("declared unsupported" if one.declared else one.status for one in self.results)
        told = [self._verdict(), *_heading(self.kit), *self._warnings()]
        told += ["cases: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))]
        told[-1] += f", in {_time(self.seconds)}"
        for result in self.results:
            if result.failed:
                told += [f"{result.status}  {result.case}: {result.reason}", f"    {result.repro}"]
        if self.smallest:
            told.append(f"smallest failing case: {self.smallest.case}: {self.smallest.reason}")
            told.append(f"    {self.smallest.repro}")
        return told

    def _verdict(self) -> str:
        """In less than 200 characters."""
        failed = [result for result in self.results if result.failed]
        if self.changed:
            named = ", ".join(self.changed)
            return _short(f"files of the kit changed while the kernel ran: nothing below counts: {named}")
        if failed:
            one = self.smallest or failed[0]
            return _short(f"WRONG in {len(failed)} of {self.asked.cases} cases; {one.case}: {one.reason}")
        weaker = self.kit.declared.contract.weaker_words
        under = f", under a precision weaker than the default: {weaker}" if weaker else ""
        return _short(f"right in all {self.asked.cases} cases that were asked{under}") if self.asked.cases else NOTHING

    def _warnings(self) -> list[str]:
        asked, declared = self.asked, self.kit.declared
        told = asked.lines()
        if missing := asked.missing(declared.supports):
            told.append(f"warning: declared and not asked: {', '.join(missing)}")
        if declared.contract.weaker:
            told.append(f"warning: held to a weaker precision than the default: {declared.contract.weaker_words}")
        return told

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        ran = [result for result in self.results if result.status == "ok" or result.failed]
        if self.changed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif session.exitstatus == pytest.ExitCode.OK and not ran:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


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
    """What a limit allows; of a long list its ends."""
    if isinstance(value, list):
        words = [str(one) for one in value]
        return ", ".join(words if len(words) <= 6 else [*words[:2], "...", words[-1]])
    return str(value)


class Refused(pytest.exit.Exception):
    """Nothing can be asked: the run ends with exit code 2. pytest prints the class's name before the words."""

    def __init__(self, why: str) -> None:
        super().__init__(why, pytest.ExitCode.USAGE_ERROR)


Refused.__module__, Refused.__qualname__ = "builtins", "diptych-check"


@pytest.fixture(scope="module")
def summary(request: pytest.FixtureRequest):
    if why := _misused(request.config):
        raise Refused(why)
    kit = make(request.config)
    try:
        kit.declared  # noqa: B018  asked first: a kernel that is not there is one error and not one a case
    except Unavailable as error:
        kit.close()
        raise Refused(str(error)) from None
    cases, level = _cases(request.config), request.config.getoption("kit_level")
    named = "the given" if request.config.getoption("--case") else f"level {level}"
    _say(request.config, f"{len(cases)} cases ({named}), seed {kit.seed}{TAKES.get(level, '') * (named[0] == 'l')}")
    found = Summary(kit, request.config.getoption("kit_report"), len(cases), partial(_say, request.config))
    request.config.pluginmanager.register(found, "diptych-summary")
    yield found
    found.close()


def _say(config: pytest.Config, line: str) -> None:
    """A line of its own on the terminal, between the dots."""
    reporter, capture = (config.pluginmanager.getplugin(name) for name in ("terminalreporter", "capturemanager"))
    if reporter is not None:
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            reporter.ensure_newline()
            reporter.write_line(line)


def test_conforms(case: str, summary: Summary) -> None:
    result: Result = summary.kit.run(case)
    summary.add(result)
    if result.declared or result.status == "too_large":
        pytest.skip(result.reason)
    if result.failed:
        pytest.fail(f"{result.status}: {result.reason}\n{result.repro}", pytrace=False)
