"""What a move of files must not change, by the goldens of tests/goldens/: plain values, with no path, source or time.

- `plans` (B): the cells of every suite, on the CPU and for two GPUs.
- `commands` (H): what documented and committed commands parse to.

The committed pages (D) have tests of their own.
A failure prints what differs, before and after. `python tests/goldens/write.py NAME...` writes them anew, which only a
step may do that says what it changes and why.
"""

from goldens import commands, plans, table


def test_every_suite_plans_the_same_cells():
    assert not table.differences(table.read("plans"), plans.rows())


def test_every_command_is_parsed_to_the_same():
    golden = table.read("commands")
    assert not table.differences(golden, commands.meanings(golden))


def test_what_differs_is_said_by_name():
    golden = {"a": {"x": 1, "y": 2}, "b": [1, 2, 3], "c": 1}
    assert not table.differences(golden, dict(golden))
    assert not table.differences(golden, {"a": {"x": 1, "y": 2}}, whole=False)
    said = table.differences(golden, {"a": {"x": 1, "y": 3}, "b": [1, 2, 4], "d": (1, 2)})
    assert said.splitlines() == ['a: {"y":2} -> {"y":3}', 'b: {"2":3} -> {"2":4}', "c: 1 -> null", "d: null -> [1,2]"]
