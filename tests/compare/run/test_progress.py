"""What a run prints at its end."""

import io
from dataclasses import replace

from rich.console import Console

from compare.competitors import registry
from compare.record.records import GateResult
from compare.run import progress
from row_producer import record


def test_a_piped_table_has_every_name_and_every_entry_whole():
    pipe, one = io.StringIO(), record(0)
    rows = [replace(one, kernel=kernel) for kernel in registry.OWN]
    progress.show(rows, registry.OWN, Console(file=pipe, width=80))
    printed = pipe.getvalue()
    assert "…" not in printed and printed.count("adjustable_tile") == 2
    assert one.workload.label in printed and printed.count(str(one.status)) == len(rows)


def test_a_line_says_under_which_weaker_precision_a_cell_is_ok(capsys):
    one = record(0)
    weak = replace(one, gate=GateResult("W", {}, 1, 1, True, "dot tf32"))
    show = progress.Show(2, quiet=False, verbose=False)
    show.finished(one)
    show.finished(weak)
    lines = capsys.readouterr().err.splitlines()
    assert ["under dot tf32" in line for line in lines] == [False, True]
