"""Two calls that ask for different things have different signatures: none is launched as the other was."""

import weakref
from dataclasses import replace

import pytest
import torch

import common.serving.signatures
from common.serving.arguments import asked_of_call, new_out, signature, told
from common.serving.signatures import likeness
from common.spec import Features, SpecError
from common.spec.features import OPERANDS

PLAIN = Features()
NUMBERS = {
    "causal": False, "sliding_window": 3, "softcap": 2.0, "alibi_sqrt": True, "chunk": 4, "chunk_lookback": 1,
    "cross": True, "batch_invariant": True,
}  # fmt: skip
CHANGES = NUMBERS | {name: torch.ones(2) for name in OPERANDS}


def test_every_field_is_among_the_changes():
    assert set(CHANGES) == set(Features.__dataclass_fields__)


def test_no_two_features_have_one_signature():
    asked = [asked_of_call(replace(PLAIN, **{name: value}))[0] for name, value in CHANGES.items()]
    assert len({*asked, asked_of_call(PLAIN)[0]}) == len(CHANGES) + 1


def test_other_tensors_of_one_feature_have_one_signature_and_come_in_order():
    features = Features(**{name: torch.full((2,), float(i)) for i, name in enumerate(OPERANDS)})
    again = Features(**{name: torch.zeros(2) for name in OPERANDS})
    assert asked_of_call(features)[0] == asked_of_call(again)[0]
    assert [int(tensor[0]) for tensor in asked_of_call(features)[1]] == sorted(range(len(OPERANDS)))


def test_a_signature_does_not_change_with_use():
    features = Features(sinks=torch.ones(2))
    before = asked_of_call(features)[0]
    features.names()
    assert asked_of_call(features)[0] == before


def test_an_output_is_made_where_its_dtype_is_known():
    query, caches = torch.zeros(3, 4, 16), [torch.zeros(2, 8, 2, size) for size in (16, 24)]
    assert new_out(query, *caches, None).shape == (3, 4, 24)
    assert new_out(query, torch.zeros(2, 2, 4, 8, 4), torch.zeros(2, 2, 40, 8), PLAIN).shape == (3, 4, 40)
    for q, features in ((query, Features(out_scale=torch.ones(1))), (query.to(torch.float8_e4m3fn), None)):
        with pytest.raises(SpecError, match="out: found None"):
            new_out(q, *caches, features)


SAME = torch.zeros(256).as_strided((4, 8, 2), (16, 2, 1))
OTHER = {
    "shape": SAME[:3], "inner-shape": SAME[:, :4], "rank": SAME[None], "size-of-an-element": SAME.half(),
    "dtype": SAME.int(), "outer-stride": SAME.as_strided(SAME.shape, (32, 2, 1)),
    "inner-stride": SAME.as_strided(SAME.shape, (16, 4, 1)), "order": SAME.as_strided(SAME.shape, (2, 8, 1)),
    "gradient": SAME.clone().requires_grad_(), "negative": torch._neg_view(SAME),
}  # fmt: skip


@pytest.mark.parametrize("change", OTHER)
def test_what_a_signature_tells_apart_is_unlike(change):
    """The comparison in C misses nothing that a signature holds, whichever tensor it is."""
    given = [torch.zeros(3), SAME, torch.zeros(2, 2, dtype=torch.int32)]
    alike = likeness(given)
    same = [torch.ones(3), SAME.as_strided(SAME.shape, SAME.stride(), 16), torch.ones(2, 2, dtype=torch.int32)]
    assert alike(*same) and signature(given, [], ()) == signature(same, [], ())
    changed = [same[0], OTHER[change], same[2]]
    assert not alike(*changed) and signature(given, [], ()) != signature(changed, [], ())


def test_another_device_is_unlike():
    meta = SAME.to("meta")
    assert not likeness([SAME])(meta) and signature([SAME], [16], ()) != signature([meta], [16], ())


def test_a_tensor_without_memory_has_another_signature():
    assert signature([SAME], [16], ()) != signature([SAME], [0], ())


LIKE = {"true-for-1": (True, 1), "float-for-4": (4, 4.0), "none-for-0": (None, 0)}


@pytest.mark.parametrize("pair", LIKE)
def test_a_number_is_told_from_one_that_is_equal_to_it(pair):
    one, other = LIKE[pair]
    for name in ("sliding_window", "chunk"):
        assert asked_of_call(Features(**{name: one}))[0] != asked_of_call(Features(**{name: other}))[0]
    for at in range(3):
        numbers = [[None, None, None] for _ in range(2)]
        numbers[0][at], numbers[1][at] = one, other
        first, second = (told((1, 8, 1, None, None), *three, SAME) for three in numbers)
        assert first != second


def test_whether_gradients_are_recorded_is_part_of_a_signature():
    def now():
        return told((1, 8, 1, None, None), 0.5, True, None, SAME)

    recorded = now()
    with torch.no_grad():
        assert now() != recorded


def test_a_comparison_that_misses_a_difference_is_not_used(monkeypatch):
    class Blind:
        def __init__(self, *tensors, **settings):
            self.check = lambda *others: True

    monkeypatch.setattr(common.serving.signatures, "TensorGuards", Blind)
    common.serving.signatures._exact.cache_clear()
    try:
        assert not likeness([SAME])(SAME)
        monkeypatch.setattr(common.serving.signatures, "TensorGuards", None)
        common.serving.signatures._exact.cache_clear()
        assert not likeness([SAME])(SAME)
    finally:
        common.serving.signatures._exact.cache_clear()


def test_a_likeness_keeps_no_tensor_alive():
    tensor = torch.zeros(3)
    alike, alive = likeness([tensor]), weakref.ref(tensor)
    del tensor
    assert alive() is None and alike(torch.zeros(3))
