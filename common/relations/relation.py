"""Relations between results of one kernel: what must stay the same when a batch is changed in a known way.

They need no reference. A relation names the parts that a batch is turned into, and which rows of the parts' results
stand for which rows of the whole. `bitwise` relations hold bit for bit while the parts take the same path through the
kernel (`Result.path`), else like `tolerance` ones: within the W budgets of both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from common.oracle.integrity import same_bits
from common.oracle.reference import reference
from common.oracle.tolerance import budgets
from common.spec import Features, PagedBatch
from common.spec.kernel import Precision, asked_of

Kind = Literal["bitwise", "tolerance"]
Combine = Literal["copy", "sum", "merge"]


class Precondition(ValueError):
    """The relation does not apply to the batch; the message says why."""


def expect(holds: bool, why: str) -> None:
    """Raises Precondition(why) unless it holds."""
    if not holds:
        raise Precondition(why)


@dataclass(frozen=True)
class Result:
    """A kernel's result: out [tokens, heads, size], lse [tokens, heads] or None; rows past the last sequence are
    ignored. path: identifies the way through the kernel, such as its config; compared by equality."""

    out: Tensor
    lse: Tensor | None = None
    path: Any = None


Attend = Callable[[PagedBatch, Features], Result]


@dataclass(frozen=True)
class Part:
    """A batch to run, and what its result says about the whole.

    out[rows][:, heads][..., lanes] * gain - shift, and lse[rows][:, heads] - lse_shift, stand for the rows `base_rows`
    and the heads `base_heads` of the whole; None means all, in order. gain: a power of two. poisoned: those elements
    must not be finite instead.
    """

    batch: PagedBatch
    features: Features
    rows: Tensor | None = None
    base_rows: Tensor | None = None
    heads: Tensor | None = None
    base_heads: Tensor | None = None
    lanes: Tensor | None = None
    gain: float = 1.0
    shift: float = 0.0
    lse_shift: float = 0.0
    poisoned: bool = False


EVERY = frozenset({"causal", "non_causal", "sliding_window", "softcap", "sinks", "x_packed"})  # what all can speak of
Parts = Callable[[PagedBatch, Features], list[Part]]


@dataclass(frozen=True)
class Relation:
    """parts: raises Precondition where the relation does not apply to a batch. prepare: the batch to begin with
    instead. speaks_of: members beside EVERY that a batch may ask for; with others the relation does not apply.

    combine: each part stands for its own rows; or the sum of all parts for all rows; or their merge by the LSE.
    """

    name: str
    kind: Kind
    parts: Parts
    combine: Combine = "copy"
    prepare: Callable[[PagedBatch], PagedBatch] | None = None
    speaks_of: frozenset[str] = frozenset()


def _pick(x: Tensor, rows: Tensor | None, heads: Tensor | None) -> Tensor:
    x = x if rows is None else x[rows.to(x.device)]
    return x if heads is None else x[:, heads.to(x.device)]


@dataclass(frozen=True)
class _Side:
    """A result in float64 beside its allowed error: out and its budget [tokens, heads, size], lse and its budget."""

    out: Tensor
    budget: Tensor
    lse: Tensor
    lse_budget: Tensor


def _side(result: Result, batch: PagedBatch, features: Features, contract: Precision) -> _Side:
    expected = reference(batch, features)
    live = slice(0, expected.num_tokens)
    budget, lse_budget = budgets(result.out, batch, features, contract, expected)
    lse = expected.lse[live] if result.lse is None else result.lse[live].double()
    return _Side(result.out[live].double(), budget, lse, lse_budget)


def _of_part(side: _Side, part: Part) -> _Side:
    out, budget, lse, lse_budget = (_pick(x, part.rows, part.heads) for x in vars(side).values())
    if part.lanes is not None:
        out, budget = out[..., part.lanes], budget[..., part.lanes]
    return _Side(out * part.gain - part.shift, budget * abs(part.gain), lse - part.lse_shift, lse_budget)


def _merged(sides: list[_Side]) -> _Side:
    """The softmax over all parts' keys; an LSE's error moves its part's weight by as much."""
    lse = torch.logsumexp(torch.stack([side.lse for side in sides]), 0)
    weights = [torch.exp(side.lse - lse).nan_to_num(0.0)[..., None] for side in sides]
    off = [side.budget + 2 * side.lse_budget[..., None] * side.out.abs() for side in sides]
    out = sum(w * side.out for w, side in zip(weights, sides, strict=True))
    budget = sum(w * part for w, part in zip(weights, off, strict=True))
    return _Side(out, budget, lse, sum(side.lse_budget for side in sides))


