"""The precisions that kernels ship with: what a contract may say, and nothing else.

A contract is what the checker holds a kernel to, so one that could say anything would let anything pass. Each field has
its list; `common.oracle.rounding` has the budget of every entry, and says where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, Literal

import torch

from common.spec.paged_batch import SpecError

# The first of each is the default. No accumulator under float32: the errors of one of 16 bits grow with the context.
ALLOWED: dict[str, tuple[Any, ...]] = {
    "probabilities": (
        *(None, torch.float32, torch.float16, torch.bfloat16),
        *(torch.float8_e4m3fn, torch.float8_e4m3fnuz),
    ),
    "accumulator": (torch.float32,),
    "dot": ("ieee", "tf32"),
    "exp2": ("float32", "polynomial"),
    "tanh": ("float32", "fast"),
    "sums": (torch.float32, torch.bfloat16),
}
_STRONGER = (torch.float32,)  # of probabilities: never less than the default


@dataclass(frozen=True)
class Precision:
    """What the checker holds a kernel to; declared, so that a silent downgrade is a failure and not a speed-up.

    probabilities: dtype of P when it enters P.V; None = the query's, but bf16 for an fp16 query where V has a scale per
        token, which P is multiplied by.
    accumulator: dtype of the running P.V.
    dot: how fp32 operands are multiplied: "ieee", or "tf32" with 10 bits of mantissa.
    exp2: "polynomial" of degree 3 with a relative error of at most 2^-13, as FlashAttention 4 has it.
    tanh: "fast" in a soft cap, with a relative error of at most 2^-16, as tanh.approx.f32 of PTX.
    sums: dtype of the running sum of P; in bf16 rounded once a tile, of at least 64 keys. Such a sum stands still where
        tiles are under 2^-9 of it; one that lost a quarter is wrong under any contract, as values can make it past
        4,032 keys (`common.oracle.rows.carried`): a kernel leaves out the cases of more.
    Raises SpecError for what is not in ALLOWED.
    """

    probabilities: torch.dtype | None = None
    accumulator: torch.dtype = torch.float32
    dot: Literal["ieee", "tf32"] = "ieee"
    exp2: Literal["float32", "polynomial"] = "float32"
    tanh: Literal["float32", "fast"] = "float32"
    sums: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        for name, allowed in ALLOWED.items():
            found = getattr(self, name)
            if not any(type(found) is type(one) and found == one for one in allowed):
                raise SpecError(f"contract.{name}", f"{_word(found)!r:.60}", ", ".join(map(_word, allowed)))

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Precision:
        """From plain words, as `{"dot": "tf32"}`; dtypes by their names. Raises SpecError."""
        if not isinstance(said, Mapping):
            raise SpecError("contract", f"{said!r:.60}", f"a mapping of {', '.join(ALLOWED)}")
        if unknown := [name for name in said if name not in ALLOWED]:
            raise SpecError("contract", f"{unknown[0]!r:.60}", ", ".join(ALLOWED))
        words = {name: {_word(one): one for one in allowed} for name, allowed in ALLOWED.items()}
        meant = {name: words[name].get(x, x) if isinstance(x, str) else x for name, x in said.items()}
        return cls(**meant)

    @classmethod
    def all(cls) -> Iterator[Precision]:
        """Every one that there is."""
        for values in product(*ALLOWED.values()):
            yield cls(**dict(zip(ALLOWED, values, strict=True)))

    def words(self) -> dict[str, str]:
        """All fields in plain words."""
        return {field.name: _word(getattr(self, field.name)) for field in fields(self)}

    @property
    def weaker(self) -> dict[str, str]:
        """In plain words the fields that ask less of a kernel than the default does."""
        default = Precision()
        other = [name for name in ALLOWED if getattr(self, name) != getattr(default, name)]
        return {n: self.words()[n] for n in other if not (n == "probabilities" and self.probabilities in _STRONGER)}

    @property
    def weaker_words(self) -> str:
        """`weaker` in one phrase, as `dot tf32, tanh fast`; empty where nothing is."""
        return ", ".join(f"{name} {word}" for name, word in self.weaker.items())

    def __str__(self) -> str:
        """What differs from the default, as `dot tf32, tanh fast`."""
        default = Precision().words()
        return ", ".join(f"{n} {word}" for n, word in self.words().items() if word != default[n]) or "default"


def _word(value: Any) -> str:
    return "the query's" if value is None else str(value).removeprefix("torch.")
