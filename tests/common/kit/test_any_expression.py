"""Any case expression is a case that can be built, or a typed error; never a wait without end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.cases.case import build
from common.kit import levels
from common.spec import SpecError

SMALL = [name for name in levels.SMOKE if levels.BY_NAME[name].spare_pages < 100]
NAMES = st.sampled_from([*SMALL, "tree-of-8", "int8", "fp8-scales-of-tokens", "spans-of-2-tokens", "random-7"])
FIELD = st.sampled_from([*levels._FIELDS, "weather", ""])
NUMBER = st.integers(-3, 40) | st.integers(-(2**70), 2**70)
WORDS = st.sampled_from(
    ["none", "true", "false", "nan", "inf", "-inf", "near", "hnd", "float16", "int8", "１", "", "="]
)
LISTS = st.lists(st.tuples(st.integers(-2, 60), st.integers(-2, 90)), max_size=4).map(
    lambda pairs: ".".join(f"{a}/{b}" for a, b in pairs)
)
PARENTS = st.lists(st.integers(-3, 9), max_size=9).map(lambda found: ".".join(map(str, found)))
VALUE = NUMBER.map(str) | WORDS | LISTS | PARENTS | st.text(max_size=8)
EXPRESSION = st.tuples(NAMES, st.lists(st.tuples(FIELD, VALUE), max_size=3)).map(
    lambda found: "@".join([found[0], *(f"{field}={value}" for field, value in found[1])])
)


def property_of(examples):
    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(expression=EXPRESSION | st.text(max_size=40))
    def holds(expression):
        try:
            case = levels.read(expression)
        except SpecError as error:
            assert error.argument == "case" and len(str(error)) < 700
            return
        build(case)
        assert levels.read(levels.write(case)) == case

    return holds


test_any_expression_is_a_case_or_refused = property_of(300)
test_any_of_ten_thousand_expressions_is_a_case_or_refused = pytest.mark.slow(property_of(10_000))
