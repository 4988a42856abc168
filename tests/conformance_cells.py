"""Every own kernel with every named case that a CPU can run: each pair once, in one dtype, at one of the kit's levels.

`smoke` is run every day (`make test`, `pytest -m conformance`), the rest of `full` by `make test-slow`. Every day

- triton/q_block meets every case, and each case one more Triton kernel that supports it, in turn;
- Helion meets the kit's smoke level and one case of each capability. It generates code for 2 to 12 s for each kernel,
  dtype and form of a case (181 forms in all, 40 here), so the cases of one form come to one kernel, unless each has
  that code for the cases that nobody may miss;
- every kernel, naive too, meets the cases that nobody may miss; Helion's but naive meet those of them that are of plain
  form, and the others in turn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import cycle, islice
from typing import Any

from common import kit_cases
from common.cases import CASES, Case
from common.spec import DTYPES
from compare import registry
from kernel_cases import lacking

SMOKE, FULL = kit_cases.LEVELS
NOBODY_MAY_MISS = frozenset({
    "query-15-16-17", "all-sequences-empty", "cache-without-pages", "batch-0", "no-tokens", "no-tokens-but-padding",
    "page-1", "cache-x-packed", "everything-at-once", "new-kv-mixed",
})  # fmt: skip
PLAIN = "query-15-16-17"  # of these, the one whose form is that of most cases
TRITON = tuple(f"triton/{rung}" for rung in registry.RUNGS if rung != "naive")
HELION = tuple(f"helion/{rung}" for rung in registry.RUNGS if rung != "naive")
# Of forms: q_block before each other kernel, whose code takes Helion two to four times as long.
HELION_FORMS = tuple(kernel for other in HELION[1:] for kernel in (HELION[0], other))
# What no code is generated for anew: the first, and the value of the others, which are on or off.
_VALUES = {"name", "numbers", "lens", "dtype", "loud", "fill", "shared_pages", "pad_tokens", "extra_columns", "large"}
_VALUES |= {"spare_pages", "refused", "chunk_lookback", "scale_factor", "out_scale"}
_ON_OR_OFF = {"sliding_window", "softcap", "sinks", "chunk", "spans", "non_causal", "tree"}


@dataclass(frozen=True)
class Cell:
    """A kernel, and a case in the dtype that the kernel meets it in."""

    kernel: str
    case: Case
    level: str

    @property
    def name(self) -> str:
        return f"{self.kernel}-{self.case.name}-{str(self.case.dtype).removeprefix('torch.')}"


@cache
def _loaded(kernel_id: str) -> Any:
    """The kernel, None where it cannot be imported: its tests say why."""
    try:
        return registry.load(kernel_id)
    except registry.Unavailable:
        return None


def supported(kernel_id: str, case: Case) -> bool:
    """Whether the kernel computes the case; each refuses one that is to be refused."""
    kernel = _loaded(kernel_id)
    return kernel is None or bool(case.refused) or not lacking(kernel, case)


def form(case: Case) -> tuple[Any, ...]:
    """What Helion generates other code for."""
    named = [(field.name, getattr(case, field.name)) for field in fields(case) if field.name not in _VALUES]
    return tuple(value is not None if name in _ON_OR_OFF else value for name, value in named)


def _dealt(deck: Sequence[str], turn: int, case: Case) -> str:
    """The kernel whose turn it is, or the next that supports the case; whose turn it is where none does."""
    order = list(islice(cycle(deck), turn % len(deck), turn % len(deck) + len(deck)))
    return next((kernel for kernel in order if supported(kernel, case)), order[0])


def _asked(case: Case) -> frozenset[str]:
    return frozenset() if case.refused else case.asked


@cache
def helion_daily() -> frozenset[str]:
    """The names of the cases that Helion meets at smoke level: the kit's, and the first that asks for a capability."""
    small = [case for case in CASES if not case.large]
    daily = {case.name for case in small} & (NOBODY_MAY_MISS | set(kit_cases.SMOKE))
    met = set().union(*(_asked(case) for case in small if case.name in daily))
    for case in small:
        if not _asked(case) <= met:
            daily.add(case.name)
            met |= _asked(case)
    return frozenset(daily)


def _every_day(case: Case, number: int, form_number: int, known: bool) -> set[str]:
    """The kernels that meet the case at smoke level. known: each Helion kernel has code for its form, the plain one."""
    if case.name in NOBODY_MAY_MISS and (case.refused or known):
        return set(registry.OWN)
    daily = {TRITON[0], _dealt(TRITON[1:], number, case)}
    if case.name in NOBODY_MAY_MISS:
        daily = {kernel for kernel in registry.OWN if kernel not in HELION}
    if case.name in helion_daily():
        daily.add(_dealt(HELION, number, case) if known else _dealt(HELION_FORMS, form_number, case))
    return daily


def cells() -> Iterator[Cell]:
    """Each pair once. Over the kernels a case meets each dtype, and over the cases each kernel does; in Helion the
    cases of one form come to a kernel in one dtype, for they are one code then."""
    small = [case for case in CASES if not case.large]
    forms: dict[tuple[Any, ...], int] = {}
    known = {form(case) for case in small if case.name == PLAIN}
    for number, case in enumerate(small):
        form_number = forms.setdefault(form(case), len(forms))
        every_day = _every_day(case, number, form_number, form(case) in known)
        for k, kernel_id in enumerate(registry.OWN):
            turn = form_number if kernel_id.startswith("helion/") else number
            asked = replace(case, dtype=DTYPES[(k + turn) % len(DTYPES)])
            yield Cell(kernel_id, asked, SMOKE if kernel_id in every_day else FULL)
