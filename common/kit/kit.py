"""Judge one kernel from outside against the spec: four calls a case in a child, judged here from the returned bytes.

1. values A, outputs filled with NaN.  2. the same addresses, other values.  3. values A, except one tensor or one
number.  4. values A again, outputs filled with 7.0: `out` and the LSE must have the bits of call 1. So an output that
was kept from another call, or not written, is wrong (`common.cases.calls`). Once it is judged, the last is looked at
again: what a call leaves running may change nothing. The reference is computed in this process,
on its CPU, after the child has answered.
"""

import contextlib
import math
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from common.cases.calls import calls
from common.cases.case import Case, build, outputs
from common.kit.causes import Found, explained, not_written, said
from common.kit.declared import Declared
from common.kit.fitting import fitted
from common.kit.isolate import Isolated, Reply
from common.kit.levels import BEFORE, ELSEWHERE, is_made, read, seeded, simpler, write
from common.kit.pace import Pace
from common.kit.wire import Image
from common.oracle.integrity import Guards, differing
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec import Features, PagedBatch, SpecError, refusals

OTHER = 7.0
BEHIND_S = 1.0  # after which one case is looked at again
SMALL = 1e-8  # added to what a relative error is of
SHRINK_CALLS, SHRINK_S = 60, 120.0
LATE = "timeout"  # status of a case without an answer in time
NOT_ASKED = "not asked"


class Unavailable(RuntimeError):
    """The kernel cannot be imported, or its declarations cannot be understood; the message says why."""


@dataclass(frozen=True)
class Result:
    """What became of one case. case: its expression. declared: an `unsupported` that the kernel announced. cause: the
    mistake that explains it, if one was searched and found. errors: the largest over its calls, from float64:
    `absolute` and `relative` of `out`, and `part` of a budget, of any of the checker's rules; None: not finite."""

    case: str
    status: str
    reason: str = ""
    declared: bool = False
    repro: str = ""
    cause: str = ""
    errors: dict[str, float | None] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return self.judged and self.status != "ok"

    @property
    def judged(self) -> bool:
        """Whether there is a verdict: the kernel was called, and answered or died."""
        return self.status not in ("too_large", LATE, NOT_ASKED) and not self.declared


class _Wrong(Exception):
    """A wrong call: a status and one sentence."""

    def __init__(self, status: str, reason: str, cause: str = "") -> None:
        super().__init__(reason)
        self.status, self.reason, self.cause = status, reason, cause


