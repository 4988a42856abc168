"""The kit's calls and verdict on a function in this process: for our own kernels, thousands of them.

Without a child a case costs its reference, once, and then a call. Nothing is contained here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from common.cases.calls import calls
from common.cases.case import Case, build, outputs
from common.kit.levels import BEFORE, seeded
from common.oracle.integrity import Guards, Snapshot, damage, same_bits
from common.oracle.reference import Expected, reference
from common.oracle.tolerance import check
from common.spec import Features, PagedBatch
from common.spec.kernel import Precision

OTHER = 7.0
Launch = Callable[[PagedBatch, Features, Tensor, Tensor | None], None]  # writes out, and lse where asked


@dataclass
class Asked:
    """A case, built once, and the expected result of each of its calls."""

    case: Case
    batch: PagedBatch
    features: Features
    guards: Guards
    known: list[tuple[Expected, Snapshot]]
    right: tuple[Tensor, ...] | None = None  # what a right kernel writes in the first call

    @classmethod
    def of(cls, case: Case, seed: int = 0) -> "Asked":
        case, guards = seeded(case, seed), Guards()
        batch, features = build(case, "cpu", guards)
        known = [
            (reference(call.batch, call.features), Snapshot.of(call.batch, call.features))
            for call in calls(case, batch, features)
        ]
        return cls(case, batch, features, guards, known)

    def same_as_right(self, launch: Launch, right: Launch) -> bool:
        """Whether a kernel's first call writes the same bits as a right kernel's: then its verdict is known."""
        found = []
        for one in (launch,) if self.right else (launch, right):
            out, lse = outputs(self.case, self.batch, self.guards)
            one(self.batch, self.features, out, lse)
            found.append((out,) if lse is None else (out, lse))
        self.right = self.right or found[1]
        return all(same_bits(a, b) for a, b in zip(found[0], self.right, strict=True))

    def why_not(self, launch: Launch, contract: Precision | None = None) -> str:
        """What is wrong with a kernel; empty where nothing is. Raises what the kernel raises.

        A kernel that damages the inputs leaves them damaged: build the case anew for the next one.
        """
        if self.case.name in BEFORE:
            earlier = Asked.of(BEFORE[self.case.name])
            out, lse = outputs(earlier.case, earlier.batch, earlier.guards)
            launch(earlier.batch, earlier.features, out, lse)
        first = None
        for call, (expected, before) in zip(calls(self.case, self.batch, self.features), self.known, strict=True):
            poison = OTHER if call.again else math.nan
            out, lse = outputs(self.case, call.batch, self.guards, poison)
            launch(call.batch, call.features, out, lse)
            given = (call.batch, call.features)
            verdict = check(out, lse, *given, contract or Precision(), expected, structured=self.case.structured)
            written = {"out": out} | ({} if lse is None else {"lse": lse})
            hurt = damage(before, *given, written, poison, self.guards)
            if hurt or not verdict.ok:
                return f"{call.name}: {'; '.join(filter(None, (verdict.reason, *hurt)))}"
            rows = {name: tensor[: expected.num_tokens].clone() for name, tensor in written.items()}
            first = rows if first is None else first
            if why := call.unlike(first, rows)[1]:
                return why
        return ""
