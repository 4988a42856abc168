"""The conformance kit as a pytest suite: one test a case, for a kernel from anywhere.

    pytest --pyargs common.conformance --kernel my_package:my_kernel --level smoke
    diptych-check my_package:my_kernel

The options are `diptych_check.py`'s. docs/conformance.md walks through it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import common
from common.kit import levels
from common.kit.isolate import Isolated, Limits
from common.kit.kit import Kit, Result, Unavailable
from common.spec import SpecError

HERE = Path(__file__).resolve().parent
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
            return f"--{name}: found {found!r}, allowed {', '.join(allowed)}"
    if config.getoption("kit_time-limit") <= 0:
        return "--time-limit: found a limit that is not positive, allowed seconds"
    try:
        _limits(config)
        for expression in config.getoption("--case"):
            levels.read(expression)
    except SpecError as error:
        return f"--{error}"
    return ""


def _limits(config: pytest.Config) -> dict[str, Any] | None:
    """The object in the file of --limits. Raises SpecError."""
    if (path := config.getoption("kit_limits")) is None:
        return None
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise SpecError("limits", error, "a JSON file") from error
    if not isinstance(found, dict):
        raise SpecError("limits", type(found).__name__, "a JSON object")
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if _misused(metafunc.config):  # said by the fixture: an exit while tests are collected loses its exit code
        metafunc.parametrize("case", ["options"])
        return
    cases = metafunc.config.getoption("--case") or list(levels.level(metafunc.config.getoption("kit_level")))
    metafunc.parametrize("case", cases, ids=cases)


def sources() -> str:
    """A hash of the kit's own files, which a kernel could write to."""
    found = hashlib.sha256()
    for path in sorted(HERE.rglob("*.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def make(config: pytest.Config) -> Kit:
    def option(name: str) -> Any:
        return config.getoption(f"kit_{name}")

    device = option("device")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    interpret = option("interpret") == "on" or (option("interpret") == "auto" and device == "cpu")
    limits = Limits(call_s=option("time-limit")) if device == "cpu" else Limits(call_s=option("time-limit"), memory=0)
    seed = secrets.randbits(31) if option("seed") is None else option("seed")
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
    said = {"limits": _limits(config)}
    if option("supports") is not None:
        said["supports"] = [name for name in option("supports").split(",") if name]
    outside = {name: value for name, value in said.items() if value is not None}
    kernel = config.getoption("--kernel")
    return Kit(kernel, seed, child, option("adapter"), device, outside=outside, options=tuple(options))


def _has_triton() -> bool:
    from importlib.util import find_spec

    return find_spec("triton") is not None


class Summary:
    """Gathers the results of a run and closes it: the smallest failing case, the report."""

    def __init__(self, kit: Kit, report: str | None) -> None:
        self.kit, self.report, self.results, self.smallest = kit, report, [], None
        self.before = sources()
        self.tampered = False

    def close(self) -> None:
        """Shrink the smallest failure, end the child, write the report."""
        failed = [result for result in self.results if result.failed and result.repro]
        alone = [result for result in failed if result.repro.count("--case") == 1]
        if alone:
            first = min(alone, key=lambda result: levels.size(levels.read(result.case)))
            shrunk = self.kit.smallest(first.case)
            self.smallest = shrunk if shrunk.failed else first
        self.tampered = sources() != self.before
        self.kit.close()
        if self.report:
            kit = self.kit
            whole = {"kernel": kit.kernel, "seed": kit.seed, "device": kit.device, "tampered": self.tampered}
            whole["smallest"] = asdict(self.smallest) if self.smallest else None
            whole["cases"] = [asdict(result) for result in self.results]
            Path(self.report).write_text(json.dumps(whole, indent=1) + "\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write = terminalreporter.write_line
        counts = {}
        for result in self.results:
            name = "declared unsupported" if result.declared else result.status
            counts[name] = counts.get(name, 0) + 1
        terminalreporter.section(f"conformance of {self.kit.kernel}, seed {self.kit.seed}")
        for line in _heading(self.kit):
            write(line)
        write("cases: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
        for result in self.results:
            if result.failed:
                write(f"{result.status}  {result.case}: {result.reason}")
                write(f"    {result.repro}")
        if self.smallest:
            write(f"smallest failing case: {self.smallest.case}: {self.smallest.reason}")
            write(f"    {self.smallest.repro}")
        if self.tampered:
            write("files of the kit changed while the kernel ran: nothing above counts")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        ran = [result for result in self.results if result.status == "ok" or result.failed]
        if self.tampered:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif session.exitstatus == pytest.ExitCode.OK and not ran:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def _heading(kit: Kit) -> list[str]:
    declared = kit.declared
    contract = {k: str(v).removeprefix("torch.") for k, v in asdict(declared.contract).items()}
    supports = ", ".join(sorted(declared.supports)) + ("" if declared.supports_given else " (it declares nothing)")
    lines = [f"called as {declared.adapter} on {kit.device}; supports {supports}"]
    lines.append("held to " + ", ".join(f"{name} {value}" for name, value in contract.items() if value != "None"))
    limits = "; ".join(f"{name} {_short(value)}" for name, value in declared.limits.items())
    return lines + ([f"limits: {limits}"] if limits else [])


def _short(value: Any) -> str:
    """What a limit allows; of a long list its ends."""
    if isinstance(value, list):
        words = [str(one) for one in value]
        return ", ".join(words if len(words) <= 6 else [*words[:2], "...", words[-1]])
    return str(value)


@pytest.fixture(scope="module")
def summary(request: pytest.FixtureRequest):
    if why := _misused(request.config):
        pytest.exit(why, returncode=pytest.ExitCode.USAGE_ERROR)
    kit = make(request.config)
    try:
        kit.declared  # noqa: B018  asked first: a kernel that is not there is one error and not one a case
    except Unavailable as error:
        kit.close()
        pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
    found = Summary(kit, request.config.getoption("kit_report"))
    request.config.pluginmanager.register(found, "diptych-summary")
    yield found
    found.close()


def test_conforms(case: str, summary: Summary) -> None:
    result: Result = summary.kit.run(case)
    summary.results.append(result)
    if result.declared or result.status == "too_large":
        pytest.skip(result.reason)
    if result.failed:
        pytest.fail(f"{result.status}: {result.reason}\n{result.repro}", pytrace=False)
