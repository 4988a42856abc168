"""The batches that a warm-up is stated for, by sizes, lengths and classes, in place of everything within a capacity."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from common.serving.grid import on_grid
from common.spec import SpecError
from common.spec.metadata import BatchStats
from common.spec.plain import shown
from common.spec.refusals import expect_flag, expect_integer


@dataclass(frozen=True)
class Point:
    """A batch of num_seqs sequences of up to max_seq_len keys, whose longest query has max_query_len tokens. Raises
    SpecError.

    num_decodes: sequences of one token; None: all where max_query_len is 1, else none. A point stands for every batch
    in its cell of the grid (common.serving.grid): 1024 keys for 513 to 1024.
    """

    num_seqs: int
    max_seq_len: int
    max_query_len: int = 1
    num_decodes: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_seqs", "max_seq_len", "max_query_len"):
            object.__setattr__(self, name, expect_integer(getattr(self, name), name, 1))
        if self.num_decodes is not None:
            object.__setattr__(self, "num_decodes", expect_integer(self.num_decodes, "num_decodes", 0))

    def cell(self, max_tokens: int, max_seqs: int, max_seq_len: int) -> BatchStats:
        """The cell of the grid. Raises SpecError where the point lies outside this capacity."""
        limits = {"num_seqs": max_seqs, "max_seq_len": max_seq_len, "max_query_len": max_tokens}
        for name, limit in limits.items():
            if getattr(self, name) > limit:
                raise SpecError(f"points: {name}", getattr(self, name), f"at most the plan's {limit}")
        decodes = (self.num_seqs if self.max_query_len == 1 else 0) if self.num_decodes is None else self.num_decodes
        return on_grid(self.num_seqs, min(decodes, self.num_seqs), self.max_query_len, self.max_seq_len)


def expect_points(points: object) -> Iterator[Point]:
    """The points of an iterable. Raises SpecError for anything else."""
    for point in _all_of(points, "points", "points of common.serving.points"):
        if not isinstance(point, Point):
            raise SpecError("points", shown(point), "points of common.serving.points")
        yield point


def _all_of(values: object, name: str, allowed: str) -> Iterator[Any]:
    if isinstance(values, str | torch.Tensor) or not isinstance(values, Iterable):
        raise SpecError(name, shown(values), f"an iterable of {allowed}")
    yield from values


def _sizes(values: object, name: str) -> list[int]:
    return [expect_integer(value, name, 1) for value in _all_of(values, name, "integers")]


def points(
    batch_sizes: Iterable[int],
    lengths: Iterable[int],
    query_lens: Iterable[int] = (1,),
    mixed: Iterable[bool] = (False,),
) -> Iterator[Point]:
    """Every batch size at every length with every longest query. mixed: all sequences but one decode. Raises
    SpecError."""
    sizes = (_sizes(batch_sizes, "batch_sizes"), _sizes(lengths, "lengths"), _sizes(query_lens, "query_lens"))
    flags = [expect_flag(one, "mixed") for one in _all_of(mixed, "mixed", "True and False")]
    for seqs, keys, query, beside in itertools.product(*sizes, flags):
        if query <= keys and not (beside and (query == 1 or seqs == 1)):
            yield Point(seqs, keys, query, seqs - 1 if beside else None)


def prompts(batch_sizes: Iterable[int], lengths: Iterable[int], query_lens: Iterable[int]) -> Iterator[Point]:
    """As `points`, with every number of decodes that the grid distinguishes: none, half, all but one."""
    sizes = (_sizes(batch_sizes, "batch_sizes"), _sizes(lengths, "lengths"), _sizes(query_lens, "query_lens"))
    for seqs, keys, query in itertools.product(*sizes):
        if query <= keys:
            for decodes in sorted({0, seqs // 2, seqs - 1}):
                yield Point(seqs, keys, query, decodes)


def typical(max_tokens: int, max_seqs: int, keys: int) -> list[Point]:
    """The batches of a typical server: decodes of powers of two of sequences over `keys` keys, a prompt of `keys`
    tokens or the most of a step, and a prompt beside decodes."""
    seqs = [n for i in range(max_seqs.bit_length()) if (n := 1 << i) <= max_tokens]
    prompt = min(max_tokens, keys)
    found = list(points(seqs, [keys]))
    if prompt > 1:
        found += points([1], [prompt], [prompt])
        found += points([seqs[-1]], [keys], [prompt], [True])
    return found
