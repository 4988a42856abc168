"""The tables behind a report."""

import pandas as pd

from compare.analysis import summary


def test_kernels_stand_in_the_order_of_the_ladder_whoever_finished_first():
    came = ["helion/q_block", "outside:kernel", "triton/q_block", "triton/naive", "triton/naive"]
    rows = pd.DataFrame({"kernel": came, "status": ["ok", "ok", "crash", "ok", "crash"]})
    assert summary.coverage(rows) == (
        ["ok", "crash"],
        [("triton/naive", [1, 1]), ("triton/q_block", [0, 1]), ("helion/q_block", [1, 0]), ("outside:kernel", [1, 0])],
    )
