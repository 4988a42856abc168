"""Cases of the axes: what they hold, that they are well formed, and that they are large where it is cheap."""

import itertools

import pytest
import torch

from calls import ensure_well_formed
from common.cases import axes, by_axes, layouts, published, random_cases
from common.cases.axes import AXES, EVERY, MASK_RULES, MASKS, PAIR_RULES, RULES
from common.cases.by_axes import (
    ABILITIES,
    DEAR,
    PLACES,
    REGIMES,
    STRANGE,
    axes_case,
    drawn_case,
    num_axes,
    num_drawn,
    num_quick,
    num_smoke,
    values_of,
)
from common.cases.case import build
from common.cases.covering import legal_pairs
from common.spec.paged_batch import DTYPES

SMOKE = [values_of(number) for number in range(num_smoke())]


@pytest.fixture(scope="module")
def every():
    return [values_of(number) for number in range(num_axes())]


def held(rows, of):
    return {(a, str(row[a]), b, str(row[b])) for row in rows for a, b in itertools.combinations(of, 2)}


def named_values(pairs, of):
    return {(a, str(of[a][i]), b, str(of[b][j])) for a, i, b, j in pairs}


def test_smoke_holds_every_value_and_every_pair_of_masks():
    for axis, values in EVERY.items():
        assert {str(row[axis]) for row in SMOKE} >= {str(value) for value in values}, axis
        shown = {str(row[axis]) for row in SMOKE if axes.tells(row)}
        numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
        telling = {str(value) for value in numbers if axis not in axes.MUTE or not axes.MUTE[axis](value)}
        dear = {"context": 6, "query": 16, "window": 6, "spare_pages": 3}  # one head, or one key
        assert len(telling - shown) <= dear.get(axis, 2), axis
    assert held(SMOKE, MASKS) >= named_values(legal_pairs(MASKS, MASK_RULES), MASKS)


def test_the_levels_stay_as_long_as_they_are():
    drawn = (drawn_case(0, number) for number in range(num_drawn(0, "smoke")))
    cases = [*map(axes_case, range(num_smoke())), *drawn]
    assert sum(2 if case.brief else 4 for case in cases) <= 3200  # calls
    assert num_quick() <= 180