def _apart(found: Tensor, wanted: Tensor, budget: Tensor) -> str:
    """Where two tensors differ by more than their budget; empty where they do not."""
    wrong = ~((found == wanted) | ((found - wanted).abs() <= budget))
    if not bool(wrong.any()):
        return ""
    first = tuple(wrong.nonzero()[0].tolist())
    return f"{int(wrong.sum())} of {wrong.numel()}, the first {float(found[first]):.6g} for {float(wanted[first]):.6g}"


def _compare(found: _Side, wanted: _Side, with_lse: bool) -> str:
    if apart := _apart(found.out, wanted.out, found.budget + wanted.budget):
        return f"out differs at {apart}"
    apart = _apart(found.lse, wanted.lse, found.lse_budget + wanted.lse_budget) if with_lse else ""
    return f"lse differs at {apart}" if apart else ""


def _bitwise(part: Part, result: Result, whole: Result, num_tokens: int) -> str:
    rows = torch.arange(num_tokens) if part.base_rows is None else part.base_rows
    mine = torch.arange(num_tokens) if part.rows is None else part.rows
    found = _pick(result.out, mine, part.heads)
    found = (found if part.lanes is None else found[..., part.lanes]) * part.gain
    wanted = _pick(whole.out, rows, part.base_heads)
    if part.gain != 1.0:  # a subnormal has fewer bits than its multiple
        found = torch.where(wanted.abs() < torch.finfo(wanted.dtype).smallest_normal, wanted, found)
    if not same_bits(found.contiguous(), wanted.contiguous()):
        return f"out differs in {int((found != wanted).sum())} of {wanted.numel()} elements"
    if whole.lse is None or result.lse is None:
        return ""
    one, other = _pick(result.lse, mine, part.heads), _pick(whole.lse, rows, part.base_heads)
    return "" if same_bits(one.contiguous(), other.contiguous()) else "lse differs"


def _finite(part: Part, result: Result) -> str:
    found = _pick(result.out, part.rows, part.heads)
    return "a NaN that a row sees did not reach it" if bool(found.isfinite().any()) else ""


def broken(
    relation: Relation,
    attend: Attend,
    batch: PagedBatch,
    features: Features,
    contract: Precision | None = None,
    *,
    other: Attend | None = None,
) -> str:
    """How `attend` breaks the relation on a batch; empty where it holds.

    other: runs the parts, if not `attend`: another config, or a kernel of another family. Raises Precondition where the
    relation does not apply.
    """
    contract = contract or Precision()
    unknown = asked_of(batch, features) - EVERY - relation.speaks_of
    expect(not unknown, f"a batch without {', '.join(sorted(unknown))}")
    if relation.prepare is not None:
        batch = relation.prepare(batch)
    parts = relation.parts(batch, features)
    whole = attend(batch, features)
    results = [(other or attend)(part.batch, part.features) for part in parts]
    num_tokens = int(batch.query_start_loc[-1])
    same_path = all(result.path == whole.path for result in results)
    sides, wanted = [], None
    for part, result in zip(parts, results, strict=True):
        if part.poisoned:
            found = _finite(part, result)
        elif relation.kind == "bitwise" and same_path:
            found = _bitwise(part, result, whole, num_tokens)
        else:
            wanted = wanted or _side(whole, batch, features, contract)
            side = _of_part(_side(result, part.batch, part.features, contract), part)
            sides.append(side)
            base = _Side(*(_pick(x, part.base_rows, part.base_heads) for x in vars(wanted).values()))
            found = _compare(side, base, whole.lse is not None) if relation.combine == "copy" else ""
        if found:
            return f"{relation.name}: {found}"
    if relation.combine == "copy":
        return ""
    joined = _merged(sides) if relation.combine == "merge" else _summed(sides)
    found = _compare(joined, wanted, relation.combine == "merge" and whole.lse is not None)
    return f"{relation.name}: {found}" if found else ""


def _summed(sides: list[_Side]) -> _Side:
    return _Side(sum(s.out for s in sides), sum(s.budget for s in sides), sides[0].lse, sides[0].lse_budget)


def minus_infinity(heads: int, device: torch.device) -> Tensor:
    """Sinks without effect."""
    return torch.full((heads,), -math.inf, device=device)
