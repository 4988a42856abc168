"""What a right kernel may be off by: P relative to a bound, lanes that saturate, a sum of 16 bits."""

import math
from dataclasses import replace

import pytest
import torch

from common.cases.batch import make_batch
from common.cases.case import build, named, outputs
from common.cases.fills import FILLS
from common.mutants.emulation import Schedule, emulate
from common.mutants.right import RIGHT, Rounded
from common.oracle.integrity import Guards
from common.oracle.reference import reference
from common.oracle.rows import carried
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features, PagedBatch
from common.spec.paged_batch import E4M3
from common.spec.precision import Precision

B = torch.bfloat16
NAMED = {right.name: right for right in RIGHT}


@pytest.mark.parametrize(("name", "steps"), [("whole maxima", 0.9), ("a bound in place of the maximum", 0.6)])
def test_a_key_that_is_lost_where_p_is_relative_to_a_bound_is_no_mistake(name, steps):
    """P of the second key is under one step of fp16's subnormals, and under half of one relative to the bound."""
    batch = make_batch([(1, 2)], AttentionShape(1, 1, 16, 16, torch.float16))
    page = batch.block_table[0, 0]
    logits = torch.tensor([0.02, 0.02 + math.log(steps * 2.0**-24)]) / batch.softmax_scale
    for tensor in (batch.query, batch.key_cache, batch.value_cache):
        tensor.zero_()
    batch.query[..., 0] = 1.0
    batch.key_cache[page, :2, 0, 0] = logits.half()
    batch.value_cache[page, 1] = 1000.0
    out, expected = torch.empty_like(batch.query), reference(batch, Features())
    NAMED[name].launch(batch, Features(), out, None)
    assert not out.any() and expected.out.all()
    found = check(out, None, batch, Features(), Precision(), expected, structured=True)
    assert found.ok and found.worst_case > 0.5, found.reason
    assert not check(out - 6e-5, None, batch, Features(), Precision(), expected, structured=True).ok


def saturated(fill: float) -> tuple[PagedBatch, Features]:
    """(batch, features) of 4 keys: lane 0 of V cancels, the others do not and are cut to the range of `out`."""
    batch = make_batch([(1, 4)], AttentionShape(1, 1, 32, 16, B))
    page = batch.block_table[0, 0]
    batch.value_cache.fill_(fill)
    p = torch.softmax(batch.key_cache[page, :4, 0].double() @ batch.query[0, 0].double() * batch.softmax_scale, 0)
    batch.value_cache[page, :3, 0, 0] = 0.01
    batch.value_cache[page, 3, 0, 0] = float(-0.01 * p[:3].sum() / p[3])
    return batch, Features(out_scale=torch.tensor([2.0**-14]))


@pytest.mark.parametrize("probabilities", [*E4M3, B], ids=str)
def test_lanes_that_cancel_beside_some_that_saturate_are_judged_by_themselves(probabilities):
    batch, features = saturated(100.0)
    contract, expected = Precision(probabilities), reference(batch, features)
    out = torch.empty(batch.query.shape, dtype=E4M3[1])
    emulate(batch, features, out, Schedule(64, 1, probabilities), edits=Rounded(contract))
    found = check(out, None, batch, features, contract, expected)
    assert found.ok, found.reason
    off = abs(float(out[0, 0, 0].float()) / float(expected.out[0, 0, 0]) - 1.0)
    assert off > 0.15


def test_a_running_sum_takes_as_many_keys_as_it_carries():
    right, most = NAMED["running sums in bfloat16"], carried(B)
    assert most == 4032 and carried(torch.float16) == 32_704
    assert f"{most:,} keys" in Precision.__doc__
    shape = AttentionShape(1, 1, 16, 64, B)
    for keys in (most, most + 1):
        assert right.takes(make_batch([(1, 5), (1, keys)], shape), Features()) == (keys == most)
    assert NAMED["dense in float32"].takes(make_batch([(1, most + 1)], shape), Features())


@pytest.mark.parametrize(("keys", "ok"), [(4032, True), (64 * 600, False)])
def test_what_a_running_sum_carries_is_right_and_what_it_cannot_is_wrong(keys, ok):
    """Equal keys: each tile is the same, and from some on is lost."""
    batch = make_batch([(1, keys)], AttentionShape(1, 1, 16, 64, B))
    batch.query.zero_()
    batch = replace(batch, value_cache=batch.value_cache.abs())
    out, right = torch.empty_like(batch.query), NAMED["running sums in bfloat16"]
    right.launch(batch, Features(), out, None)
    found = check(out, None, batch, Features(), right.contract, reference(batch, Features()), structured=True)
    assert found.ok == ok, found.reason


SUMMED = [NAMED[name] for name in ("tiles of 16 keys", "one tile of all keys", "whole maxima", "dense in float32")]


@pytest.mark.parametrize("dtype", [torch.float32, B], ids=str)
@pytest.mark.parametrize("fill", ["logits-equal", "tail-mass"])
def test_equal_terms_of_a_long_sum_are_rounded_one_way(fill, dtype):
    """In float32, with V of one number: the more keys, the more. A tile that is lost is more than that."""
    case = named("equal", lens=((1, 20_000),), heads=(2, 1), head_size=16, block_size=64, dtype=dtype, fill=FILLS[fill])
    batch, features = build(case)
    batch.value_cache.fill_(0.7)
    expected, worst = reference(batch, features), 0.0
    for right in SUMMED:
        out, lse = outputs(case, batch, Guards())
        right.launch(batch, features, out, lse)
        found = check(out, lse, batch, features, right.contract, expected, structured=True)
        assert found.ok, (right.name, found.reason)
        worst = max(worst, found.worst)
        assert not check(out, lse - 64 / 20_000, batch, features, right.contract, expected, structured=True).ok
    assert worst > 0.05
