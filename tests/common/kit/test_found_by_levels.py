"""Wrong kernels that a level once let pass: strides of what masks and of new K, spans by their address, outputs found
again by all but one number, one form of scales for both, the prefix of two rows taken for all's, small P, a million
keys, sizes that were asked apart alone, x-packed pages of one dtype, a plan kept from a shorter call; and a member that
none was asked for."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from common.cases.case import build
from common.kit import levels
from common.kit.fitting import fitted
from common.kit.inside import Asked
from common.kit.levels import read
from common.mutants.emulation import Edits, Schedule, emulate
from common.mutants.families import wrong_where
from common.mutants.operators import load
from common.oracle.integrity import inputs_of
from common.spec import Layout
from common.spec.kernel import MEMBERS
from common.spec.metadata import lens_of

SPANS, TREE = (levels.BY_NAME[name] for name in ("spans-apart", "tree-larger-than-the-query"))

SUPPORTS = MEMBERS - {"full_graph", "x_packed"}  # of the emulation


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


LONG = "at.context_len >= 1024"
TOGETHER = {  # where a wrong kernel lived: each size was asked, but not beside the other
    "chunks over long keys": f"at.query_len >= 128 and {LONG}",
    "chunks behind windows": f"at.query_len >= 128 and {LONG} and (at.features.sliding_window or 0) >= 1000",
    "V of 128 lanes, K of 192": "(SIZE, LANES) == (192, 128)",
    "V of 128 lanes, K of 192, prompts": "(SIZE, LANES) == (192, 128) and at.query_len >= 128",
    "groups of 4 over long keys": f"RATIO == 4 and {LONG}",
    "groups of 8 over long keys": f"RATIO == 8 and {LONG}",
    "groups of 16 over long keys": f"RATIO == 16 and {LONG}",
    "groups of 8 in e4m3": "RATIO == 8 and at.batch.key_cache.dtype == torch.float8_e4m3fn",
    "groups of 4 or 8 beside new K": "RATIO in (4, 8) and at.batch.key is not None",
    "heads of 256 over long keys": f"SIZE == 256 and {LONG}",
    "prompts of heads of 128": "SIZE == 128 and at.query_len >= 128",
    "prompts in pages of 128": "at.batch.shape.block_size == 128 and at.query_len >= 64",
    "prompts behind a context": "at.query_len >= 512 and at.context_len >= 128 and at.batch.shape.num_kv_heads > 1",
    "KV heads over long keys": f"at.batch.shape.num_kv_heads >= 8 and {LONG}",
    "pages of 256 over long keys": f"at.batch.shape.block_size == 256 and {LONG}",
}
WORDS = {"SIZE": "head_size", "LANES": "value_lanes", "RATIO": "queries_per_kv"}
LESS, HEADS = 0, 4  # of FAULTS: a key less, a KV head by modulo


@cache
def made():
    """The cases of the axes at smoke as the emulation is asked them, smaller first, and what their sequences are."""
    cases = (fitted(read(name), SUPPORTS, {}) for name in levels.level("smoke") if name.startswith("axes-"))
    return [(case, placed(case)) for case in sorted(cases, key=levels.size)]


def placed(case):
    """As `families.places`, without a batch's values."""
    words = ("stats", "key", "key_cache", "shape")
    dtype, key = torch.empty(0, dtype=case.shape.cache_dtype), torch.empty(0) if case.new_kv else None
    batch = SimpleNamespace(**dict(zip(words, (None, key, dtype, case.shape), strict=True)))
    return [SimpleNamespace(batch=batch, features=case.ask, query_len=q, context_len=n - q) for q, n in case.lens if q]


@pytest.mark.parametrize("fault", [LESS, HEADS])
@pytest.mark.parametrize("where", TOGETHER)
def test_sizes_that_models_have_together_are_asked(where, fault):
    limit = TOGETHER[where]
    for word, name in WORDS.items():
        limit = limit.replace(word, f"at.batch.shape.{name}")
    wrong, code = load(wrong_where(limit, fault).source), compile(limit, "limit", "eval")
    met = [case for case, places in made() if any(eval(code, {"at": at, "torch": torch}) for at in places)]
    first, *others = map(Asked.of, met[:8])
    assert first.why_not(emulated) == ""
    assert any(one.why_not(lambda *given: wrong.emulate(*given[:3], lse=given[3])) for one in (first, *others))


def unpacked(batch, x=None):
    """A batch of x-packed pages in the other layout; x: elements beside each other in a lane of K, as a wrong kernel
    takes them."""
    key, value = batch.by_token()
    if x is not None:
        blocks, heads, _, page, _ = batch.key_cache.shape
        key = batch.key_cache.contiguous().view(blocks, heads, -1, page, x).permute(0, 3, 1, 2, 4)
    return batch.replace(layout=Layout.PAGED, key_cache=key.flatten(3), value_cache=value.contiguous())


def test_x_packed_pages_are_asked_in_each_dtype_and_over_many_keys():
    """Two cases had them, of 16 and 32 bits, and of fewer than 128 keys."""
    packed = [case for name in levels.level("smoke") if (case := read(name)).layout is Layout.X_PACKED]
    assert {case.shape.cache_dtype.itemsize for case in packed} == {1, 2, 4}
    assert {case.ask.scales for case in packed} >= {None, "one", "heads", "tokens"}
    assert max(keys for case in packed for _, keys in case.lens) > 4096
    for case in packed:
        asked, narrow = Asked.of(case), case.shape.cache_dtype.itemsize == 1
        assert asked.why_not(lambda batch, *more: emulated(unpacked(batch), *more)) == "", case.name
        wrong = asked.why_not(lambda batch, *more: emulated(unpacked(batch, 8), *more)) if narrow else "call 1"
        assert "call 1" in wrong
        assert fitted(case, SUPPORTS, {}).layout is Layout.PAGED or not levels.is_made(case)


def planned():
    """Goes through no more keys than the longest sequence had when the lengths were first met at their address."""
    plans = {}

    def launch(batch, *more):
        most = plans.setdefault((batch.seq_lens.data_ptr(), batch.num_seqs), int(batch.seq_lens.max()))
        cut = type("Cut", (Edits,), {"visible": lambda self, at, query, key, seen: seen & (key < most)})
        emulate(batch, *more[:2], lse=more[2], edits=cut())

    return launch


def test_lengths_that_outgrow_a_plan_are_asked():
    cases = [case for name in levels.level("smoke") if not (case := read(name)).brief and case.change == "lengths"]
    growing = [case for case in cases if (sum(query for query, _ in case.lens) + case.pad_tokens) % 2]
    assert len(growing) > 3
    found = [Asked.of(fitted(case, SUPPORTS, {})).why_not(planned()) for case in growing[:4]]
    assert any("call 3, other lengths" in why for why in found)


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
