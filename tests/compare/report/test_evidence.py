"""The tables over a whole run: worst ratios per kernel, and what a default costs."""

from dataclasses import replace

from compare.record.records import Search
from compare.report import sections
from synthetic_run import checked, timed, workload

LOAD, OTHER = workload("q1s512", "decode", 1, 1, 512), workload("q1s2k", "decode", 1, 1, 2048)


def test_the_checker_table_keeps_the_worst_ratio_of_a_kernel() -> None:
    rows = [checked(LOAD, "triton/naive", 0.25), checked(OTHER, "triton/naive", 0.875)]
    assert sections.checker_table(rows).markdown.splitlines()[-1] == "| `triton/naive` | bfloat16 | 2 | 0.875 |"


def test_the_search_table_names_the_worst_row_of_a_default() -> None:
    rows = [
        replace(timed(load, "triton/q_block", 20.0), search=Search(30, 28, 10.0, {}, share))
        for load, share in ((LOAD, 1.0), (OTHER, 0.5))
    ]
    last = sections.search_table(rows).markdown.splitlines()[-1]
    assert last == "| `triton/q_block` | 2 | 28 to 28 | 0.71 | 0.50 | q1s2k |"


def test_nothing_to_tell_is_no_table() -> None:
    assert sections.checker_table([]) is None
    assert sections.search_table([]) is None
