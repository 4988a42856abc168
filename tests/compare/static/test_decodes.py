"""What decodes are compiled to, in a process of its own.

K and V lie swizzled in shared memory: else the rows of a tile begin in one bank, and a decode takes 1.75 times as long
as it reads (Helion's static_grid on an H200, 365 us for 209: its tiles had an axis of one between keys and lanes).
Where torch.distributed runs, kernels are those of any other process: Helion had made every grid persistent there.
"""

import json
from pathlib import Path

import pytest

from children import answer
from compare.process.crew import environment

CHILD = Path(__file__).with_name("decode_child.py")


@pytest.mark.parametrize(
    ("kernel", "config"),
    [
        ("helion/parallel_softmax", {"gather": "2idx"}),
        ("helion/parallel_softmax", {"gather": "flat"}),
        ("helion/static_grid", {}),
        ("helion/q_block", {"gather": "2idx"}),
        ("triton/static_grid", {}),
        ("triton/parallel_softmax", {"gather": "run"}),
    ],
    ids=str,
)
@pytest.mark.slow
def test_tiles_of_decodes_are_swizzled(kernel, config):
    found = answer([str(CHILD), kernel, json.dumps(config)], environment("compile"))
    assert found and not any(flat for _, _, flat in found), found


@pytest.mark.slow
def test_decodes_have_a_program_a_q_block_where_torch_distributed_runs():
    (_, grid, _), *_ = answer([str(CHILD), "helion/parallel_softmax", "{}", "distributed"], environment("compile"))
    assert grid[0] >= 32 * 8, grid
