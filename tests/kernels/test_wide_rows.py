"""An output that is one layer of a wide buffer: its rows lie more than 2^31 elements from the first."""

import pytest
import torch

from calls import assert_right
from common.cases.batch import make_batch
from common.spec import AttentionShape, Features
from common.spec.kernel import Capacity
from compare.competitors import registry

SHAPE = AttentionShape(4, 2, 16, 16, torch.float16)
ROW = 2**29 + 64  # elements from token to token: the fifth begins behind 2^31


@pytest.mark.parametrize(
    "kernel_id", ["triton/parallel_softmax", pytest.param("helion/parallel_softmax", marks=pytest.mark.slow)]
)
def test_rows_of_a_wide_buffer_are_written_by_the_reduction(kernel_id: str) -> None:
    """5 GB of addresses, of which five rows are touched."""
    kernel, batch = registry.load(kernel_id), make_batch([(5, 150)], SHAPE)
    out = torch.empty(4 * ROW + 64, dtype=torch.float16).as_strided((5, 4, 16), (ROW, 16, 1))
    lse = torch.empty(5, 4)
    workspace = kernel.workspace(SHAPE, Capacity.of(batch), kernel.DEFAULT)
    assert kernel.DEFAULT.num_segments > 1
    kernel.launch(batch, Features(), out, kernel.DEFAULT, workspace, lse=lse)
    assert_right(out.contiguous(), lse, batch, Features(), kernel.CONTRACT)
