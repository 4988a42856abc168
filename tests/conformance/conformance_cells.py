"""Every own kernel with every named case that a CPU can run: each pair once, in one dtype, at one of the kit's levels.

`smoke` is run every day (`make test`, `pytest -m conformance`), the rest of `full` by `make test-slow`. Every day

- each case comes to one Triton kernel that supports it, in turn;
- Helion meets one case of each capability. It generates code for seconds for each kernel, dtype and form of a case, so
  the cases of a form come to q_block, unless each has that code for the cases that nobody may miss;
- every kernel, naive too, meets the cases that nobody may miss; Helion's but naive meet those of them that are of plain
  form, and the others in turn.

On a GPU (tests/gpu) every kernel of Triton meets the same cases every day, `gpu_daily`; `on_gpu_daily` says which those
of Helion meet, which compile for half a minute a case.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice
from typing import Any

from common.cases.case import FIELDS
from common.cases.named import CASES, Case
from common.kit import levels
from common.spec.paged_batch import DTYPES
from compare.competitors import registry
from kernel_cases import lacking

SMOKE, FULL = "smoke", "full"
NOBODY_MAY_MISS = frozenset({
    "query-15-16-17", "all-sequences-empty", "cache-without-pages", "batch-0", "no-tokens", "no-tokens-but-padding",
    "page-1", "cache-x-packed", "everything-at-once", "new-kv-mixed",
})  # fmt: skip
TRITON = tuple(f"triton/{rung}" for rung in registry.RUNGS if rung != "naive")
HELION = tuple(f"helion/{rung}" for rung in registry.RUNGS if rung != "naive")
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
    named = [(name, case.value(name)) for name in FIELDS if name not in _VALUES]
    return tuple(value is not None if name in _ON_OR_OFF else value for name, value in named)


PLAIN_CASES = 24  # every day: by them each Helion kernel meets ten cases
PLAIN = form(next(case for case in CASES if case.name == "query-15-16-17"))  # of most cases


def _dealt(deck: Sequence[str], turn: int, case: Case) -> str:
    """The kernel whose turn it is, or the next that supports the case; whose turn it is where none does."""
    order = list(islice(cycle(deck), turn % len(deck), turn % len(deck) + len(deck)))
    return next((kernel for kernel in order if supported(kernel, case)), order[0])


def _asked(case: Case) -> frozenset[str]:
    return frozenset() if case.refused else case.asked


def _with_every_capability(names: Iterable[str]) -> frozenset[str]:
    """These names, and those of the first cases that ask for a capability that none before them asks for."""
    daily, small = set(names), [case for case in CASES if not case.large]
    met = set().union(*(_asked(case) for case in small if case.name in daily))
    for case in small:
        if not _asked(case) <= met:
            daily.add(case.name)
            met |= _asked(case)
    return frozenset(daily)


@cache
def gpu_daily() -> frozenset[str]:
    """The names of the cases that are met on a GPU at smoke level: the kit's, those that nobody may miss and one of
    each capability."""
    named = {case.name for case in CASES}
    return _with_every_capability((named & set(levels.SMOKE)) | NOBODY_MAY_MISS)


@cache
def on_gpu_daily() -> frozenset[tuple[str, str]]:
    """(kernel, case) of each pair that is met on a GPU at smoke level. A case comes to every kernel of Triton and to
    one of Helion that supports it, in turn; one that nobody may miss to each kernel and ablation of both."""
    pairs = {(kernel, name) for kernel in (*registry.OWN, *registry.ABLATIONS) for name in NOBODY_MAY_MISS}
    for turn, case in enumerate(case for case in CASES if case.name in gpu_daily()):
        pairs |= {(kernel, case.name) for kernel in registry.OWN if kernel.startswith("triton/")}
        pairs.add((_dealt(HELION, turn, case), case.name))
    return frozenset(pairs)


@cache
def helion_daily() -> frozenset[str]:
    """The names of the cases that Helion meets at smoke level: those that nobody may miss, the first that asks for a
    capability, and of plain form, whose code each kernel has, so many that each meets ten."""
    small = [case for case in CASES if not case.large]
    daily = {case.name for case in small} & NOBODY_MAY_MISS
    daily |= {case.name for case in [case for case in small if form(case) == PLAIN][:PLAIN_CASES]}
    return _with_every_capability(daily)


def _helion_of_the_day(small: Sequence[Case]) -> dict[str, str]:
    """Case -> a Helion kernel. Each kernel has code for the plain form, whose cases are dealt evenly.
    The others go to q_block, whose code takes Helion the least time, or to the next kernel that supports one."""
    dealt: dict[str, str] = {}
    met: Counter[str] = Counter()
    for case in (case for case in small if case.name in helion_daily()):
        if form(case) != PLAIN:
            dealt[case.name] = _dealt(HELION, 0, case)
            continue
        able = [kernel for kernel in HELION[1:] if supported(kernel, case)] or HELION[1:]
        dealt[case.name] = min(able, key=met.__getitem__)
        met[dealt[case.name]] += 1
    return dealt


def cells() -> Iterator[Cell]:
    """Each pair once. Over the kernels a case meets each dtype, and over the cases each kernel does; in Helion the
    cases of one form come to a kernel in one dtype, for they are one code then."""
    small = [case for case in CASES if not case.large]
    forms: dict[tuple[Any, ...], int] = {}
    helion = _helion_of_the_day(small)
    for number, case in enumerate(small):
        form_number = forms.setdefault(form(case), len(forms))
        daily = {_dealt(TRITON, number, case), helion.get(case.name)}
        if case.name in NOBODY_MAY_MISS:
            daily |= {k for k in registry.OWN if k not in HELION or case.refused or form(case) == PLAIN}
        for k, kernel_id in enumerate(registry.OWN):
            turn = form_number if kernel_id.startswith("helion/") else number
            asked = replace(case, dtype=DTYPES[(k + turn) % len(DTYPES)])
            yield Cell(kernel_id, asked, SMOKE if kernel_id in daily else FULL)
