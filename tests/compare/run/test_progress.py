"""What a run prints at its end."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

import synthetic_run
from compare.analysis import committed
from compare.competitors import registry
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


def test_the_speeds_of_another_machine_are_marked_and_fit_a_pipe(capsys):
    found = committed.headline()
    progress.show_elsewhere(found, Console(width=80))
    said = capsys.readouterr().out
    assert said.startswith(f"not of this machine: an {found.gpu} on {found.day}")
    assert all(cell in said for line in found.body for cell in line)
    assert max(map(len, said.splitlines())) <= 80
