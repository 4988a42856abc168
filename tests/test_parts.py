"""Parts of a choice of tests: each test is in one, and each is a sample of all."""

from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest

import parts
from conformance_cells import FULL, cells, form

SLOW = [cell for cell in cells() if cell.level == FULL]


def _cell(cell):
    params = {"kernel_id": cell.kernel, "case": cell.case}
    return SimpleNamespace(nodeid=f"{parts.CELLS}{cell.name}]", callspec=SimpleNamespace(params=params), cell=cell)


def _tests(files, each):
    return [SimpleNamespace(nodeid=f"tests/test_{n}.py::test_it[{k}]") for n in range(files) for k in range(each)]


@pytest.mark.parametrize("of", [1, 2, 7])
def test_each_test_is_in_one_part_in_its_order(of):
    items = [*_tests(20, 3), *(_cell(cell) for cell in SLOW[::9])]
    split = [parts.dealt(items, part, of) for part in range(1, of + 1)]
    assert sorted((items.index(item) for kept, _ in split for item in kept)) == list(range(len(items)))
    for kept, others in split:
        assert len(kept) + len(others) == len(items)
        assert [items.index(item) for item in kept] == sorted(items.index(item) for item in kept)


def test_a_file_stays_together():
    kept, _ = parts.dealt(_tests(20, 3), 1, 4)
    assert len(kept) == 15 and set(Counter(item.nodeid.partition("::")[0] for item in kept).values()) == {3}


def test_what_helion_generates_one_code_for_stays_together_ten_at_a_time():
    items = [_cell(cell) for cell in SLOW if cell.kernel == "helion/split"]
    parts_of = defaultdict(list)
    for part in range(1, 6):
        for item in parts.dealt(items, part, 5)[0]:
            parts_of[form(item.cell.case)].append(part)
    assert all(len(set(found)) <= -(-len(found) // parts.TOGETHER) for found in parts_of.values())


def test_a_part_of_the_cells_has_each_kernel_alike():
    share = Counter(item.cell.kernel for item in parts.dealt([_cell(cell) for cell in SLOW], 2, 10)[0])
    every = Counter(cell.kernel for cell in SLOW)
    assert all(0.05 < share[kernel] / every[kernel] < 0.2 for kernel in every)


@pytest.mark.parametrize("text", ["", "1", "0/3", "4/3", "1/0", "-1/3", "a/b", "1/3/5", "١/٢"])
def test_what_is_no_part_is_refused(text):
    with pytest.raises(pytest.UsageError, match="--part: found"):
        parts.read(text)


def test_a_part_is_read():
    assert parts.read("2/8") == (2, 8)
