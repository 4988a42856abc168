"""What one kernel did over many random cases: statuses and ratios, which add up over processes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch

from common.oracle.tolerance import RULES, Verdict
from compare.bench.subject import failure
from compare.record.records import Status

PROBLEMS = 5  # that many are kept in words, per kernel


@dataclass
class Tally:
    """What one kernel did over all cases: statuses, and the ratios by dtype and rule."""

    statuses: Counter = field(default_factory=Counter)
    ratios: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    problems: list[str] = field(default_factory=list)

    def judged(self, verdict: Verdict, dtype: torch.dtype, has_lse: bool, case: str) -> None:
        self.statuses[(Status.OK if verdict.ok else Status.INCORRECT).value] += 1
        for rule, label in RULES.items():
            if rule != "lse" or has_lse:
                self.ratios[str(dtype)[6:]][label].append(getattr(verdict, rule))
        if not verdict.ok:
            self.problem(f"{case}: {verdict.reason}")

    def failed(self, error: Exception, case: str) -> None:
        outcome = failure(error)
        status, reason = outcome["status"], outcome["reason"]
        self.statuses[status.value] += 1
        if status is Status.UNAVAILABLE:
            self.problems = [reason]
        elif status is not Status.UNSUPPORTED:
            self.problem(f"{case}: {reason}")

    def problem(self, words: str) -> None:
        if len(self.problems) < PROBLEMS:
            self.problems.append(words)

    def summary(self) -> dict[str, Any]:
        ratios = {
            dtype: {
                label: {"worst": _shown(max(of)), "p99": _shown(_quantile(of, 0.99))} for label, of in rules.items()
            }
            for dtype, rules in self.ratios.items()
        }
        return {"cases": dict(self.statuses), "ratios": ratios, "problems": self.problems}

    def plain(self) -> tuple[dict[str, int], dict[str, dict[str, list[float]]], list[str]]:
        """What another process can send."""
        return dict(self.statuses), {dtype: dict(rules) for dtype, rules in self.ratios.items()}, self.problems

    def add(self, statuses: dict[str, int], ratios: dict[str, dict[str, list[float]]], problems: list[str]) -> None:
        """The `plain` of a tally over other cases."""
        self.statuses.update(statuses)
        for dtype, rules in ratios.items():
            for label, of in rules.items():
                self.ratios[dtype][label] += of
        for words in problems:
            if words not in self.problems:
                self.problem(words)

    @property
    def bad(self) -> bool:
        return not set(self.statuses) <= {
            status.value for status in (Status.OK, Status.UNSUPPORTED, Status.UNAVAILABLE)
        }


def _shown(ratio: float) -> float | str:
    return round(ratio, 4) if math.isfinite(ratio) else "inf"


def _quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, math.ceil(q * len(values)) - 1)]


def table(tallies: dict[str, Tally]) -> str:
    """The worst ratios, one line per kernel and dtype."""
    lines = [f"{'kernel':26}{'dtype':10}{'cases':>7}" + "".join(f"{label:>11}" for label in RULES.values())]
    for kernel_id, tally in tallies.items():
        for dtype, rules in tally.ratios.items():
            worst = "".join(
                f"{max(rules[label]):11.3f}" if label in rules else f"{'-':>11}" for label in RULES.values()
            )
            lines.append(f"{kernel_id:26}{dtype:10}{len(rules['W']):7}{worst}")
        lines.append(f"{kernel_id:26}{', '.join(f'{count} {status}' for status, count in tally.statuses.items())}")
        lines += [f"    {problem}" for problem in tally.problems]
    return "\n".join(lines)
