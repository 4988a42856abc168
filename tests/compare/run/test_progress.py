"""What a run prints at its end."""

import io
from dataclasses import replace

from rich.console import Console

from compare.competitors import registry
from compare.run import progress
from row_producer import record


def test_a_piped_table_has_every_name_and_every_entry_whole():
    pipe, one = io.StringIO(), record(0)
    rows = [replace(one, kernel=kernel) for kernel in registry.OWN]
    progress.show(rows, registry.OWN, Console(file=pipe, width=80))
    printed = pipe.getvalue()
    assert "…" not in printed and printed.count("adjustable_tile") == 2
    assert one.workload.label in printed and printed.count(str(one.status)) == len(rows)
