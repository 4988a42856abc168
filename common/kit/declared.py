"""What a kernel declares, or its caller in its place: read once, and refused where it is meaningless."""

import difflib
import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from common.cases.case import Case
from common.spec import AttentionShape, Features, PagedBatch, SpecError
from common.spec.kernel import MEMBERS, asked_of
from common.spec.paged_batch import DTYPES, E4M3
from common.spec.precision import Precision

DEFAULT = ("causal",)  # of a kernel that declares nothing
BESIDE = frozenset({"full_graph"})  # may be declared beside MEMBERS; no case asks for it
_DTYPES = tuple(str(dtype).removeprefix("torch.") for dtype in (*DTYPES, *E4M3))
_OPERANDS = _DTYPES[: len(DTYPES)]


def _is_size(found: object) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and found > 0


def _is_list_of(found: object, fits: Any) -> bool:
    return isinstance(found, list) and len(found) > 0 and all(map(fits, found))


# Each limit: whether a value is valid, and what is allowed.
LIMITS: dict[str, tuple[Any, str]] = {
    "dtype": (lambda x: _is_list_of(x, lambda one: one in _DTYPES), f"a list of {', '.join(_DTYPES)}"),
    "operands": (lambda x: _is_list_of(x, lambda one: one in _OPERANDS), f"a list of {', '.join(_OPERANDS)}"),
    "head_size": (lambda x: _is_list_of(x, _is_size), "a list of integers"),
    "block_size": (lambda x: _is_list_of(x, _is_size), "a list of integers"),
    "queries_per_kv": (lambda x: _is_list_of(x, _is_size), "a list of integers"),
    "max_query_len": (_is_size, "an integer of at least 1"),
    "deterministic": (lambda x: isinstance(x, bool), "true or false"),
    "cases": (
        lambda x: isinstance(x, dict) and all(isinstance(why, str) for why in x.values()),
        "an object of patterns, each with its reason",
    ),
}


def supports_of(names: Iterable[str]) -> frozenset[str]:
    """Members of SUPPORTS. Raises SpecError for an unknown name, with the nearest."""
    found = frozenset(names)
    for name in sorted(found - MEMBERS - BESIDE):
        near = difflib.get_close_matches(name, MEMBERS, 1, 0.5)
        nearest = f"{near[0]}, or another of " if near else ""
        raise SpecError("SUPPORTS", repr(name), nearest + ", ".join(sorted(MEMBERS)))
    return found


def limits_of(limits: object) -> dict[str, Any]:
    """LIMITS as given. Raises SpecError for an unknown limit, or an invalid value."""
    if not isinstance(limits, dict):
        raise SpecError("LIMITS", f"{limits!r:.60}", f"an object of {', '.join(LIMITS)}")
    if unknown := set(limits) - set(LIMITS):
        raise SpecError("LIMITS", ", ".join(sorted(map(str, unknown))), ", ".join(LIMITS))
    for name, found in limits.items():
        fits, allowed = LIMITS[name]
        if not fits(found):
            raise SpecError(f"LIMITS, {name}", f"{found!r:.60}", allowed)
    return limits


@dataclass(frozen=True)
class Declared:
    """What a kernel declares. limits: see docs/conformance.md; supports_given: whether it declared features itself.
    without_lse: whether it may be called without an LSE."""

    adapter: str
    supports: frozenset[str]
    limits: dict[str, Any]
    contract: Precision
    supports_given: bool
    without_lse: bool = True
    interpreted: bool = False

    @classmethod
    def of(cls, said: dict[str, Any]) -> "Declared":
        """From what the child reported. Raises SpecError naming what is invalid."""
        supports = said["supports"]
        if supports is not None and not (isinstance(supports, list) and all(isinstance(one, str) for one in supports)):
            raise SpecError("SUPPORTS", f"{supports!r:.60}", "a set of names")
        given = supports is not None
        names = supports_of(DEFAULT if supports is None else supports)
        return cls(
            said["adapter"],
            names,
            limits_of(said["limits"]),
            Precision.of(said["contract"]),
            given,
            bool(said.get("without_lse", True)),
            bool(said.get("interpreted", False)),
        )

    def refusal(self, case: Case, batch: PagedBatch, features: Features) -> str:
        """Why the kernel need not compute this, in its own words; empty where it must."""
        if missing := asked_of(batch, features) - self.supports:
            return f"not in SUPPORTS: {', '.join(sorted(missing))}"
        for pattern, why in self.limits.get("cases", {}).items():
            if fnmatch.fnmatch(case.name, pattern):
                return f"LIMITS, cases: {why}"
        return self.beyond(batch.shape, max((query_len for query_len, _ in case.lens), default=0))

    def beyond(self, shape: AttentionShape, longest: int) -> str:
        """The limit that a batch of this shape, with queries up to so many tokens, exceeds; empty where there is
        none."""
        found = {name: getattr(shape, name) for name in ("head_size", "block_size", "queries_per_kv")}
        for name, value in (found | {"dtype": str(shape.dtype).removeprefix("torch.")}).items():
            if name in self.limits and value not in self.limits[name]:
                return f"LIMITS, {name}: {value} is not among {', '.join(map(str, self.limits[name]))}"
        if longest > self.limits.get("max_query_len", longest):
            return f"LIMITS, max_query_len: {longest}"
        return ""
