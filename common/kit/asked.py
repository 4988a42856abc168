"""What a run asked of a kernel: features, dtypes, sizes. An `ok` covers no more than this."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from common.cases.case import Case
from common.kit.declared import BESIDE


@dataclass(frozen=True)
class Asked:
    """features: members of SUPPORTS, each with the number of cases that asked for it. dtypes: of the query and of the
    caches. sizes: the least and greatest of each."""

    cases: int
    features: dict[str, int]
    dtypes: tuple[str, ...]
    sizes: dict[str, tuple[int, int]]

    @classmethod
    def of(cls, cases: Iterable[Case], *, lse: bool) -> "Asked":
        """Of the cases that the kernel was called on; lse: whether it has an LSE."""
        cases = list(cases)
        named = [case.asked | ({"lse"} if lse and case.lse is not None else set()) for case in cases]
        features = {name: sum(name in of for of in named) for name in sorted(set().union(*named))}
        shapes = [case.shape for case in cases]
        dtypes = {str(dtype).removeprefix("torch.") for shape in shapes for dtype in (shape.dtype, shape.cache_dtype)}
        every = [_sizes(case) for case in cases]
        sizes = {n: (min(one[n] for one in every), max(one[n] for one in every)) for n in (every[0] if every else ())}
        return cls(len(cases), features, tuple(sorted(dtypes)), sizes)

    def missing(self, supports: Iterable[str]) -> tuple[str, ...]:
        """The declared features that no case asked for."""
        return tuple(sorted(set(supports) - set(self.features) - BESIDE))

    def lines(self) -> list[str]:
        """The same as lines for a terminal."""
        if not self.cases:
            return ["asked: nothing"]
        features = ", ".join(f"{name} {count}" for name, count in self.features.items())
        sizes = ", ".join(f"{name} {low} to {high}" for name, (low, high) in self.sizes.items())
        return [f"asked in {self.cases} cases: {features}", f"of {', '.join(self.dtypes)}; {sizes}"]

    def to_dict(self) -> dict[str, Any]:
        return {"cases": self.cases, "features": self.features, "dtypes": self.dtypes, "sizes": self.sizes}


def _sizes(case: Case) -> dict[str, int]:
    shape, lens = case.shape, case.lens
    return {
        "keys": max((seq_len for _, seq_len in lens), default=0),
        "query tokens": sum(query_len for query_len, _ in lens),
        "sequences": len(lens),
        "query heads": shape.num_query_heads,
        "query heads of a KV head": shape.queries_per_kv,
        "head size": shape.head_size,
        "page": shape.block_size,
    }
