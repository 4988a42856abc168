"""The calls of a case: what changes between them changes alone, in place, and is put back."""

import pytest
import torch

from common.cases.calls import CHANGES, calls, change_of
from common.cases.case import build, named
from common.cases.fills import FILLS
from common.oracle.integrity import Guards, inputs_of, same_bits
from common.oracle.reference import reference
from common.spec.validation import validate

WRITTEN = {  # by a change that is not of numbers
    "key": {"key_cache"}, "value": {"value_cache"}, "query": {"query"}, "table": {"block_table"},
    "lengths": {"seq_lens"}, "starts": {"query_start_loc"}, "operands": {"sinks", "alibi_slopes"}, "numbers": set(),
}  # fmt: skip


def case_of(change, softcap=5.0, **options):
    asked = {"sinks": "near", "alibi": "linear", "softcap": softcap}
    return named("calls", lens=((1, 45), (5, 20)), change=change, **asked, **options)


def numbers_of(batch, features):
    return {"scale": batch.softmax_scale} | {name: getattr(features, name) for name in ("softcap", "sliding_window")}


def bits(batch, features):
    return {name: tensor.clone() for name, tensor in inputs_of(batch, features).items()}


@pytest.mark.parametrize("change", CHANGES)
def test_one_thing_alone_is_another_and_the_result_with_it(change):
    case, guards = case_of(change), Guards()
    batch, features = build(case, guards=guards)
    seen = []
    for call in calls(case, batch, features):
        validate(call.batch, call.features)
        given = (call.batch, call.features)
        seen.append((bits(*given), numbers_of(*given), reference(*given)))
    first, second, third, last = seen
    assert {name for name in first[0] if not same_bits(first[0][name], third[0][name])} == WRITTEN[change]
    others = {name for name in first[0] if not same_bits(first[0][name], second[0][name])}
    assert others == {"query", "key_cache", "value_cache"}
    assert all(same_bits(first[0][name], last[0][name]) for name in first[0])
    assert first[1] | ({"softcap": 7.5} if change == "numbers" else {}) == third[1]
    assert not torch.equal(first[2].out, third[2].out) and torch.equal(first[2].out, last[2].out)
    assert guards.violated() == []


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("window", [None, 19])
def test_one_number_alone_is_another_each_in_its_turn(softcap, window):
    """All at once, a kernel that kept what it made by all numbers but one was right."""
    changed = set()
    for pad in (0, 1):
        case = case_of("numbers", softcap, sliding_window=window, pad_tokens=pad)
        first, _, third, _ = (numbers_of(call.batch, call.features) for call in calls(case, *build(case)))
        (name,) = (name for name in first if first[name] != third[name])
        changed.add(name)
    on = {name for name, number in (("softcap", softcap), ("sliding_window", window)) if number}
    assert changed == (on or {"scale"})


def test_a_change_that_a_case_cannot_have_is_the_next_one():
    case = case_of("table", spare_pages=0)
    batch, features = build(case)
    assert change_of(case, batch, features) == "lengths"
    filled = case_of("lengths", fill=FILLS["unseen-nan"], new_kv=True)
    assert change_of(filled, *build(filled)) == "operands"


@pytest.mark.parametrize("pad", [0, 1])
def test_lengths_shrink_or_grow(pad):
    """They only shrank: scratch of the first call's length was enough for all calls."""
    case = case_of("lengths", pad_tokens=pad)
    batch, features = build(case)
    for _ in range(2):  # the calls of a batch may be asked for twice
        first, second, third, last = (call.batch.seq_lens.tolist() for call in calls(case, batch, features))
        assert first == second == last and sorted((first, third)) == [[30, 15], [45, 20]]
        assert (third > first) == bool(pad)


def test_without_a_wish_the_name_decides():
    found = {change_of(case, *build(case)) for case in (named(f"case-{n}", sinks="near") for n in range(40))}
    assert found == set(CHANGES)
