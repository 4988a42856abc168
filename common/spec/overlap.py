"""Whether elements share memory: two of one tensor, or one of each of two.

Exact for any sizes and strides: K and V that alternate by pages in one buffer do not overlap, nor do columns of one
projection, although the memory ranges from their first to their last elements do.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import gcd
from typing import NamedTuple

import torch

Term = tuple[int, int, int]  # (stride in bytes, least and greatest factor)


class Runs(NamedTuple):
    """Byte runs of `width`, one at each sum of i * stride with i < count, over all (stride, count) of `steps`."""

    width: int
    steps: tuple[tuple[int, int], ...]  # longest stride first

    @property
    def span(self) -> int:
        """Bytes from the first run's start to the last one's end; 0 where there are none."""
        return self.width + sum(stride * (count - 1) for stride, count in self.steps) if self.width else 0


def runs_of(tensor: torch.Tensor) -> Runs:
    return _runs(tuple(tensor.shape), tensor.stride(), tensor.itemsize)


@lru_cache(maxsize=4096)
def _runs(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> Runs:
    if 0 in shape:
        return Runs(0, ())
    width, steps = itemsize, []
    for stride, count in sorted((s * itemsize, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride == width and not steps:
            width *= count
        elif steps and stride == steps[-1][0] * steps[-1][1]:
            steps[-1] = steps[-1][0], steps[-1][1] * count
        else:
            steps.append((stride, count))
    return Runs(width, tuple(steps[::-1]))


def overlaps_itself(tensor: torch.Tensor) -> bool:
    return _meets_itself(runs_of(tensor))


@lru_cache(maxsize=4096)
def _meets_itself(runs: Runs) -> bool:
    """Whether two runs, which differ first in one of the steps, are closer than a width."""
    terms = [(stride, 1 - count, count - 1) for stride, count in runs.steps]
    near = runs.width - 1
    return any(_reaches([(s, 1, most), *terms[i + 1 :]], -near, near) for i, (s, _, most) in enumerate(terms))


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.device == b.device and meet(b.data_ptr() - a.data_ptr(), runs_of(a), runs_of(b))


def meet(distance: int, a: Runs, b: Runs) -> bool:
    """Whether `a` and `b`, which starts `distance` bytes later, have a byte in common."""
    return -b.span < distance < a.span and a.width > 0 < b.width and _meet(distance, a, b)


@lru_cache(maxsize=4096)
def _meet(distance: int, a: Runs, b: Runs) -> bool:
    ranges: dict[int, list[int]] = {}
    for stride, count in a.steps:
        ranges.setdefault(stride, [0, 0])[1] += count - 1
    for stride, count in b.steps:
        ranges.setdefault(stride, [0, 0])[0] -= count - 1
    terms = [(stride, *ranges[stride]) for stride in sorted(ranges, reverse=True)]
    return _reaches(terms, distance - a.width + 1, distance + b.width - 1)


class Places:
    """Tensors of one call's signature: tells by addresses whether what the call writes shares memory with another
    tensor.

    `written`: which of the tensors are written.
    """

    __slots__ = ("_runs", "_spans", "_written")

    def __init__(self, tensors: Sequence[torch.Tensor | None], written: Sequence[int]) -> None:
        self._runs = [Runs(0, ()) if tensor is None else runs_of(tensor) for tensor in tensors]
        self._spans = [runs.span for runs in self._runs]
        self._written = tuple([at for at in written if self._spans[at]])

    def clash(self, pointers: Sequence[int]) -> bool:
        """Whether written tensors overlap others. pointers: of tensors of that signature, in the same order."""
        spans = self._spans
        for at in self._written:
            first = pointers[at]
            last = first + spans[at]
            for other, pointer in enumerate(pointers):
                if pointer < last and first < pointer + spans[other] and other != at:
                    return self._clash(pointers)
        return False

    def _clash(self, pointers: Sequence[int]) -> bool:
        pairs = [(a, b) for a in self._written for b in range(len(pointers)) if a != b]
        return any(meet(pointers[b] - pointers[a], self._runs[a], self._runs[b]) for a, b in pairs)


def _reaches(terms: list[Term], least: int, most: int) -> bool:
    """Whether a sum of c * stride, with c in the range of each term, lies between `least` and `most`.

    Terms are sorted by falling stride: for nested dimensions the later terms sum to less than a stride, so that each
    term has two or three c to try.
    """
    terms = [term for term in terms if term[0]]
    below = [*accumulate((s * low for s, low, _ in reversed(terms)), initial=0)][::-1]
    above = [*accumulate((s * high for s, _, high in reversed(terms)), initial=0)][::-1]
    steps = [*accumulate((s for s, _, _ in reversed(terms)), gcd, initial=0)][::-1]

    def found(at: int, least: int, most: int) -> bool:
        if at == len(terms):
            return least <= 0 <= most
        if most // steps[at] * steps[at] < least:  # no sum of the later terms lies between
            return False
        stride, low, high = terms[at]
        first = max(low, -((above[at + 1] - least) // stride))
        last = min(high, (most - below[at + 1]) // stride)
        return any(found(at + 1, least - c * stride, most - c * stride) for c in range(first, last + 1))

    return found(0, least, most)
