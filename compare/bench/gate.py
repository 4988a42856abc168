"""Judge what a callable writes before it is timed and after: no time without correctness.

The checked callable is the timed one: same config, same workspace, through graph replay where a graph is the timer.
Outputs are NaN before the first run and 7.0 before the second: equal bits mean that every element was written and that
the kernel is deterministic. Every page set is checked; inputs and the guard bands around every tensor must be intact.
"""

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import torch

from common.oracle.integrity import bits, fingerprint, same_bits
from common.oracle.tolerance import Verdict, check
from common.spec.precision import Precision
from compare.bench.arena import Arena
from compare.bench.intact import Intact, Rejected
from compare.record.records import GateResult, Status

NAN, OTHER = float("nan"), 7.0


def _judge(arena: Arena, number: int, contract: Precision, lse: torch.Tensor | None) -> Verdict:
    """Check the output of one page set. Raises Rejected."""
    batch = arena.batches[number]
    verdict = check(arena.outs[number], lse, batch, arena.features, contract, arena.expected)
    if not verdict.ok:
        raise Rejected(Status.INCORRECT, f"page set {number}: {verdict.reason}")
    return verdict


def _padding_intact(arena: Arena, sets: Sequence[int], poison: float) -> None:
    """Raise Rejected unless the rows past the last sequence still hold the poison."""
    if arena.outs[0].shape[0] == arena.live_tokens:
        return
    for number in sets:
        padding = arena.outs[number][arena.live_tokens :]
        if not same_bits(padding, torch.full_like(padding, poison)):
            raise Rejected(Status.INCORRECT, f"page set {number}: wrote rows of `out` that belong to no sequence")


def _worst(verdicts: Sequence[Verdict]) -> dict[str, float]:
    rules = ("element", "row", "worst_case", "lse")
    return {rule: max(getattr(verdict, rule) for verdict in verdicts) for rule in rules}


def _check_sets(arena: Arena, sets: Sequence[int], contract: Precision) -> list[Verdict]:
    """Check the first set against the reference, the others against its bits, or against the reference where bits
    differ."""
    verdicts = [_judge(arena, sets[0], contract, None)]
    live = slice(0, arena.live_tokens)
    for number in sets[1:]:
        if not same_bits(arena.outs[number][live], arena.outs[sets[0]][live]):
            verdicts.append(_judge(arena, number, contract, None))
    return verdicts


def _run(arena: Arena, run: Callable[[], None], poison: float, sets: Sequence[int]) -> None:
    """Run once over poisoned outputs; inputs and guards must be unchanged. Raises Rejected.

    The reference is computed first, so that a kernel cannot change what it is judged by. The last output is read twice:
    behind the call on its own stream, as a clock sees it, and when the whole device is idle.
    """
    arena.compute_expected()
    inputs = arena.intact_inputs()
    arena.poison(poison)
    run()
    at_end = fingerprint(arena.outs[sets[-1]])
    arena.sync()
    if int(at_end) != int(fingerprint(arena.outs[sets[-1]])):
        why = "wrote its output behind the end of the call, on a stream that the call's does not wait for"
        raise Rejected(Status.INVALID_TIMING, why)
    if arena.fingerprint() != inputs:
        arena.refill()
        raise Rejected(Status.INCORRECT, "changed one of its inputs")
    violated = arena.guards.violated()
    if violated:
        arena.guards.mend()
        raise Rejected(Status.INCORRECT, f"wrote outside {', '.join(violated)}")


def before(arena: Arena, run: Callable[[], None], sets: Sequence[int], contract: Precision) -> GateResult:
    """Judge `run`, which must write `arena.outs[i]` for each i of `sets`, twice. Raises Rejected."""
    _run(arena, run, NAN, sets)
    verdicts = _check_sets(arena, sets, contract)
    _padding_intact(arena, sets, NAN)
    live = slice(0, arena.live_tokens)
    kept = [arena.outs[number][live].clone() for number in sets]
    _run(arena, run, OTHER, sets)
    for number, first in zip(sets, kept, strict=True):
        if not same_bits(arena.outs[number][live], first):
            raise Rejected(*_why_different(first, arena.outs[number][live], number))
    _padding_intact(arena, sets, OTHER)
    return GateResult(verdicts[0].tier, _worst(verdicts), len(sets), 1, True, contract.weaker_words)


