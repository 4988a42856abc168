"""The tables over a whole run: worst ratios per kernel."""

from compare.report import sections
from synthetic_run import checked, workload

LOAD, OTHER = workload("q1s512", "decode", 1, 1, 512), workload("q1s2k", "decode", 1, 1, 2048)


def test_the_checker_table_keeps_the_worst_ratio_of_a_kernel() -> None:
    rows = [checked(LOAD, "triton/naive", 0.25), checked(OTHER, "triton/naive", 0.875)]
    assert sections.checker_table(rows).markdown.splitlines()[-1] == "| `triton/naive` | bfloat16 | 2 | 0.875 |"


def test_nothing_to_tell_is_no_table() -> None:
    assert sections.checker_table([]) is None
