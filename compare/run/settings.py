"""Rare options of `run`: `--set NAME=VALUE,...`, and the assumptions of `--trace FILE:NAME=VALUE,...`."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from compare.competitors.registry import HEURISTICS
from compare.record.contract import CACHES
from compare.workloads import GrammarError
from compare.workloads.numbers import at_least_one, number, page, positive, window


@dataclass(frozen=True)
class Setting:
    """One setting. read: parses its text, raises ArgumentTypeError. default: the value if it is not set."""

    read: Callable[[str], Any]
    default: Any
    help: str


def _one_of(allowed: Iterable[str]) -> Callable[[str], str]:
    names = tuple(allowed)

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"found {text:.40}, allowed {', '.join(names)}")
        return text

    return read


SETTINGS = {
    "block_size": Setting(page, None, "tokens of a KV-cache page, of --workload and --trace (16)"),
    "dtype": Setting(str, None, "bf16, fp16, fp32, of these (bf16)"),
    "window": Setting(window, None, "sliding window, the query's own token included (none)"),
    "heuristics": Setting(
        _one_of(HEURISTICS),
        "tree",
        "whose configs: measured winners, then what logs teach (tree); the latter alone (learned); the kernel's "
        "DEFAULT (default); Listing 2 (paper)",
    ),
    "cache": Setting(_one_of(CACHES), None, "before each call: cold, or hot as of the paper's timer"),
    "cpu_budget": Setting(positive, 30.0, "seconds of a cell in the interpreter (30)"),
    "timeout": Setting(positive, 300.0, "seconds without a sign of life (300)"),
}
OF_A_TRACE = {
    "batches": Setting(at_least_one, None, "steps kept, at even quantiles of KV tokens (16)"),
    "step_ms": Setting(number, None, "fixed part of a step (5 ms)"),
    "token_us": Setting(number, None, "per scheduled token (25 us)"),
}


def read(option: str, words: Iterable[str], known: Mapping[str, Setting]) -> dict[str, Any]:
    """The value of each known name. words: `name=value,name=value`. Raises GrammarError for another name or value."""
    found = {name: setting.default for name, setting in known.items()}
    for pair in (pair for word in words for pair in word.split(",")):
        written, equals, value = pair.partition("=")
        name = written.strip().replace("-", "_")
        if not equals or name not in known:
            allowed = ", ".join(f"{dashed(one)}=..." for one in known)
            raise GrammarError(f"{option}: found {pair!r:.60}, allowed {allowed}")
        try:
            found[name] = known[name].read(value)
        except (argparse.ArgumentTypeError, ValueError) as error:
            raise GrammarError(f"{option} {dashed(name)}: {error}") from error
    return found


def trace(text: str | None) -> tuple[str | None, dict[str, Any]]:
    """(the file of a --trace, what it assumes). Raises GrammarError."""
    file, colon, rest = (text or "").rpartition(":")
    assumed = colon and "=" in rest
    return file if assumed else text, read("--trace", [rest] if assumed else [], OF_A_TRACE)


def dashed(name: str) -> str:
    """The name as users write it, with dashes."""
    return name.replace("_", "-")


def lines(known: Mapping[str, Setting]) -> str:
    """All settings and their help, as one text for --help."""
    return "; ".join(f"{dashed(name)}: {one.help}" for name, one in known.items()).replace("%", "%%")
