"""Fills and edge cases are what their names say."""

import math

import pytest
import torch

from common.cases.batch import owned_slots
from common.cases.case import decodes, named
from common.cases.fills import FILLS, INVISIBLE, SEEN, seen_slots
from common.cases.named import BY_NAME, EDGES, build
from common.oracle.reference import reference
from common.spec.metadata import lens_of

CASE = named("base", lens=((1, 60), (9, 50)), sliding_window=19, dtype=torch.float32)


def filled(name, **changes):
    return build(CASE.but(fill=FILLS[name], **changes))


@pytest.mark.parametrize("name", INVISIBLE)
def test_what_no_row_sees_changes_no_result(name):
    plain, poisoned = reference(*build(CASE)), reference(*filled(name))
    assert torch.equal(plain.out, poisoned.out) and torch.equal(plain.lse, poisoned.lse)


def test_slots_left_of_a_window_are_owned_and_unseen():
    batch, features = build(CASE)
    lens = lens_of(batch.query_start_loc, batch.seq_lens)
    owned = owned_slots(lens, [batch.block_table], batch.key_cache.shape[0], 16)
    seen = seen_slots(batch, features)
    assert int((owned & ~seen).sum()) == (60 - 19) + (50 - 9 - 18)
    assert not bool((seen & ~owned).any())


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("unseen-keys-nan", math.nan, 3.0), ("unseen-values-inf", 3.0, -math.inf), ("unseen-nan", math.nan, math.nan)],
)
def test_k_and_v_are_poisoned_apart(name, key, value):
    batch, features = filled(name)
    unseen = ~seen_slots(batch, features)
    for cache, poison in ((batch.key_cache, key), (batch.value_cache, value)):
        found = cache[unseen]
        assert torch.equal(found, torch.full_like(found, poison)) or bool(found.isnan().all() and math.isnan(poison))


def lse_of(name, **changes):
    batch, features = filled(name, lens=decodes(40), sliding_window=None, **changes)
    return float(reference(batch, features).lse[0, 0])


@pytest.mark.parametrize(
    ("name", "lse"),
    [
        ("logits-equal", 3.0 + math.log(40)),
        ("logits-all-low", -300.0 + math.log(40)),
        ("tail-mass", math.log(1 + 39 * math.exp(-7))),
        ("logits-peak-at-the-first-key", 30.0),
        ("logits-peak-at-the-last-key", 30.0),
    ],
)
def test_logits_are_as_wanted(name, lse):
    assert lse_of(name) == pytest.approx(lse, rel=2**-8, abs=2**-8)


def test_a_ramp_moves_the_maximum_at_every_key():
    assert lse_of("logits-rising") == pytest.approx(lse_of("logits-falling"), abs=2**-8)
    batch, _ = filled("logits-rising", lens=decodes(40))
    first = batch.key_cache[batch.block_table[0].long()[:3]].flatten(0, 1)[:40, 0, 0]
    assert bool((first.diff() > 0).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", FILLS)
def test_what_is_seen_stays_finite(name, dtype):
    batch, features = filled(name, dtype=dtype, softcap=30.0 if "softcap" in name else None)
    expected = reference(batch, features)
    assert bool(expected.out.isfinite().all())
    limit = torch.finfo(dtype).max
    assert float(expected.out.abs().max()) < limit


def test_products_pass_the_largest_fp16_number_and_tiny_values_are_subnormal():
    batch, _ = filled("products-past-fp16", dtype=torch.float16)
    keys = batch.key_cache[batch.block_table[0].long()[:3]].flatten(0, 1)[:60].double()
    assert float((batch.query[0, 0].double() @ keys[:, 0].T).abs().max()) > 65504
    tiny, _ = filled("values-tiny", dtype=torch.float16)
    values = tiny.value_cache[~tiny.value_cache.isnan()]
    assert float(values.abs().max()) < torch.finfo(torch.float16).smallest_normal


def test_a_table_of_one_column_has_row_stride_1():
    table = build(BY_NAME["table-of-one-column"])[0].block_table
    assert table.shape[1] == 1 and table.stride() == (1, 1)


def test_in_the_first_tile_late_rows_see_nothing():
    case = BY_NAME["first-tile-masked-for-late-rows"]
    (query_len, seq_len), window = case.lens[0], case.ask.sliding_window
    first_key = seq_len - query_len - window + 1
    assert seq_len - window >= first_key // 16 * 16 + 2 * 16  # of tiles of 16 keys it sees neither of the first two


def test_far_rows_are_2_to_the_31_elements_apart():
    case = BY_NAME["query-offset-beyond-31-bits"]
    query = build(case)[0].query
    assert (query.shape[0] - 1) * query.stride(0) >= 2**31


def test_every_fill_has_a_case():
    assert {case.fill for case in EDGES if case.fill} == {*FILLS.values(), *SEEN.values()}
