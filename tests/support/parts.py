"""`--part I/N`: the I-th of N parts of the tests that were chosen, which together are all of them.

A part is a sample that is spread evenly: what stays together is dealt in an order that looks drawn and is the same each
time, kernel by kernel. Together stay the tests of a file, which share its fixtures, and up to TOGETHER cells for which
a Helion kernel generates one code; other cells are dealt singly.
"""

import re
import zlib
from collections import Counter

import pytest

CELLS = "tests/conformance/test_conformance.py::test_conformance["
TOGETHER = 10  # cells take as long as their code then; the plain form has 70 of a kernel's 290


def read(text: str) -> tuple[int, int]:
    """(I, N) of "I/N". Raises pytest.UsageError."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    part, parts = (int(number) for number in found.groups()) if found else (0, 0)
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"--part: found {text!r:.60}, allowed I/N with I from 1 to N, as in 2/8")
    return part, parts


def _place(item: pytest.Item) -> tuple[str, object]:
    """Which kernel an item is of, else "", and with what it stays together."""
    if not item.nodeid.startswith(CELLS):
        return "", item.nodeid.partition("::")[0]
    kernel_id, case = (item.callspec.params[name] for name in ("kernel_id", "case"))
    if not kernel_id.startswith("helion/"):
        return kernel_id, item.nodeid
    from conformance_cells import form

    return kernel_id, form(case)


def dealt(items: list[pytest.Item], part: int, parts: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """(the items of the part, the others), each in the order that they had."""
    seen: Counter[tuple[str, object]] = Counter()
    units: dict[tuple[str, object, int], list[pytest.Item]] = {}
    for item in items:
        place = _place(item)
        units.setdefault((*place, seen[place] // TOGETHER if place[0] else 0), []).append(item)
        seen[place] += 1
    first = {unit: together[0].nodeid for unit, together in units.items()}
    order = sorted(units, key=lambda unit: (unit[0], zlib.crc32(first[unit].encode()), first[unit]))
    mine = {item.nodeid for unit in order[part - 1 :: parts] for item in units[unit]}
    return [item for item in items if item.nodeid in mine], [item for item in items if item.nodeid not in mine]