@dataclass
class Kit:
    """Checks one kernel. child: where it runs; `close` ends it. command: how a repro line begins. outside: `supports`
    or `limits` that replace the kernel's own. pace: how long its calls may take."""

    kernel: str
    seed: int
    child: Isolated
    adapter: str = "auto"
    device: str = "cpu"
    command: str = "diptych-check"
    outside: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    pace: Pace | None = None
    _declared: Declared | None = None
    _before: str = ""  # the child's last case
    _stopped: bool = False
    _why: str | None = None  # the mistake searched for the running case
    _last: tuple[Image, dict[str, torch.Tensor]] | None = None  # the last call, and what came back of it
    _earlier: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)  # results of its calls
    _errors: dict[str, float | None] = field(default_factory=dict)  # and the largest of them

    def close(self) -> None:
        self.child.close()

    def beside(self, child: Isolated) -> "Kit":
        """A kit for the same kernel, in another process."""
        return replace(self, child=child, _before="")

    def stop(self) -> None:
        """For another thread: end the running case at once, with a meaningless result."""
        self._stopped = True
        self.child.kill()

    def resume(self) -> None:
        """After `stop`: use a fresh process for the next case."""
        self._stopped, self._before = False, ""
        self.child.close()

    @property
    def declared(self) -> Declared:
        """What the kernel declares, asked once. Raises Unavailable."""
        if self._declared is None:
            reply = self.child.ask({"ask": "describe", "kernel": self.kernel, "adapter": self.adapter})
            if reply.status != "ok":
                why = f"found {self.kernel}, which does not load: {reply.reason}"
                raise Unavailable(f"kernel: {why}; allowed package.module:name, which Python finds from this folder")
            try:
                self._declared = Declared.of(reply.said | self.outside)
            except SpecError as error:
                raise Unavailable(f"{self.kernel}: {error}") from error
        return self._declared

    def repro(self, *cases: str) -> str:
        """The command that repeats these cases, in this order, in one process."""
        words = [self.command, self.kernel, *(word for case in cases for word in ("--case", case))]
        return shlex.join([*words, "--seed", str(self.seed), *self.options])

    def run(self, expression: str) -> Result:
        """Run one case; a failure is repeated in a fresh child, so that its repro line is known to fail."""
        result = self.once(expression)
        before, self._before = self._before, expression
        if result.status == LATE:
            self._before = ""  # the next case has a fresh process
            return replace(result, repro=self.repro(expression))
        if not result.failed:
            return result
        lines = [(expression,), (before, expression)] if before else [(expression,)]
        for cases in lines:
            self.child.close()
            again = [self.once(case, "") for case in cases][-1]
            if again.failed:
                return replace(again, repro=self.repro(*cases))
        reason = f"{result.reason}; not again alone in a fresh process: only behind the cases before it"
        whole = shlex.join([self.command, self.kernel, "--seed", str(self.seed), *self.options])
        return Result(result.case, result.status, reason, repro=whole)

    def once(self, expression: str, why: str | None = None) -> Result:
        """Run one case in the present child. why: the mistake to search behind a failure: "" for any of
        `common.kit.causes`, else this one; None for none."""
        self._why, self._earlier, self._errors = why, {}, {}
        case = self._fitting(expression)
        name = write(case)
        if case.large and self.device == "cpu":
            return Result(name, "too_large", "for a GPU")
        run = seeded(case, self.seed)
        guards = Guards("cpu")
        batch, features = build(run, "cpu", guards)
        if why := self.declared.refusal(case, batch, features):
            return Result(name, "unsupported", why, declared=True)
        if error := refusals.refusal(case.fp8, refusals.target_of(torch.device(self.device))):
            return Result(name, "unsupported", f"not asked of this GPU: {error}", declared=True)
        try:
            if case.name in BEFORE:
                earlier = seeded(BEFORE[case.name], self.seed)
                room = Guards("cpu")
                self._call(earlier, *build(earlier, "cpu", room), room, math.nan)
            first = self._calls(run, batch, features, guards)
            if case.name == ELSEWHERE:
                self._elsewhere(run, batch, features, guards, first)
        except _Wrong as wrong:
            return Result(name, wrong.status, wrong.reason, cause=wrong.cause, errors=self._errors)
        return Result(name, "ok", errors=self._errors)

    def _fitting(self, expression: str) -> Case:
        """The case: in a declared dtype, where its own is not declared and none was asked for; if made by axes, without
        undeclared features."""
        case, known = read(expression), self.declared.limits.get("dtype")
        if is_made(case):
            return fitted(case, self.declared.supports, self.declared.limits)
        own = not known or "@dtype=" in expression or str(case.dtype).removeprefix("torch.") in known
        return case if own else read(f"{expression}@dtype={known[0]}")

    def _elsewhere(
        self, case: Case, batch: PagedBatch, features: Features, guards: Guards, first: dict[str, torch.Tensor]
    ) -> None:
        """Repeat the first call in another process. Raises _Wrong."""
        self.child.close()
        found = self._judged(case, batch, features, guards, math.nan, "call 1 in another process")
        if self.declared.limits.get("deterministic", True) and (names := differing(first, found)):
            raise _Wrong("nondeterministic", f"call 1 in another process gave other bits of {names[0]}")

    def _calls(self, case: Case, batch: PagedBatch, features: Features, guards: Guards) -> dict[str, torch.Tensor]:
        """The result of a case's first call, after all of its calls. Raises _Wrong."""
        first = None
        for call in calls(case, batch, features):
            poison = OTHER if call.again else math.nan
            found = self._judged(case, call.batch, call.features, guards, poison, call.name)
            first = found if first is None else first
            self._earlier[call.name] = found
            status, why = call.unlike(first, found, self.declared.limits.get("deterministic", True))
            if why:
                raise _Wrong(status, why)
        if not case.brief:
            self._look(case, f"{call.name.partition(',')[0]}, once it had returned")
        return first

    def _look(self, case: Case, which: str) -> None:
        """Look at the last call's tensors again, in one case a while later. Raises _Wrong where they have changed."""
        image, found = self._last
        time.sleep(BEHIND_S if case.name == ELSEWHERE else 0.0)
        with image.room() as room:
            reply = self.child.ask(
                {"ask": "look", "storages": image.request()["storages"]}, files=(room.descriptor,) * 2
            )
            if reply.status != "ok":
                raise _Wrong(reply.status, f"{which}: {reply.reason}")
            again, damaged = image.returned(room, image.num_tokens)
        if not damaged:
            damaged = [f"wrote {name}" for name in differing(found, again)]
        if damaged:
            raise _Wrong("incorrect", f"{which}: {'; '.join(damaged)}")

    def _judged(
        self, case: Case, batch: PagedBatch, features: Features, guards: Guards, poison: float, which: str
    ) -> dict[str, torch.Tensor]:
        """The rows of `out`, and of `lse` if present, that tokens own. Raises _Wrong."""
        try:
            out, lse, damaged = self._call(case, batch, features, guards, poison)
        except _Wrong as wrong:
            raise _Wrong(wrong.status, f"{which}: {wrong.reason}") from wrong
        expected = reference(batch, features)
        if damaged:
            raise _Wrong("incorrect", f"{which}: {'; '.join(damaged)}")
        contract = self.declared.contract
        verdict = check(out, lse, batch, features, contract, expected, structured=case.structured)
        written = {"out": out} | ({} if lse is None else {"lse": lse})
        written = {name: tensor[: expected.num_tokens].clone() for name, tensor in written.items()}
        self._note(written["out"].double(), expected.out[: expected.num_tokens], verdict.worst)
        if not verdict.ok:
            found = Found(out, lse, batch, features, contract, case.structured)
            more, cause = "", ""
            if self._why is not None:
                again = partial(self._call, case, batch, features, guards)
                more, cause = self._because(found, written, poison, again)
            raise _Wrong("incorrect", f"{which}: {verdict.reason}{more}", cause)
        return written

    def _note(self, out: torch.Tensor, expected: torch.Tensor, part: float) -> None:
        """Keep the largest errors of the case."""
        off = (out - expected).abs()
        found = {"absolute": off, "relative": off / (expected.abs() + SMALL)}
        found = {name: float(error.max()) if error.numel() else 0.0 for name, error in found.items()} | {"part": part}
        for name, error in found.items():
            before = self._errors.get(name, 0.0)
            self._errors[name] = None if before is None or not math.isfinite(error) else max(before, error)

    def _because(
        self, found: Found, written: dict[str, torch.Tensor], poison: float, again: Callable[[float], Any]
    ) -> tuple[str, str]:
        """What explains a wrong result: the end of the reason, and the mistake itself. again: repeats the call with
        outputs filled with another number."""
        if self._why:
            return (said([self._why]), self._why) if explained(found, self._why) else ("", "")
        if found.is_the_query:
            return "; its bits are the query's", ""
        if names := explained(found):
            return said(names), names[0]
        for name, earlier in self._earlier.items():
            alike = earlier["out"].shape == written["out"].shape and written["out"].numel()
            if alike and not differing({"out": earlier["out"]}, {"out": written["out"]}):
                return f"; its bits are those of {name.partition(',')[0]}, whose values were others", ""
        other = math.nan if poison == OTHER else OTHER
        with contextlib.suppress(_Wrong):
            out, lse, _ = again(other)
            tokens = len(written["out"])
            for name, tensor in (("out", out), ("lse", lse)):
                if name in written and (more := not_written(name, written[name], tensor[:tokens], poison, other)):
                    return more, ""
        return "", ""

    def _call(
        self, case: Case, batch: PagedBatch, features: Features, guards: Guards, poison: float
    ) -> tuple[torch.Tensor, torch.Tensor | None, list[str]]:
        """out and lse as they came back, and what else changed. Raises _Wrong where nothing came back."""
        if case.lse is None and not self.declared.without_lse:
            case = case.but(lse="rows")
        out, lse = outputs(case, batch, guards, poison)
        asked = lse is not None and "lse" in self.declared.supports
        written = {"out": out} | ({"lse": lse} if asked else {})
        image = Image.of(batch, features, written)
        request = image.request() | {"ask": "call", "device": self.device}
        request |= {"kernel": self.kernel, "adapter": self.declared.adapter}
        with image.given() as given, image.room() as room:
            reply = self._asked(case, request, (given.descriptor, room.descriptor))
            if reply.status != "ok":
                raise _Wrong(*_named(reply))
            found, damaged = image.returned(room, image.num_tokens)
        self._last = image, found
        return found["out"], found.get("lse"), damaged

    def _asked(self, case: Case, request: dict[str, Any], files: tuple[int, ...]) -> Reply:
        """The child's answer to a call within the limit of its case."""
        if self._stopped:
            return Reply(LATE, "stopped")
        if self.pace is None:
            return self.child.ask(request, files=files)
        started, begun = self.child.started, time.monotonic()
        reply = self.child.ask(request, self.pace.limit(case), files=files)
        if reply.status == "ok" and self.child.started == started:  # else the time includes a start
            self.pace.saw(case, time.monotonic() - begun)
        return reply

    def smallest(self, expression: str, note: Callable[[str], None] = lambda _: None) -> Result:
        """The smallest case, found by leaving things out, that fails in the same way, alone in a fresh child. After
        SHRINK_S seconds the smallest so far."""
        best, calls, begun = self.once(expression, ""), 0, time.monotonic()
        improved = best.failed
        while improved and calls < SHRINK_CALLS:
            improved = False
            for candidate in simpler(read(best.case)):
                if time.monotonic() - begun > SHRINK_S:
                    break
                calls += 1
                try:
                    found = self.once(write(candidate), best.cause or None)
                except SpecError:  # without that part it is no case
                    continue
                if found.failed and (found.status, found.cause) == (best.status, best.cause):
                    best, improved = found, True
                    note(best.case)
                if improved or calls >= SHRINK_CALLS:
                    break
        return replace(best, repro=self.repro(best.case))


def _named(reply: Reply) -> tuple[str, str]:
    """The status and reason of a call that failed; a refusal here is an undeclared one."""
    if reply.status == "unsupported":
        return reply.status, f"refused what SUPPORTS and LIMITS declare: {reply.reason}"
    known = ("incorrect", "crash", "timeout", "oom")
    return (reply.status, reply.reason) if reply.status in known else ("crash", f"answered {reply.status!r:.60}")
