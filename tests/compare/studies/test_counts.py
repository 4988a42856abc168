"""The study of counts: which calls it makes, what a line of its page says, and what it refuses."""

from collections import Counter
from contextlib import closing

import numpy as np

from common.gpus import resolve
from compare.competitors import registry
from compare.exits import USAGE
from compare.static.counts.counting import Counts
from compare.static.occupancy import occupancy
from compare.studies import counts
from compare.workloads import Workload


def made():
    """Two programs of a wave each, the second without matrix work."""
    found = Counts("gfx942", 2)
    numbers = {("load", 16): 3, ("load", 4): 1, ("load bytes", 16): 3072, ("load bytes", 4): 256}
    vars(found).update(
        instructions=Counter(v_add_f32=6, s_endpgm=2), kinds=Counter(vector=6, scalar=2), lines=26, hinted=2, waits=2,
        matrix=Counter({"16x16x16": 4}), numbers=Counter(numbers), ahead=3, flights={"32": 16.0, "128": 97.0},
        lds_clocks=24, lds_fewest=8, work=np.array([65536.0, 0.0]), spills=0, registers=200,
        accesses={0: [np.array([1, 2])], 1: [np.array([1, 2])]}, occupancy=occupancy("gfx942", 200, 0, 1),
    )  # fmt: skip
    return found


def test_a_line_of_the_page():
    row = Workload("", ((1, 64),), counts.SHAPE)
    titles = [title for title, _ in counts.COLUMNS[4:]]
    cells = dict(zip(titles, counts.line([made()], row, resolve("mi300")), strict=True))
    assert cells["wave instructions"] == "8" and cells["MFMA"] == "4 of 16x16x16" and cells["16 B"] == "92%"
    assert cells["lines"] == "6.5" and cells["ahead"] == "1.5" and cells["LDS"] == "3.00"
    assert cells["clocks of a program: LDS, matrix"] == "24, 32"


def test_what_a_record_keeps_of_a_launch():
    kept = made().executed(counts.L2(dies=2))
    assert kept["fetched"] == 4 and kept["lines"] == 2 and kept["wide bytes"] == 3072
    assert all(isinstance(value, int) for value in kept.values())


def test_the_plain_config_has_no_lever():
    gpu, row = resolve("mi300"), Workload("", counts.ROWS["decode"][0], counts.SHAPE)
    for kernel_id in ("triton/auto", "helion/unpaged"):
        kernel = registry.load(kernel_id)
        before, after = (how(kernel_id, kernel, row, gpu) for how in (counts.plain, counts.settled))
        assert "transposed_keys=True" not in repr(before) and "transposed_keys=True" in repr(after)


def test_a_part_that_was_counted_is_not_counted_again(tmp_path):
    gpu, file = resolve("mi300"), tmp_path / "parts.jsonl"
    asked = "decode", "triton/q_block", "a config"
    with closing(counts.Parts(gpu, file)) as first:
        assert first.cells(*asked, lambda: ["1,000", 8]) == ["1,000", 8]
    with closing(counts.Parts(gpu, file)) as again:
        assert again.cells(*asked, lambda: 1 / 0) == ["1,000", 8]
        assert again.cells("decode", "triton/q_block", "another", lambda: [9]) == [9]


def test_a_gpu_whose_code_is_not_executed_is_refused(capsys):
    class Asked:
        gpu, out, parts = "h200", None, None

    assert counts.main(Asked) == USAGE and "h200" in capsys.readouterr().err
