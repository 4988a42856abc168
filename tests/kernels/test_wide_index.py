"""Why primitives.wide_index is of rank 2: how Helion writes an index of rank 0, and which Triton reads that."""

import helion.language as hl
import pytest
import torch
import triton
from packaging.version import Version

from dsl_helion.binding import kernel
from dsl_helion.primitives import wide_index

pytestmark = pytest.mark.lane


def _rows(x: torch.Tensor, rows: torch.Tensor, out: torch.Tensor, wide: hl.constexpr) -> None:
    for head in hl.grid(x.size(1)):
        at = hl.load(rows, [hl.arange(8)])
        if wide:
            out[:, head] = hl.load(x, [at.unsqueeze(1), wide_index(head)]).squeeze(1)
        else:
            out[:, head] = hl.load(x, [at, hl.full([], head, dtype=torch.int64), slice(None)]).sum(1)


_indexed = kernel(_rows)


def _is_right(wide: bool) -> bool:
    x = torch.arange(48.0).reshape(16, 3)
    rows, out = torch.randperm(16, generator=torch.Generator().manual_seed(0))[:8], torch.zeros(8, 3)
    try:
        _indexed(x if wide else x.unsqueeze(2).repeat(1, 1, 2), rows, out, wide)
    except Exception:  # whatever the interpreter raises
        return False
    return torch.equal(out, x[rows] * (1 if wide else 2))


def test_an_index_of_rank_2_is_read_by_every_triton() -> None:
    assert _is_right(wide=True)


def test_an_index_of_rank_0_is_refused_since_triton_3_9() -> None:
    """Where this fails with 3.9 or later, Helion writes another index: wide_index may be of rank 0."""
    assert _is_right(wide=False) == (Version(triton.__version__) < Version("3.9"))
