"""Judge a result: every element and row against the budget of the declared precision, and against the exact rules.

docs/tolerance.md has the formulas, in its symbols: rule S (random inputs: elements, rows and their means), rule W (any
inputs), the LSE, and what must hold exactly. The budgets are sums of the float64 reference (`Expected`), so they shrink
as the context grows.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from common.oracle.bias import Mean, Signed, signed, worst_mean
from common.oracle.reference import Expected
from common.oracle.rounding import Rounding, unrounded
from common.oracle.rows import LogitErrors, Rows, chain_error, hull, sum_error
from common.spec import Features, PagedBatch, SpecError
from common.spec.paged_batch import FP8
from common.spec.precision import Precision
from common.spec.validation import validate_output

CHUNK_ELEMENTS = 1 << 22  # 32 MB per float64 temporary, about ten of them
RULES = {"element": "S element", "row": "S row", "worst_case": "W", "lse": "LSE", "mean": "mean"}
WORDS = {  # names of the rules in a reason
    "element": "out (typical rounding)", "row": "out, a row (typical rounding)", "worst_case": "out (worst rounding)",
    "lse": "LSE", "mean": "mean",
}  # fmt: skip
ONE_SIGN = 0.75  # the lanes of a row err together if norm(o) is at least this part of norm(A)
WILD = 0.125  # an error of logits from which V bound a row more closely
SMALL_HEAD = (
    32  # a row norm over 8 lanes spreads so much that right rows reach 0.87 of the budget in 10^4, over 32 0.63
)


@dataclass(frozen=True)
class Verdict:
    """The checker's verdict on one result.

    tier: the tiers that applied, "S+W" or "W".
    element, row, worst_case, lse, mean: the largest error as a part of its budget under the S element, S row, W, LSE
        and mean rules; 0.0 where a rule did not apply, inf where an exact rule is broken.
    index: (token, head, lane) of the element that used most of its budget, (token, head) where that was a row or an
        LSE; None without rows, and where a mean is wrong.
    reason: "" when ok, else one sentence.
    """

    ok: bool
    tier: str
    element: float
    row: float
    worst_case: float
    lse: float
    index: tuple[int, ...] | None
    reason: str
    mean: float = 0.0

    @property
    def rule(self) -> str:
        """The rule whose error is largest relative to its budget."""
        return max(RULES, key=lambda rule: getattr(self, rule))

    @property
    def worst(self) -> float:
        return getattr(self, self.rule)


def _part(error: Tensor, budget: Tensor, broken: Tensor) -> Tensor:
    """error / budget; 0 where there is no error, inf where it has no budget or an exact rule is `broken`."""
    part = (error / budget).masked_fill(error == 0, 0.0)
    return part.nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(broken, math.inf)


def _worst_case(rows: Rows, r: Rounding) -> Tensor:
    """The W budget of every element."""
    u = r.u + 2 * rows.delta[..., None] + rows.lost[..., None]
    off = (sum_error(rows, r, False) + chain_error(rows, r, False))[..., None]
    return r.u_out * rows.o.abs() + r.spill * (u * rows.a + r.eta * rows.w1 + off * rows.o.abs()) + r.eta_out


def budgets(
    out: Tensor, batch: PagedBatch, features: Features, contract: Precision, expected: Expected
) -> tuple[Tensor, Tensor]:
    """The largest allowed errors of `out` [num_tokens, heads, size] and of the LSE [num_tokens, heads], by the W tier.

    Two results of one kernel that should agree differ by at most the sum of their budgets.
    """
    tokens = slice(0, expected.num_tokens)
    rounding = Rounding.of(contract, batch, features, out.dtype)
    delta = LogitErrors.of(expected, features, rounding).all
    lse = expected.lse[tokens].abs().nan_to_num(posinf=0.0).clamp(min=1.0)
    rows = Rows.of(out, expected, tokens, delta[tokens], features, rounding, True)
    return _worst_case(rows, rounding), delta[tokens] + 2.0**-22 * lse + sum_error(rows, rounding, False)


def _mixed(rows: Rows, r: Rounding, far: Tensor, most: Tensor) -> Tensor:
    """The W budget of every element where logits are off by so much that only V bound a row."""
    off = (sum_error(rows, r, False) + chain_error(rows, r, False))[..., None]
    part = (r.u + rows.lost[..., None] + off) * most + r.eta * rows.w1 * rows.denominator[..., None]
    return r.u_out * (rows.o.abs() + far) + r.spill * (far + part) + r.eta_out


def _parts(
    rows: Rows, r: Rounding, statistical: bool, hulled: tuple[Tensor, Tensor] | None = None
) -> dict[str, Tensor]:
    """Every error as a part of its budget, under each rule that applies; of an fp8 `out` that before it was rounded."""
    finite, fp8 = rows.o.isfinite(), rows.dtype in FP8
    broken = (finite != rows.out.isfinite()) | (rows.blind[:, None, None] & ~rows.zero)
    error = unrounded(rows.out, rows.o, rows.dtype) if fp8 else (rows.out - rows.o).abs()
    error, whole, r = error.masked_fill(~finite, 0.0), r, r.before(rows.dtype)
    output = r.u_out * rows.o.abs()
    budget = _worst_case(rows, r)
    budget = budget if hulled is None else torch.minimum(budget, _mixed(rows, r, *hulled))
    parts = {"worst_case": _part(error, budget, broken)}
    if statistical:
        ub = (r.u_s + rows.sigma[..., None]) * rows.b
        summed = (sum_error(rows, r, True) + chain_error(rows, r, True))[..., None] * rows.o.abs()
        lasting = rows.common[..., None] * rows.o.abs() + rows.lost[..., None] * rows.a
        budget = output + r.spill * (3 * (ub + r.eta * rows.w2) + summed + lasting) + r.eta_out
        parts["element"] = _part(error, budget, broken).masked_fill(rows.few[..., None], 0.0)
        if rows.o.shape[-1] >= SMALL_HEAD:
            before = ub.square() + (r.eta * rows.w2).square()
            terms = output.square() + r.spill**2 * before + r.eta_out**2
            parts["row"] = _row(rows, r, error, *(x.masked_fill(~finite, 0.0) for x in (terms, summed)), broken)
            if r.short_sum:
                terms = (whole.u_out * rows.o).square() + whole.spill**2 * before + whole.eta_out**2
                across = _part(*_across(rows, whole, terms.masked_fill(~finite, 0.0)), broken.any(-1))
                parts["row"] = torch.maximum(parts["row"], across.masked_fill(rows.few, 0.0))
    return parts


def _row(rows: Rows, r: Rounding, error: Tensor, terms: Tensor, summed: Tensor, broken: Tensor) -> Tensor:
    """[tokens, heads]: the error of a row as a part of its budget."""
    norm, o, a = terms.sum(-1).sqrt(), *(_norm(x.masked_fill(~x.isfinite(), 0.0)) for x in (rows.o, rows.a))
    lasting = r.spill * (rows.common * o + rows.lost * a)
    together = 3.0 * r.spill * (r.u_s + rows.sigma) * rows.along * o
    along = lasting + together.masked_fill(o < ONE_SIGN * a, 0.0)
    part = _part(_norm(error), (norm.square() + along.square()).sqrt() + r.spill * _norm(summed), broken.any(-1))
    return part.masked_fill(rows.few, 0.0)


def _norm(rows: Tensor) -> Tensor:
    return rows.square().sum(-1).sqrt()


def _across(rows: Rows, r: Rounding, terms: Tensor) -> tuple[Tensor, Tensor]:
    """(error, budget) [tokens, heads]: what of a row's error is no multiple of the row, along which a sum may be off;
    without lanes that saturate."""
    a = _norm(rows.a.masked_fill(~rows.a.isfinite(), 0.0))
    whole = _norm(rows.o.masked_fill(~rows.o.isfinite(), 0.0))
    norm = terms.sum(-1).sqrt() + r.spill * (rows.common * whole + rows.lost * a)
    factor = 1.0 + sum_error(rows, r, True)
    kept = rows.o.isfinite() & rows.out.isfinite() & (rows.o.abs() * factor[..., None] < rows.most)
    o, error = (x.masked_fill(~kept, 0.0) for x in (rows.o, rows.out - rows.o))
    along = (error * o).sum(-1) / o.square().sum(-1)
    return _norm(error - along.nan_to_num(nan=0.0)[..., None] * o), factor * norm


def _lse_part(lse: Tensor, expected: Expected, tokens: slice, budget: Tensor) -> Tensor:
    """[tokens, heads]: the error of the LSE as a part of its budget, which is 2^-22 of it more."""
    wanted, found = expected.lse[tokens], lse[tokens].double()
    finite = wanted.isfinite()
    broken = (finite != found.isfinite()) | ((wanted == -math.inf) & (found != -math.inf))
    error = (found - wanted).abs().masked_fill(~finite, 0.0)
    return _part(error, budget + 2.0**-22 * wanted.abs().clamp(min=1.0), broken)


def _worst(parts: dict[str, Tensor], first: int, worst: dict[str, tuple[float, tuple[int, ...]]]) -> None:
    """Update `worst[rule] = (part, index)` from a chunk whose first token is `first`."""
    for rule, part in parts.items():
        value, flat = part.flatten().max(0)
        if float(value) > worst.get(rule, (-1.0, ()))[0]:
            token, *rest = (int(i) for i in torch.unravel_index(flat, part.shape))
            worst[rule] = (float(value), (token + first, *rest))


def times(part: float) -> str:
    """An error as a multiple of its budget, as people write numbers."""
    if part < 1.01 or math.isinf(part):
        return "just over the allowed error" if part < 1.01 else "where no error is allowed"
    part = float(f"{part:.3g}")
    return f"{part:,.{max(0, 2 - int(math.log10(part)))}f} times the allowed error"


def _exact(index: tuple[int, ...], found: Tensor, expected: Expected) -> str:
    """Which exact rule a number breaks."""
    if int(expected.num_visible[index[0]]) == 0:
        return "breaks an exact rule: a row that sees no key is +0.0, and its LSE its sink's logit, or -inf"
    finite = bool(found[index].float().isfinite())
    return "breaks an exact rule: " + ("it must not be finite" if finite else "it must be finite")


def _reason(rule: str, part: float, index: tuple[int, ...], out: Tensor, lse: Tensor | None, expected: Expected) -> str:
    where = f"token {index[0]}, head {index[1]}" + (f", lane {index[2]}" if len(index) == 3 else "")
    sees = f"that sees {int(expected.num_visible[index[0]])} keys"
    if rule == "row":
        row, wanted = out[index].double(), expected.out[index]
        norm, whole = (float(x.norm()) for x in (row - wanted, wanted))
        return f"{WORDS[rule]}: off by {norm:.4g}, of a norm of {whole:.4g}, at {where} {sees}: {times(part)}"
    found, wanted = (lse, expected.lse) if rule == "lse" else (out, expected.out)
    values = f"found {float(found[index]):.6g}, expected {float(wanted[index]):.6g}"
    spent = _exact(index, found, expected) if math.isinf(part) else times(part)
    return f"{WORDS[rule]}: {values} at {where} {sees}: {spent}"


def check(
    out: Tensor,
    lse: Tensor | None,
    batch: PagedBatch,
    features: Features,
    contract: Precision,
    expected: Expected,
    *,
    structured: bool = False,
) -> Verdict:
    """Judge `out` (and `lse`, natural logarithm, where asked for) against `expected = reference(batch, features)`.

    structured: the inputs are not independent random numbers: the W tier alone.
    Rows past query_start_loc[-1] are not looked at (`common.oracle.integrity` does). A wrong shape or dtype is a
    verdict too.
    """
    statistical = Rounding.of(contract, batch, features, batch.query.dtype).statistical and not structured
    tier = "S+W" if statistical else "W"
    try:
        validate_output(batch, out, lse, features)
    except SpecError as error:
        return Verdict(False, tier, math.inf, math.inf, math.inf, math.inf, None, str(error))
    rounding = Rounding.of(contract, batch, features, out.dtype)
    step = max(1, CHUNK_ELEMENTS // max(1, out[:1].numel()))
    errors = LogitErrors.of(expected, features, rounding)
    wild = bool((errors.all > WILD).any())
    far, most = hull(batch, features, expected) if wild else (None, None)
    worst: dict[str, tuple[float, tuple[int, ...]]] = {}
    means: list[dict[str, Signed]] = []
    for first in range(0, expected.num_tokens, step):
        tokens = slice(first, min(first + step, expected.num_tokens))
        rows = Rows.of(out, expected, tokens, errors[tokens].all, features, rounding, structured)
        parts, off = _parts(rows, rounding, statistical, (far[tokens], most[tokens]) if wild else None), None
        if lse is not None:
            budget = errors[tokens].all + sum_error(rows, rounding, statistical)
            parts["lse"] = _lse_part(lse, expected, tokens, budget)
            off = lse[tokens].double() - expected.lse[tokens]
        if statistical:
            means.append(signed(rows, errors[tokens], out.dtype, rounding, off))
        _worst(parts, first, worst)
    ratios = {rule: worst[rule][0] if rule in worst else 0.0 for rule in RULES}
    rule = max(worst, key=lambda name: worst[name][0], default=None)
    index = worst[rule][1] if rule else None
    if mean := _mean(means, batch):
        ratios["mean"] = mean.part
    if ok := all(part <= 1.0 for part in ratios.values()):
        return Verdict(ok, tier, **ratios, index=index, reason="")
    if mean and mean.part > (worst[rule][0] if rule else 0.0):
        return Verdict(ok, tier, **ratios, index=None, reason=mean.reason)
    return Verdict(ok, tier, **ratios, index=index, reason=_reason(rule, ratios[rule], index, out, lse, expected))


def _mean(found: list[dict[str, Signed]], batch: PagedBatch) -> Mean | None:
    """The worst mean signed error of all stretches of tokens together."""
    if not found:
        return None
    whole = {of: Signed.joined([part[of] for part in found]) for of in found[0]}
    return worst_mean(whole, batch.query_start_loc, batch.shape.num_kv_heads)
