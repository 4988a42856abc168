"""Wrong kernels that a level once let pass: strides of what masks and of new K, spans by their address, outputs found
again by all but one number, one form of scales for both, the prefix of two rows taken for all's, small P, a million
keys; and a member that none was asked for."""

from dataclasses import replace

import pytest
import torch

from common.cases.case import build
from common.kit import levels
from common.kit.inside import Asked
from common.kit.levels import read
from common.mutants.emulation import Edits, Schedule, emulate
from common.oracle.integrity import inputs_of
from common.spec.kernel import MEMBERS
from common.spec.metadata import lens_of

SPANS, TREE = (levels.BY_NAME[name] for name in ("spans-apart", "tree-larger-than-the-query"))


def dense(tensor):
    """What a kernel reads that takes rows to be one behind the other."""
    return torch.as_strided(tensor, tensor.shape, torch.empty(tensor.shape, device="meta").stride())


def kernel(name, change):
    """The emulation under a changed tensor of its features."""

    def launch(batch, features, out, lse):
        changed = {name: change(getattr(features, name))}
        emulate(batch, replace(features, **changed), out, lse=lse)

    return launch


def kept():
    """What was there when the address was first met."""
    found = {}
    return lambda tensor: found.setdefault(tensor.data_ptr(), tensor.clone())


@pytest.mark.parametrize(("case", "name"), [(SPANS, "spans"), (TREE, "tree_bias")], ids=lambda one: str(one)[:20])
def test_strides_and_values_by_address_are_found(case, name):
    assert case.name in levels.SMOKE
    assert Asked.of(case).why_not(kernel(name, lambda tensor: tensor)) == ""
    assert "call 1" in Asked.of(case).why_not(kernel(name, dense))
    assert "call 3, other operands" in Asked.of(case).why_not(kernel(name, kept()))


def from_new(batch):
    """The batch with pages of what `key` holds where its rows are taken to be one behind the other."""
    key, cache, starts = dense(batch.key), batch.key_cache.clone(), batch.query_start_loc.tolist()
    for seq, (query_len, seq_len) in enumerate(lens_of(batch.query_start_loc, batch.seq_lens)):
        for back in range(1, min(query_len, seq_len) + 1):
            page, slot = divmod(seq_len - back, cache.shape[1])
            cache[batch.block_table[seq, page].long(), slot] = key[starts[seq + 1] - back]
    return batch.replace(key_cache=cache)


def test_strides_of_new_keys_are_found():
    """Where they are parts of a fused projection, and wherever K's cache has strides of its own."""
    asked = Asked.of(levels.BY_NAME["query-in-fused-qkv"])
    assert asked.case.name in levels.SMOKE
    assert asked.why_not(emulated) == ""
    assert "call 1" in asked.why_not(lambda batch, *more: emulated(from_new(batch), *more))
    styled, _ = build(levels.BY_NAME["new-kv-mixed"].but(key_style="sparse", value_style="odd"))
    assert not styled.key.is_contiguous() and styled.value.is_contiguous()


def emulated(batch, features, out, lse):
    emulate(batch, features, out, lse=lse)


def by_keys_form(features):
    """V's scales read as if they had the form of K's."""
    whole = features.key_scale is not None and features.key_scale.numel() == 1
    return replace(features, value_scale=features.value_scale[:1]) if whole else features


def by_values_form(features):
    """K's scales read as if they had the form of V's."""
    scale = features.key_scale
    whole = scale is not None and scale.dim() > features.value_scale.dim()
    return replace(features, key_scale=scale[0, 0].nan_to_num(1.0)) if whole else features


@pytest.mark.parametrize(("case", "read_as"), [("codes-e4m3", by_keys_form), ("codes-e5m2", by_values_form)])
def test_scales_of_two_forms_are_asked(case, read_as):
    asked = Asked.of(levels.BY_NAME[case])
    assert case in levels.SMOKE and asked.why_not(emulated) == ""
    assert "call 1" in asked.why_not(lambda batch, features, *more: emulated(batch, read_as(features), *more))