def steps(case):
    """Tiles of 64 keys that an interpreter goes through, in a program a query token and head."""
    most = case.ask.sliding_window or 1 << 30
    return sum(query * (min(keys, most) // 64 + 1) for query, keys in case.lens) * case.heads[0]


def test_quick_cases_are_short_in_an_interpreter_too():
    every = [steps(axes_case(number)) for number in range(num_quick())]
    assert max(every) <= 2000 and sum(every) <= 18_000


def test_each_feature_of_the_mask_is_on_alone_in_a_long_prompt_and_over_long_keys():
    rows = by_axes._alone()
    off = {axis: values[0] for axis, values in ABILITIES.items()}
    for row in rows:
        assert sum(row[axis] != value for axis, value in off.items() if axis != "dtype") == 1
    for axis in MASKS.keys() - {"query", "context", "store"}:
        for long in (lambda row: row["query"] == 300, lambda row: row["context"] == 4200):
            assert {str(row[axis]) for row in rows if long(row)} >= {*map(str, MASKS[axis])}, axis


def test_small_numbers_are_all_asked_at_smoke():
    for axis in ("ratio", "kv_heads", "head_size", "page", "value_size", "tree", "query", "context"):
        assert {str(row[axis]) for row in SMOKE} >= {*map(str, by_axes.WIDE[axis])}, axis
    assert {row["sequences"] for row in SMOKE} >= {*range(1, 131), *range(136, 513, 8)}


@pytest.mark.slow
def test_full_holds_every_pair_and_every_triple_of_masks(every):
    assert held(every, AXES) >= named_values(legal_pairs(AXES, PAIR_RULES), AXES)
    pairs = held(every, MASKS)
    for a, b, c in itertools.combinations(MASKS, 3):
        wanted = {
            (str(x), str(y), str(z))
            for x, y, z in itertools.product(MASKS[a], MASKS[b], MASKS[c])
            if not any(rule.broken({a: x, b: y, c: z}) for rule in MASK_RULES)
        }
        assert wanted <= {(str(row[a]), str(row[b]), str(row[c])) for row in every}
    assert pairs and num_axes() <= 4330


@pytest.mark.parametrize("rows", ["smoke", pytest.param("full", marks=pytest.mark.slow)])
def test_no_row_breaks_a_rule(rows, request):
    rows = SMOKE if rows == "smoke" else request.getfixturevalue("every")
    assert not any(rule.broken(row) for row in rows for rule in axes.POSSIBLE)
    dear = sum(any(rule.broken(row) for rule in RULES) for row in rows)
    # of these and REGIMES, whose own values are cheap together
    assert dear <= 30 + len(PLACES) + len(DEAR) + len(STRANGE)


def test_what_no_small_case_has_is_asked_at_smoke():
    cases = [axes_case(number) for number in range(num_smoke())]
    several = [case for case in cases if case.heads[1] > 1 and case.heads[0] > case.heads[1]]  # so a wrong head shows
    assert max(keys for case in several for _, keys in case.lens) > 65_536
    assert max(len(case.lens) for case in cases) > 1024
    assert max(keys // case.block_size for case in cases for _, keys in case.lens) >= 8192
    assert max(case.heads[0] for case in cases) >= 128
    assert max(sum(query for query, _ in case.lens) for case in cases) > 2048
    assert max(case.ask.sliding_window or 0 for case in cases) > 10_000
    assert max(case.ask.chunk or 0 for case in cases) == 8192
    rows = {query * case.heads[0] // case.heads[1] for case in cases for query, _ in case.lens}
    assert rows >= {edge + step for edge in (16, 32, 64, 128) for step in (-1, 0, 1)}
    on = [sum(row[axis] != AXES[axis][0] for axis in MASKS if axis not in ("query", "context")) for row in SMOKE]
    assert sum(count >= 4 for count in on) >= 20
    assert any(row["softcap"] and "query" in str(row["store"]) for row in SMOKE)


@pytest.mark.parametrize("count", [num_quick, num_smoke])
@pytest.mark.parametrize("feature", ["sinks", "tree", "non_causal"])
def test_tensors_of_features_have_every_dtype(feature, count):
    """No case had any but 32 bits of them, and a kernel that takes nothing else passed."""
    asked = [axes_case(number).ask for number in range(count())]
    assert {ask.operands for ask in asked if getattr(ask, feature) is not None} == {None, *DTYPES[:2]}


def test_many_tokens_meet_several_heads_at_smoke():
    """A KV head by modulo in prompts of more than a thousand tokens alone lived: such cases had one KV head."""
    cases = map(axes_case, range(num_smoke()))
    several = [case for case in cases if case.heads[1] > 1 and case.heads[0] > case.heads[1]]
    assert any(query_len > 1024 for case in several for query_len, _ in case.lens)
    assert any(sum(query_len for query_len, _ in case.lens) > 1024 and len(case.lens) > 32 for case in several)


@pytest.mark.parametrize("regime", sorted(REGIMES.keys() - {"whole tiles"}))  # which has decodes alone
def test_flags_of_both_dtypes_show_where_kernels_go_other_ways(regime):
    """Of each place there was one case of flags, in one dtype or under a span of all keys."""
    rows = [row for row in by_axes._regimes() if by_axes._flags(row)]
    rows = [row for row in rows if all(row[axis] in values for axis, values in REGIMES[regime].items())]
    assert {row.get("operands") for row in rows if "operands" in row} == {None, torch.float16}


def test_pages_lie_past_24_bits_of_elements_at_smoke():
    far = [case for case in map(axes_case, range(num_smoke())) if case.arrange is layouts.far_pages]
    batches = [build(case)[0] for case in far]
    assert any(int(one.block_table[0, 0]) * one.key_cache.stride(0) >= 2**24 for one in batches)
    assert any(int(one.block_table[0, 0]) >= 2**20 for one in batches)


def test_sizes_and_stores_are_asked_in_each_dtype_of_16_bits_at_smoke():
    """Most sizes of heads and forms of a cache were asked in float32 alone, in which no engine serves."""
    stores = [store for store in AXES["store"] if store not in random_cases.FP8_QUERIES]
    for axis, sizes in (("head_size", AXES["head_size"]), ("page", (16, 32, 64, 128, 256)), ("store", stores)):
        asked = {(row[axis], row["dtype"]) for row in SMOKE}
        assert asked >= set(itertools.product(sizes, DTYPES[:2])), axis


def test_sequences_of_equal_lengths_are_asked_at_smoke():
    alike = [case.lens for case in map(axes_case, range(num_smoke())) if len(case.lens) > 2 and len({*case.lens}) == 1]
    assert {min(query, 2) for (query, keys), *_ in alike if keys > 128} == {1, 2}


def test_a_flag_past_the_64th_is_not_that_of_its_number_cut_to_6_bits():
    cases = [case for case in map(axes_case, range(num_smoke())) if len(case.lens) > 64 and case.ask.non_causal]
    flags = [[seq in case.ask.non_causal for seq in range(len(case.lens))] for case in cases]
    told = zip(cases, flags, strict=True)
    assert any(one[-1] != one[(len(one) - 1) % 64] and case.lens[-1][0] > 1 for case, one in told)


def test_products_of_axes_are_large_at_smoke():
    """Rows of tokens times heads past 8,192 were never asked, and could be unwritten."""
    cases = [axes_case(number) for number in range(num_smoke())]
    rows = [(sum(query for query, _ in case.lens) * case.heads[0], case.head_size) for case in cases]
    tiles = [
        (-(-query * case.heads[0] // case.heads[1] // 16) * case.heads[1]) for case in cases for query, _ in case.lens
    ]
    assert max(tiles) > 1024  # of 16 rows of a KV head
    assert max(rows)[0] > 2**14 and max(count * lanes for count, lanes in rows) > 2**18
    wide = [case for case in cases if len(case.lens) * case.heads[1] > 4096]
    assert any(case.lens[-1][0] and case.lens[-1][1] for case in wide)


def test_scales_of_an_output_are_none_of_bf16():
    """Most were powers of two: a kernel that rounded them to bf16 passed."""
    scales = [case.ask.out_scale for case in map(axes_case, range(num_smoke())) if case.ask.out_dtype is not None]
    off = [max(_rounded(scale), _rounded(1.0 / scale)) for scale in scales]
    assert sum(part > 2.0**-9 for part in off) > len(off) // 2


def _rounded(number):
    return abs(float(torch.tensor(number, dtype=torch.bfloat16)) / number - 1.0)


def test_a_sequence_past_the_64th_is_not_causal_where_it_shows():
    cases = [axes_case(number) for number in range(num_smoke())]
    flagged = [(case, seq) for case in cases for seq in case.ask.non_causal or () if seq >= 64]
    assert any(case.lens[seq][0] > 1 and case.ask.sliding_window != 1 for case, seq in flagged)


def test_what_is_served_is_asked_at_smoke():
    cases = [axes_case(number) for number in range(num_smoke())]
    assert {case.head_size for case in cases} >= {model.head_size for model in published.MODELS}
    assert {case.heads[0] // case.heads[1] for case in cases} >= set(published.ratios())
    assert {case.heads[1] for case in cases} >= {heads for heads in published.kv_heads() if heads <= 128}
    assert {case.block_size for case in cases} >= set(published.PAGES)
    assert {len(case.lens) for case in cases} >= {*range(32, 513, 32)}
    ours = [case for case in cases if case.ask.sliding_window == 128 and case.ask.sinks and case.head_size == 64]
    assert any(max(keys for _, keys in case.lens) > 128 for case in ours)  # gpt-oss, and the window hides a key


def test_a_seed_draws_values_of_every_axis_that_no_list_has():
    cases = [drawn_case(5, number) for number in range(num_drawn(5, "smoke"))]
    assert cases == [drawn_case(5, number) for number in range(num_drawn(5, "smoke"))]
    others = [drawn_case(6, number) for number in range(num_drawn(6, "smoke"))]
    for field in ("head_size", "block_size", "heads"):
        assert {case.value(field) for case in cases} != {case.value(field) for case in others}
    assert {len(case.lens) for case in cases} - {*EVERY["sequences"]}
    assert {case.ask.sliding_window for case in cases} - {*EVERY["window"]}
    assert {keys for case in cases for _, keys in case.lens} != {keys for case in others for _, keys in case.lens}


@pytest.mark.parametrize("seed", [0, 1, 123_456_789])
def test_cases_that_a_seed_draws_are_well_formed(seed):
    for number in range(seed % 3, num_drawn(seed, "smoke"), 3):
        ensure_well_formed(drawn_case(seed, number))


@pytest.mark.parametrize("regime", REGIMES)
def test_smoke_holds_every_ability_where_kernels_go_other_ways(regime):
    rows = [row for row in SMOKE if all(row[axis] in values for axis, values in REGIMES[regime].items())]
    for axis, values in ABILITIES.items():
        apart = by_axes._without(axis).apart
        possible = [value for value in values if axis not in REGIMES[regime] and not apart(regime, value)]
        assert {str(row[axis]) for row in rows} >= {str(value) for value in possible}, axis


@pytest.mark.slow
def test_a_span_that_ends_before_a_window_meets_one_token_of_query():
    cases = [axes_case(number) for number in range(num_smoke(), num_axes())]
    for case in cases:
        lone = [i for i, (query, keys) in enumerate(case.lens) if query == 1 and keys > 60]
        window = case.ask.sliding_window
        if lone and isinstance(case.ask.spans, tuple) and window and window < 20:
            seq = lone[0]
            if any(last < case.lens[seq][1] - 1 - window for _, last in case.ask.spans[seq]):
                return
    raise AssertionError("no case of such a span")


def test_large_windows_end_inside_the_context_where_few_cases_hold_them():
    numbers = [n for n, row in enumerate(SMOKE) if isinstance(row["window"], int) and row["window"] >= 1000]
    large = [axes_case(number) for number in numbers]
    assert {case.ask.sliding_window for case in large} >= {1000, 2049, 4096, 4097, 5001, 10007}
    assert all(max(keys for _, keys in case.lens) > case.ask.sliding_window for case in large if case.block_size < 1000)


@pytest.mark.parametrize("part", range(4))
def test_cases_are_well_formed_and_between_guards(part):
    for number in range(part, num_smoke(), 12):
        ensure_well_formed(axes_case(number))


def test_weights_that_are_one_number_in_fp8_are_structured():
    flat = [case for case in map(axes_case, range(num_smoke())) if case.flat]
    assert flat and all(case.structured and case.fp8_query for case in flat)
    assert not any(case.but(fp8_query=None, scales=None, fill=None, loud=1.0).structured for case in flat)


@pytest.mark.slow
def test_a_number_of_no_case_is_refused():
    assert axes_case(num_axes() - 1) == axes_case(num_axes() - 1)
    for number in (-1, num_axes()):
        with pytest.raises(ValueError, match="number: found"):
            by_axes.values_of(number)
    with pytest.raises(ValueError, match="number: found"):
        drawn_case(5, num_drawn(5, "full"))


def test_flags_show_where_kernels_go_other_ways():
    """Flags of a decode alone were asked in most of these places: a kernel that ignored them there passed."""
    rows = [row for row in by_axes._regimes() if row["non_causal"] is not None]
    assert sum(row["query"] > 1 for row in rows) > 3 * len(rows) // 4


def test_heads_of_public_models_are_asked_together():
    """40 query heads over 8 were not: each number was asked beside another."""
    assert {(row["kv_heads"], row["ratio"]) for row in SMOKE} >= {(8, 5), (8, 3), (8, 8), (8, 16), (4, 7), (4, 9)}
