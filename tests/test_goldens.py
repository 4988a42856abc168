"""What a move of files must not change, by the goldens of tests/goldens/: plain values, with no path, source or time.

- `plans` (B): the cells of every suite, on the CPU and for two GPUs.
- `commands` (H): what documented and committed commands parse to.
- `configs` (F): the config and kernel that a shape and batch get, by GPU and by whose configs are asked.
- `reports` (C): report.md, summary.csv and figures of five committed runs, written again, byte for byte.
- `rules` (G): the rule by which each mutant dies, and the case that exposes it.
- `code` (E): the machine code of each rung on one row, for sm_90 and gfx942; daily of one rung of each DSL.
- `cells` (A): what runs on a CPU write, cell by cell, with the checker's figures; daily of one row, without them.

The committed pages (D) have tests of their own.
A failure prints what differs, before and after. `python tests/goldens/write.py NAME...` writes them anew, which only a
step may do that says what it changes and why.
"""

import pytest

from goldens import cells, code, commands, configs, plans, reports, rules, table

UNDRAWN = table.unpinned("matplotlib", "pandas", "jinja2")
UNCOMPILED = table.unpinned("torch", "triton", "helion")


def test_every_suite_plans_the_same_cells():
    assert not table.differences(table.read("plans"), plans.rows())


def test_every_command_is_parsed_to_the_same():
    golden = table.read("commands")
    assert not table.differences(golden, commands.meanings(golden))


@pytest.mark.filterwarnings("ignore:.*no measured tree")
def test_every_batch_gets_the_same_config():
    assert not table.differences(table.read("configs"), configs.rows())


@pytest.mark.skipif(bool(UNDRAWN), reason=UNDRAWN)
def test_reports_of_committed_runs_are_written_byte_for_byte():
    assert not table.differences(table.read("reports"), reports.rows())


def test_every_mutant_dies_by_the_same_rule():
    assert not table.differences(table.read("rules"), rules.rows())


@pytest.mark.skipif(bool(UNCOMPILED), reason=UNCOMPILED)
def test_a_rung_of_each_dsl_is_the_same_machine_code():
    assert not table.differences(table.read("code"), code.few(), whole=False)


@pytest.mark.slow
@pytest.mark.skipif(bool(UNCOMPILED), reason=UNCOMPILED)
def test_every_rung_is_the_same_machine_code():
    assert not table.differences(table.read("code"), code.rows())


def test_a_row_of_smoke_gives_the_same_cells():
    assert not table.differences(table.read("cells"), cells.few(), whole=False)


@pytest.mark.slow
@pytest.mark.skipif(bool(UNCOMPILED), reason=UNCOMPILED)
def test_runs_give_the_same_cells():
    assert not table.differences(table.read("cells"), cells.rows())


def test_what_differs_is_said_by_name():
    golden = {"a": {"x": 1, "y": 2}, "b": [1, 2, 3], "c": 1}
    assert not table.differences(golden, dict(golden))
    assert not table.differences(golden, {"a": {"x": 1, "y": 2}}, whole=False)
    said = table.differences(golden, {"a": {"x": 1, "y": 3}, "b": [1, 2, 4], "d": (1, 2)})
    assert said.splitlines() == ['a: {"y":2} -> {"y":3}', 'b: {"2":3} -> {"2":4}', "c: 1 -> null", "d: null -> [1,2]"]
