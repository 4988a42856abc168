"""What a move of files must not change, by the goldens of tests/goldens/: plain values, with no path, source or time.

- `plans` (B): the cells of every suite, on the CPU and for two GPUs.
- `code` (E): the machine code of each rung on one row, for sm_90 and gfx942; daily of one rung of each DSL.

Committed pages have tests of their own, beside what makes them.
A failure prints what differs, before and after. `python tests/goldens/write.py NAME...` writes them anew, which only a
step may do that says what it changes and why.
"""

import pytest

from goldens import code, plans, table

UNCOMPILED = table.unpinned("torch", "triton", "helion")
compiled = pytest.mark.skipif(bool(UNCOMPILED), reason=UNCOMPILED)


def expect(name: str, found: table.Rows, *, whole: bool = True) -> None:
    different = table.differences(table.read(name), found, whole=whole)
    assert not different, f"{name} differ from the golden:\n{different}"


def test_every_suite_plans_the_same_cells():
    expect("plans", plans.rows())


@compiled
@pytest.mark.slow
def test_a_rung_of_each_dsl_is_the_same_machine_code():
    expect("code", code.few(), whole=False)


@compiled
@pytest.mark.slow
def test_every_rung_is_the_same_machine_code():
    expect("code", code.rows())


def test_what_differs_is_said_by_name():
    golden = {"a": {"x": 1, "y": 2}, "b": [1, 2, 3], "c": 1}
    assert not table.differences(golden, dict(golden))
    assert not table.differences(golden, {"a": {"x": 1, "y": 2}}, whole=False)
    said = table.differences(golden, {"a": {"x": 1, "y": 3}, "b": [1, 2, 4], "d": (1, 2)})
    assert said.splitlines() == ['a: {"y":2} -> {"y":3}', 'b: {"2":3} -> {"2":4}', "c: 1 -> null", "d: null -> [1,2]"]