def once(arena: Arena, run: Callable[[], None], sets: Sequence[int], contract: Precision) -> None:
    """Judge one poisoned run, for a config that is only screened. Raises Rejected."""
    _run(arena, run, NAN, sets)
    _check_sets(arena, sets, contract)


def _why_different(first: torch.Tensor, second: torch.Tensor, number: int) -> tuple[Status, str]:
    differ = bits(first) != bits(second)
    count, where = int(differ.sum()), differ.nonzero()[0].tolist()
    if bool((second[differ] == OTHER).all()):
        return Status.INCORRECT, f"page set {number}: {count} elements are not written, the first at {where}"
    return Status.NONDETERMINISTIC, f"page set {number}: {count} elements differ between two runs, first at {where}"


def again(
    arena: Arena, run: Callable[[], None], sets: Sequence[int], contract: Precision, first: GateResult
) -> GateResult:
    """Judge `run` once more, after the last round and on new values in the same buffers. Raises Rejected."""
    _run(arena, run, NAN, sets)
    verdicts = _check_sets(arena, sets, contract)
    _padding_intact(arena, sets, NAN)
    return _merged(first, verdicts)


def with_lse(arena: Arena, run: Callable[[], None], number: int, contract: Precision, first: GateResult) -> GateResult:
    """Judge a launch that also writes `arena.lse`; a second launch must give the same bits. Raises Rejected."""
    _run(arena, run, NAN, [number])
    verdict = _judge(arena, number, contract, arena.lse)
    _padding_intact(arena, [number], NAN)
    live = slice(0, arena.live_tokens)
    written = {"out": arena.outs[number], "lse": arena.lse}
    kept = {name: tensor[live].clone() for name, tensor in written.items()}
    _run(arena, run, OTHER, [number])
    for name, tensor in written.items():
        if not same_bits(tensor[live], kept[name]):
            status, reason = _why_different(kept[name], tensor[live], number)
            raise Rejected(status, f"{name} beside an LSE: {reason}")
    return _merged(first, [verdict])


def _merged(first: GateResult, verdicts: Sequence[Verdict]) -> GateResult:
    worst = {rule: max(first.worst[rule], part) for rule, part in _worst(verdicts).items()}
    return dataclasses.replace(first, worst=worst, value_sets=first.value_sets + 1)


class Watched:
    """The runner of a kernel that passed `before`, whose every sample is judged too. why_not: what was wrong first.

    Before a sample a secret element of one of its outputs gets another's value; behind it that output must have the
    bits that the gate accepted, or be right. A kernel that tells timed launches from the gate's, or leaves what looks
    right, is found.
    """

    def __init__(self, runner: Any, arena: Arena, sets: Sequence[int], contract: Precision, intact: Intact) -> None:
        self._runner, self._arena, self._contract, self._intact = runner, arena, contract, intact
        self.parts, self.why_not = runner.parts, ""
        prints = torch.stack([fingerprint(self._written(number)) for number in sets]).tolist()
        self._prints = dict(zip(sets, prints, strict=True))

    def _written(self, number: int) -> torch.Tensor:
        return self._arena.outs[number][: self._arena.live_tokens]

    def sample(self, part: int) -> float:
        number = secrets.choice(self.parts[part])
        elements = bits(self._written(number)).view(-1)
        if size := elements.numel():
            elements[secrets.randbelow(size)] = elements[secrets.randbelow(size)]
        took = self._runner.sample(part)
        try:
            self._intact.ensure()
            if int(fingerprint(self._written(number))) != self._prints[number]:
                _judge(self._arena, number, self._contract, None)
        except Rejected as error:
            self.why_not = self.why_not or f"a timed launch: {error.reason}"
        return took