def kept_but_for_the_soft_cap():
    """An earlier output, found again by everything but the soft cap."""
    found = {}

    def launch(batch, features, out, lse):
        numbers = (batch.softmax_scale, features.causal, features.sliding_window, features.chunk)
        inputs = {name: tensor.float().nan_to_num(9.0).flatten() for name, tensor in inputs_of(batch, features).items()}
        key = (numbers, *((name, tuple(values.tolist())) for name, values in inputs.items()))
        if key not in found:
            emulate(batch, features, out, lse=lse)
            found[key] = out.clone(), lse.clone()
        out.copy_(found[key][0])
        lse.copy_(found[key][1])

    return launch


def test_a_number_that_an_earlier_output_was_not_found_by_is_asked():
    case = levels.BY_NAME["softcap-15"]
    assert case.name in levels.SMOKE
    assert "call 3, other numbers" in Asked.of(case.but(change="numbers")).why_not(kept_but_for_the_soft_cap())


@pytest.mark.parametrize("row", [1, -1])
def test_a_prefix_of_some_sequences_is_asked(row):
    """Pages that the first row has in common with another are taken for every row's."""
    asked = Asked.of(levels.BY_NAME["pages-shared"])

    def launch(batch, *more):
        table, page = batch.block_table.clone(), batch.key_cache.shape[1]
        common = int((table[0] == table[row])[: int(batch.seq_lens.min()) // page].int().cumprod(0).sum())
        contexts = (batch.seq_lens - batch.query_start_loc.diff()) // page
        for seq, whole in enumerate(contexts.tolist()):
            table[seq, : min(common, whole)] = table[0, : min(common, whole)]
        emulated(batch.replace(block_table=table), *more)

    assert asked.case.name in levels.SMOKE and asked.why_not(emulated) == ""
    assert "call 1" in asked.why_not(launch)


def test_smoke_asks_every_member_of_supports():
    asked = set().union(*(read(name).asked for name in levels.level("smoke")))
    assert asked == MEMBERS - {"full_graph", "lse"}


class Skips(Edits):
    """P that are small beside the largest so far."""

    def exp2(self, at, x):
        return torch.where(x < -16.0, 0.0, torch.exp2(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_small_p_that_have_a_fifth_of_the_mass_are_asked(dtype):
    asked = Asked.of(levels.LONG_TAIL.but(dtype=dtype))
    assert levels.LONG_TAIL.name in levels.SMOKE

    def launch(edits):
        return lambda *given: emulate(*given[:3], Schedule(256, 2), edits=edits)

    assert asked.why_not(launch(Edits())) == ""
    assert "worst rounding" in asked.why_not(launch(Skips()))


class Begins(Edits):
    """A maximum that begins at a number."""

    def maximum(self, at, m):
        return m.clamp(min=-1e6)

    def lse(self, at, lse):
        return torch.zeros_like(lse)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_logits_below_where_a_maximum_begins_are_asked(dtype):
    """Zeros were within what logits of this size may be off by: what V allow is less."""
    asked = Asked.of(levels.BY_NAME["values-logits-far-below"].but(dtype=dtype, lse=None))
    assert asked.case.name in levels.SMOKE
    assert asked.why_not(lambda *given: emulate(*given[:3])) == ""
    assert "found 0, expected" in asked.why_not(lambda *given: emulate(*given[:3], edits=Begins()))


@pytest.mark.slow
def test_the_last_keys_of_a_million_are_asked():
    def launch(batch, features, out, lse):
        shorter = torch.where(batch.seq_lens > 2**17, batch.seq_lens - 64, batch.seq_lens)
        emulate(batch.replace(seq_lens=shorter), features, out, Schedule(4096, 4), lse=lse)

    assert "call" in Asked.of(levels.LONGEST).why_not(launch)
