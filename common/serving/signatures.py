"""Find what the first call of a signature made, for attention and for writing pages.

One comparison in C tells whether a call is like the last one of its kind, four times faster than making and looking up
its signature. The comparison is a private class of torch, so it is tested once: where it is gone or misses a
difference, every call makes its signature.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Generic, Protocol, TypeVar

import torch
from torch.autograd import forward_ad

from common.serving.arguments import aligned, signature
from common.serving.tape import Tape

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:
    TensorGuards = None

NOT_A_CALL = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)  # from looking up malformed arguments
MOST = 4096  # signatures; beyond, all are made anew


class Repeatable(Protocol):
    """tape: the launches to repeat; None where they must be launched anew."""

    tape: Tape | None


Kept = TypeVar("Kept", bound=Repeatable)


def never(*tensors: torch.Tensor) -> bool:
    return False


def likeness(given: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A test of whether other tensors have the sizes, strides, dtypes and devices of `given`. It may be False for
    tensors that do (where autograd differs, or a tensor occurs twice). Keeps no tensor alive."""
    return _of(given) if _exact() else never


def _of(given: Sequence[torch.Tensor]) -> Callable[..., bool]:
    return TensorGuards(*given, dynamic_dims_sizes=None, dynamic_dims_strides=None).check


@cache
def _exact() -> bool:
    first = torch.empty(16, dtype=torch.float32, device="cpu").as_strided((2, 3), (3, 1))
    changed = [
        first[:1], first[:, :2], first[None], first.as_strided((2, 3), (4, 1)), first.as_strided((2, 3), (1, 2)),
        first.half(), first.int(), first.to("meta"), first.detach().requires_grad_(), first._neg_view(),
    ]  # fmt: skip
    try:
        alike = _of([first])
        return alike(torch.empty_like(first)) and not any(map(alike, changed))
    except TypeError:  # no such class, or another constructor
        return False


_NOTHING = never, None


class Signatures(Generic[Kept]):
    """What was kept of the first call of each signature; None where nothing was."""

    def __init__(self) -> None:
        self._known: dict[tuple, Kept | None] = {}
        self._recent: dict[tuple, tuple[Callable[..., bool], Kept]] = {}  # the last call of each `others`

    @property
    def counts(self) -> tuple[int, int]:
        """(signatures whose launches are repeated, all known signatures)."""
        return sum(one is not None and one.tape is not None for one in self._known.values()), len(self._known)

    def __contains__(self, known: tuple) -> bool:
        return known in self._known

    def find(
        self, given: Sequence[torch.Tensor], pointers: list[int], others: tuple
    ) -> tuple[tuple | None, Kept | None]:
        """The signature of a call (None where it was not needed) and what is kept of it. Raises one of NOT_A_CALL where
        tangents may be among the tensors.

        pointers: the addresses of `given`. others: everything that is not a tensor, and which tensors are None.
        """
        if forward_ad._current_level >= 0:
            raise TypeError("a tensor with a tangent has the signature of one without: each call is checked")
        alike, kept = self._recent.get(others, _NOTHING)
        if 0 not in pointers and alike(*given) and aligned(pointers):
            return None, kept
        known = signature(given, pointers, others)
        kept = self._known.get(known)
        if kept is not None and kept.tape is not None and aligned(pointers):
            self._recent[others] = likeness(given), kept
        return known, kept

    def keep(self, known: tuple, kept: Kept | None) -> None:
        if len(self._known) == MOST:
            self.clear()
        self._known[known] = kept

    def clear(self) -> None:
        self._known.clear()
        self._recent.clear()
