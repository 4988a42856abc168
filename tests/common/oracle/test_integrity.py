"""What a kernel must leave alone is seen to have changed, however little of it changed."""

import math

import pytest
import torch

from common.cases.batch import make_batch
from common.oracle.integrity import Guards, Snapshot, bits, damage, fingerprint, padding_written, same_bits, words
from common.spec import AttentionShape, Features

SHAPE = AttentionShape(4, 2, 16, 8)
NAMES = ["query", "key_cache", "value_cache", "block_table", "query_start_loc", "seq_lens", "key", "value"]


def test_nothing_changed():
    features = Features(sinks=torch.zeros(4))
    batch = make_batch([(1, 20), (3, 9)], SHAPE, style="interleaved")
    assert Snapshot.of(batch, features).changed(batch, features) == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("style", ["nhd", "interleaved"])
def test_one_changed_element_is_named(name, style):
    batch = make_batch([(1, 20), (3, 9)], SHAPE, style=style, new_kv=True)
    before = Snapshot.of(batch, Features())
    tensor = getattr(batch, name)
    tensor[(-1,) * tensor.dim()] += 1
    tensor[(-1,) * tensor.dim()].nan_to_num_(5.0) if tensor.is_floating_point() else None
    assert before.changed(batch, Features()) == [name]


def test_exchanged_elements_change_the_fingerprint():
    tensor = torch.randn(64, generator=torch.Generator().manual_seed(0))
    assert int(fingerprint(tensor)) != int(fingerprint(tensor.flip(0)))
    assert int(fingerprint(tensor)) == int(fingerprint(tensor.clone()))


@pytest.mark.parametrize("lanes", [3, 8], ids=["elements", "words"])
def test_fingerprint_does_not_depend_on_chunks(monkeypatch, lanes):
    tensor = torch.randn(7, 5, lanes, generator=torch.Generator().manual_seed(0)).bfloat16()
    whole = int(fingerprint(tensor))
    monkeypatch.setattr("common.oracle.integrity.CHUNK_ELEMENTS", 16)
    assert int(fingerprint(tensor)) == whole


def test_words_are_as_wide_as_the_layout_allows():
    tensor = torch.randn(6, 10, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert words(tensor).dtype is torch.int64 and words(tensor[:, 1:, 2:6]).dtype is torch.int32
    assert {words(view).dtype for view in (tensor[..., ::2], tensor.transpose(1, 2), tensor[..., 1:])} == {torch.int16}
    assert words(tensor).flatten().view(torch.int16).equal(bits(tensor).flatten())


def test_zeros_of_different_sign_differ_and_nans_agree():
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bits(torch.tensor([math.nan]), torch.tensor([math.nan]))


@pytest.mark.parametrize("poison", [math.nan, 7.0])
def test_written_padding_is_seen(poison):
    out = torch.full((5, 2, 8), poison)
    assert not padding_written(out, 3, poison)
    out[4, 1, 7] = 0.0
    assert padding_written(out, 3, poison)


def test_damage_says_each_thing():
    guards = Guards()
    batch = make_batch([(1, 20), (3, 9)], SHAPE, pad_tokens=2, guards=guards)
    out = guards.full("out", tuple(batch.query.shape), batch.query.dtype, math.nan)
    before = Snapshot.of(batch, Features())
    assert damage(before, batch, Features(), {"out": out}, math.nan, guards) == []
    batch.seq_lens[0] += 1
    out[-1] = 0
    out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(0)
    said = damage(before, batch, Features(), {"out": out}, math.nan, guards)
    assert said == ["changed its input seq_lens", "wrote rows of out past query_start_loc[-1] = 4", "wrote outside out"]
