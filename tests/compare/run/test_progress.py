"""What a run prints at its end."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

import synthetic_run
from compare.competitors import registry
from compare.record.records import GateResult
from compare.run import progress
from row_producer import record


def test_a_piped_table_has_every_name_and_every_entry_whole():
    pipe, one = io.StringIO(), record(0)
    rows = [replace(one, kernel=kernel) for kernel in registry.OWN]
    progress.show(rows, registry.OWN, Console(file=pipe, width=80))
    printed = pipe.getvalue()
    assert "…" not in printed and printed.count("adjustable_") == 2
    assert one.workload.label in printed and printed.count(str(one.status)) == len(rows)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_fits_its_window_and_marks_the_fastest_that_is_no_bound(width):
    window, load = io.StringIO(), synthetic_run.workload("8q1s512~", "decode", 8, 8, 4096)
    us = {"triton/q_block": 10.0, "helion/parallel_softmax": 1234.5, "baseline/sdpa_dense": 4.0}
    rows = [synthetic_run.timed(load, kernel, time) for kernel, time in us.items()]
    progress.show(rows, list(us), Console(file=window, width=width))
    printed = window.getvalue()
    assert max(map(len, printed.splitlines())) <= width
    assert "10.0*" in printed and "1,234.5" in printed and "4.0*" not in printed


def test_figures_of_a_column_end_alike():
    window, kernel = io.StringIO(), "triton/q_block"
    loads = [synthetic_run.workload(f"q1s{keys}", "decode", 1, 1, keys) for keys in (512, 1024, 2048)]
    rows = [synthetic_run.timed(load, kernel, us) for load, us in zip(loads, (5.0, 123.4, 98765.4), strict=True)]
    progress.show(rows, [kernel], Console(file=window, width=80))
    lines = [line for line in window.getvalue().splitlines() if line.startswith("q1s")]
    assert len({line.rindex(".") for line in lines}) == 1


def test_a_line_says_under_which_weaker_precision_a_cell_is_ok(capsys):
    one = record(0)
    weak = replace(one, gate=GateResult("W", {}, 1, 1, True, "dot tf32"))
    show = progress.Show(2, quiet=False)
    show.finished(one)
    show.finished(weak)
    lines = capsys.readouterr().err.splitlines()
    assert ["under dot tf32" in line for line in lines] == [False, True]
