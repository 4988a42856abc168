"""Every named case builds, is well formed, and really is the corner that its name promises."""

import math
import re
from dataclasses import replace

import pytest
import torch

from calls import ensure_well_formed
from common.cases.layouts import huge_query, own_first_page, page_twice, tiny_query
from common.cases.named import BY_NAME, CASES, build
from common.kit.levels import RUNS
from common.oracle.reference import reference
from common.spec import SpecError
from common.spec.validation import validate

SMALL = [case for case in CASES if not case.large and not case.refused]
# arrangements that give a batch of another meaning
OTHER_BATCHES = (own_first_page, page_twice, huge_query, tiny_query)
REFUSED = [case for case in CASES if case.refused]
NUMBERED = {number for case in CASES for number in case.numbers}


def name(case):
    return case.name


@pytest.mark.parametrize("case", SMALL, ids=name)
def test_a_case_is_well_formed_and_between_guards(case):
    ensure_well_formed(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.large], ids=name)
def test_a_large_case_is_well_formed_but_for_its_size(case):
    """The same case over short sequences: that the options fit together."""
    short = replace(case, lens=((1, 9), (3, 20)), spare_pages=min(case.spare_pages, 50))
    batch, features = build(short)
    validate(batch, features)


@pytest.mark.parametrize("case", REFUSED, ids=name)
def test_a_refusal_case_is_refused_by_name(case):
    with pytest.raises(SpecError) as refused:
        validate(*build(case))
    assert refused.value.argument == case.refused


def test_names_are_stable_ids():
    assert len(BY_NAME) == len(CASES) >= 50
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", case.name) for case in CASES)


@pytest.mark.parametrize("first, last", [(10, 16), (20, 25), (60, 66), (71, 73), (85, 89)])
def test_the_promised_numbers_are_covered(first, last):
    assert set(range(first, last + 1)) <= NUMBERED


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_every_dtype_has_its_share(dtype):
    assert sum(case.dtype is dtype for case in SMALL) >= len(SMALL) // 8


def test_a_case_is_a_function_of_its_name():
    case = BY_NAME["ratio-5"]
    first, again = build(case)[0], build(case)[0]
    assert torch.equal(first.query, again.query) and torch.equal(first.block_table, again.block_table)
    other = build(replace(case, name="other"))[0]
    assert not torch.equal(first.query, other.query)


@pytest.mark.parametrize("case", [c for c in SMALL if c.arrange and c.arrange not in OTHER_BATCHES], ids=name)
def test_an_arrangement_changes_no_result(case):
    plain = reference(*build(replace(case, arrange=None)))
    arranged = reference(*build(case))
    assert torch.equal(plain.out.nan_to_num(9.0), arranged.out.nan_to_num(9.0))
    assert torch.equal(plain.lse.nan_to_num(9.0), arranged.lse.nan_to_num(9.0))


def batch_of(name):
    return build(BY_NAME[name])[0]


def test_pages_in_runs_rise_by_one_and_jump_back():
    batch, _ = build(RUNS)
    steps = batch.block_table[0, : -(-300 // 8)].diff()
    assert all((steps[at] == 1) == (at % 4 != 3) for at in range(len(steps))) and steps[3] < 0


def test_pages_are_arranged_as_names_say():
    assert bool((batch_of("pages-reversed").block_table[0, :8].diff() < 0).all())
    twice = batch_of("page-twice-in-one-sequence").block_table
    assert twice[0, 0] == twice[0, 1]
    shared = batch_of("pages-shared").block_table[:, :2].tolist()
    assert shared[0] == shared[1] == shared[4] != shared[3]
    assert shared[2][0] != shared[0][0] and shared[2][1] == shared[0][1]
    assert int(batch_of("page-id-beyond-20-bits").block_table[0, 0]) >= 1 << 20
    stale = batch_of("table-tail-of-other-sequences").block_table
    assert stale[0, 1] == stale[1, 0] and stale[2, 2] == stale[3, 0]
    assert {-1, 2**31 - 1, 0x7F7F7F7F, 0} <= set(batch_of("table-tail-garbage").block_table[:, -1].tolist())


@pytest.mark.parametrize(
    ("case", "limit", "unit"),
    [("page-offset-beyond-31-bits-of-bytes", 1 << 31, 2), ("page-offset-beyond-31-bits-of-elements", 1 << 31, 1)],
    ids=["bytes", "elements"],
)
def test_a_page_offset_passes_31_bits(case, limit, unit):
    case = BY_NAME[case]
    page = case.block_size * case.heads[1] * case.head_size * unit
    assert case.spare_pages * page > limit


@pytest.mark.parametrize("case", ["table-exactly-as-wide-as-used", "table-exactly-as-wide-partial-page"])
def test_the_last_row_of_the_table_ends_at_a_guard(case):
    table = batch_of(case).block_table
    assert table.shape[1] == -(-BY_NAME[case].lens[-1][1] // 16)
    behind = torch.as_strided(table, (1,), (1,), table.storage_offset() + table.numel())
    assert int(behind) == 0x7F7F7F7F


@pytest.mark.parametrize("case", [f"table-{cut}-{kind}" for cut in ("columns", "rows") for kind in ("int32", "int64")])
def test_the_table_is_a_slice(case):
    table = batch_of(case).block_table
    assert table.stride(0) != table.shape[1]
    assert str(table.dtype) == f"torch.{case.split('-')[-1]}"


def test_the_unaligned_case_is_unaligned():
    batch = batch_of("unaligned-and-odd-strides")
    for tensor in (batch.query, batch.key_cache, batch.value_cache):
        assert tensor.data_ptr() % 16
        assert tensor.stride(-2) % 2


def test_sinks_carry_about_half_of_the_mass():
    batch, features = build(BY_NAME["sinks-near-the-mass"])
    expected = reference(batch, features)
    share = torch.exp(features.sinks - expected.lse[0])
    assert bool(((share > 0.1) & (share < 0.9)).all())
    assert build(BY_NAME["sinks-off"])[1].sinks.tolist() == [-math.inf] * 4


def test_soft_capped_logits_saturate():
    batch, _ = build(BY_NAME["softcap-50-logits-4400"])
    uncapped = reference(batch, replace(build(BY_NAME["softcap-50-logits-4400"])[1], softcap=None))
    assert float(uncapped.logit_size.max()) > 4400


def test_a_window_leaves_the_leading_segments_empty():
    case = BY_NAME["window-leaves-leading-segments-empty"]
    longest = max(seq_len for _, seq_len in case.lens)
    assert longest - case.ask.sliding_window > longest * 3 / 4  # three of four segments
