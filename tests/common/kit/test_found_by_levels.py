"""Wrong kernels that a level once let pass: strides of what masks, spans by their address, small P, a million keys."""

from dataclasses import replace

import pytest
import torch

from common.kit import levels
from common.kit.inside import Asked
from common.mutants.emulation import Edits, Schedule, emulate

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
