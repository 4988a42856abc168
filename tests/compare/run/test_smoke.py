"""The smoke suite by the command itself: what a release of triton, helion or torch may break."""

import pytest

from compare.__main__ import main as diptych
from compare.competitors import registry
from compare.record.store import load

# Of one form: Helion generates code once a rung.
ROWS = "ragged-decode,chunk-17-over-40,speculative-4"
# Halves of a DSL's rungs, each in a process of its own, side by side: Helion's take minutes.
OF = {dsl: [kernel for kernel in registry.OWN if kernel.startswith(f"{dsl}/")] for dsl in registry.DSLS}
HALVES = [pytest.param(rungs[n::2], id=rungs[n]) for rungs in OF.values() for n in (0, 1)]


@pytest.mark.lane
@pytest.mark.slow
@pytest.mark.parametrize("kernels", HALVES)
def test_the_smoke_cells_of_every_rung_are_right(kernels, tmp_path):
    words = ["--suite", "smoke", "--workload", ROWS, "--kernels", ",".join(kernels), "--out", str(tmp_path / "run")]
    assert diptych(["run", *words]) == 0
    assert len(load(tmp_path / "run" / "cells.jsonl").records) == len(kernels) * len(ROWS.split(","))


@pytest.mark.slow
@pytest.mark.parametrize("dsl", registry.DSLS)
def test_every_rung_compiles(dsl, tmp_path):
    words = ["--suite", "smoke", "--gpu", "h200", "--kernels", ",".join(OF[dsl]), "--out", str(tmp_path / "run")]
    assert diptych(["run", *words, "--workload", "ragged-decode"]) == 0
    facts = {record.kernel for record in load(tmp_path / "run" / "cells.jsonl").records if record.facts}
    assert facts == set(OF[dsl])
