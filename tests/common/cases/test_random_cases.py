"""Random cases are functions of their seeds, cover what they promise, and are well formed."""

import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from calls import ensure_well_formed
from common.cases import random_cases
from common.cases.case import build
from common.cases.covering import both, covering, legal_pairs
from common.cases.random_cases import (
    ALL_AXES,
    AXES,
    FEATURE_AXES,
    RULES,
    may_go_together,
    random_case,
    values_of,
)
from common.oracle.integrity import same_bits
from common.spec.feature_rules import contradiction

ROOT = Path(__file__).parents[3]
PAIRS, TRIPLES, FEATURES = random_cases.num_pairs(), random_cases.num_triples(), random_cases.num_feature_pairs()
OF_FEATURES = range(PAIRS + TRIPLES, PAIRS + TRIPLES + FEATURES)
FREE = range(OF_FEATURES.stop, OF_FEATURES.stop + 300)


def test_the_first_seeds_cover_every_pair_that_may_go_together():
    legal = legal_pairs(AXES, RULES)
    places = [{axis: AXES[axis].index(values_of(seed)[axis]) for axis in AXES} for seed in range(PAIRS)]
    covered = {(a, row[a], b, row[b]) for row in places for a, b in itertools.combinations(AXES, 2)}
    assert covered == legal
    assert len(legal) > 8000 and PAIRS <= 400


def test_the_seeds_of_features_cover_every_pair_with_one():
    places = [{a: ALL_AXES[a].index(value) for a, value in values_of(seed).items()} for seed in OF_FEATURES]
    covered = {(a, row[a], b, row[b]) for row in places for a, b in itertools.combinations(ALL_AXES, 2)}
    wanted = {p for p in legal_pairs(ALL_AXES, RULES) if p[0] in FEATURE_AXES or p[2] in FEATURE_AXES}
    assert wanted <= covered
    assert len(wanted) > 8000 and FEATURES <= 600


def test_seeds_before_those_of_features_have_none():
    plain = {axis: values[0] for axis, values in FEATURE_AXES.items()}
    assert all(values_of(seed).items() >= plain.items() for seed in range(0, PAIRS + TRIPLES, 7))


def test_what_contradicts_itself_is_never_drawn():
    """The rules of features refuse no case: `may_go_together` knows all that they know."""
    for seed in [*OF_FEATURES, *FREE]:
        assert contradiction(random_case(seed).features()) is None


def test_the_seeds_behind_cover_every_triple_of_page_context_query_and_ratio():
    axes = ("page", "context", "query", "ratio")
    rows = [values_of(seed) for seed in range(PAIRS, PAIRS + TRIPLES)]
    for three in itertools.combinations(axes, 3):
        found = {tuple(row[axis] for axis in three) for row in rows}
        assert found == set(itertools.product(*(AXES[axis] for axis in three)))
    assert PAIRS + TRIPLES <= 2000


def test_pairs_that_may_not_go_together_never_do():
    assert all(may_go_together(values_of(seed)) for seed in [*range(0, PAIRS, 3), *OF_FEATURES, *FREE])
    assert not may_go_together({"sinks": "heavy", "fill": "values-tiny"})
    assert may_go_together({"sinks": None, "fill": "values-tiny"})


def test_a_pair_that_no_row_can_hold_is_refused():
    axes = {"a": (1, 2), "b": (1, 2), "c": (1,)}
    with pytest.raises(ValueError, match="no row can hold"):
        covering(axes, [both("a", {2}.__contains__, "c", bool)])


def test_free_draws_take_boundaries_and_numbers_between_them():
    drawn = [values_of(seed) for seed in FREE]
    between = Counter(axis for values in drawn for axis in random_cases.RANGES if values[axis] not in AXES[axis])
    assert all(between[axis] >= len(FREE) // 20 for axis in ("query", "ratio", "page", "window"))
    assert all(len({str(values[axis]) for values in drawn}) >= len(AXES[axis]) - 1 for axis in AXES)
    on = Counter(axis for values in drawn for axis, plain in FEATURE_AXES.items() if values[axis] != plain[0])
    assert all(on[axis] for axis in FEATURE_AXES)


def test_a_case_is_a_function_of_its_seed_in_any_process():
    seeds = (0, PAIRS + 5, FREE.start + 3)
    show = f"from common.cases.random_cases import random_case as r; print([(r(s).lens, r(s).heads) for s in {seeds}])"
    there = subprocess.run([sys.executable, "-c", show], cwd=ROOT, capture_output=True, text=True)
    assert there.stdout.strip() == str([(random_case(seed).lens, random_case(seed).heads) for seed in seeds])
    for seed in seeds:
        one, other = build(random_case(seed))[0], build(random_case(seed))[0]
        assert same_bits(one.query, other.query) and torch.equal(one.block_table, other.block_table)


@pytest.mark.parametrize("part", range(4))
def test_random_cases_are_well_formed_and_between_guards(part):
    for seed in [*range(part, PAIRS, 8), *OF_FEATURES[part::8], *FREE[part::16]]:
        ensure_well_formed(random_case(seed))


def test_the_values_of_the_axes_arrive_in_the_case():
    for seed in range(0, PAIRS, 5):
        values, case = values_of(seed), random_case(seed)
        assert case.heads == (values["ratio"] * values["kv_heads"], values["kv_heads"])
        assert (case.block_size, case.head_size, case.dtype) == (values["page"], values["head_size"], values["dtype"])
        assert values["query"] in {query_len for query_len, _ in case.lens}
        assert (case.fill is None) == (values["fill"] is None)
        kinds = {"none": 1, "empty": 3, "prompts": 3, "mixed": 4, "decodes": 5}
        assert len(case.lens) <= kinds[values["companions"]]


def test_a_seed_below_0_is_refused():
    with pytest.raises(ValueError, match="seed: found -1"):
        random_case(-1)
