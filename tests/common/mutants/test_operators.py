"""Wrong kernels made by operators: the same for a seed, each another text, and most of them wrong."""

import ast
from collections import Counter
from functools import cache

import pytest

from common.cases.by_axes import axes_case, num_smoke
from common.kit.inside import Asked
from common.mutants import emulation
from common.mutants.operators import LIMITS, OPERATORS, SOURCE, load, made
from common.spec import Features, PagedBatch

KERNELS = made(300, seed=3)


@cache
def busy():
    """A case of all calls with many features on, and keys to see."""
    cases = map(axes_case, range(num_smoke()))
    most = (max(keys for _, keys in case.lens) if len(case.asked) > 6 and not case.brief else 0 for case in cases)
    return axes_case(next(number for number, keys in enumerate(most) if 100 < keys < 1000))


def launcher(module):
    def launch(batch: PagedBatch, features: Features, out, lse) -> None:
        module.emulate(batch, features, out, module.Schedule(64, 2), lse=lse)

    return launch


def test_they_are_a_function_of_the_seed():
    assert KERNELS == made(300, seed=3) != made(300, seed=4)


def test_each_is_the_source_with_one_place_changed():
    right = SOURCE.read_text()
    assert all(one.source != right for one in KERNELS) and len({one.source for one in KERNELS}) == len(KERNELS)
    assert all(ast.parse(one.source) for one in KERNELS)


def test_every_operator_and_limit_has_a_share():
    counted = Counter(one.operator for one in made(1000, seed=3))
    assert {name for name in counted if not name.startswith("limited")} == {*OPERATORS, "kept"}
    assert min(counted.values()) >= 10 and sum(n for name, n in counted.items() if name.startswith("limited")) > 300
    texts = " ".join(one.text for one in made(1000, seed=3))
    assert all(f"where {limit}" in texts for limit in LIMITS)


def test_the_source_unchanged_is_right():
    case = Asked.of(busy())
    assert case.why_not(launcher(load(SOURCE.read_text()))) == ""
    assert case.same_as_right(launcher(load(SOURCE.read_text())), launcher(emulation))


def verdict(case, one):
    try:
        return case.why_not(launcher(load(one.source)))
    except Exception as error:
        return f"raised {type(error).__name__}"


@pytest.mark.parametrize("operator", ["comparison", "factor", "dropped term", "kept"])
def test_one_case_with_many_features_rejects_some_of_each(operator):
    ones = [one for one in KERNELS if one.operator == operator][:12]
    assert sum(bool(verdict(Asked.of(busy()), one)) for one in ones) >= 2
