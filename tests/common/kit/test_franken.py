"""Bugs that no tidy batch shows die at smoke, each by a case of the axes; the same kernel without them passes."""

from functools import cache

import pytest
import torch

from common.kit.fitting import fitted
from common.kit.inside import Asked
from common.kit.levels import level, read, size
from common.mutants.emulation import Edits, Schedule, emulate

SUPPORTS = {"causal", "sliding_window", "softcap", "sinks", "alibi", "fp8_query", "lse"}


class Kept(Edits):
    """K, or the block table, as it was when it was first met at its address."""

    def __init__(self, what):
        self.what, self.met = what, {}

    def first(self, tensor):
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        return self.met.setdefault(place, tensor.clone())

    def cache(self, at, kind, cache):
        return self.first(cache) if kind == self.what else cache

    def pages(self, at, kind, index, pages):
        return self.first(at.batch.block_table)[at.seq].long()[index] if self.what == "table" else pages


def edit(method, change):
    """One method changed: change(at, what it was given last, the rest of it)."""
    return type("Bug", (Edits,), {method: lambda self, at, *given: change(at, given[-1], *given[:-1])})


def ratio_8(at, heads):
    ratio = at.batch.shape.queries_per_kv
    return heads if not 9 <= ratio <= 11 else (torch.arange(len(heads)) // 8).clamp(max=at.batch.shape.num_kv_heads - 1)


def own_strides(at, cache, kind):
    key = at.batch.key_cache
    if kind == "key" or cache.shape != key.shape:
        return cache
    last = sum((n - 1) * s for n, s in zip(key.shape, key.stride(), strict=True))
    inside = cache.storage_offset() + last < cache.untyped_storage().nbytes() // cache.itemsize
    return cache.as_strided(key.shape, key.stride(), cache.storage_offset()) if inside else cache


def capped_by(cap, logits):
    return logits if cap is None else cap * torch.tanh(logits / cap)


def cap_before(at, cap, logits):
    factor = 1.0 if at.features.query_scale is None else at.features.query_scale
    return capped_by(cap, logits / factor) * factor


BUGS = {
    "scale_of_the_head_size": edit("scale", lambda at, _: at.batch.shape.head_size**-0.5),  # softmax_scale is not read
    "value_in_strides_of_key": edit("cache", own_strides),  # where K and V are of one size
    "whole_softcap": edit("score", lambda at, cap, x: capped_by(cap and max(1.0, float(round(cap))), x)),
    "slopes_of_the_paper": edit("slopes", lambda at, own: 2.0 ** (-8.0 * torch.arange(1, len(own) + 1) / len(own))),
    "window_ends_at_4096": edit("visible", lambda at, seen, q, k: seen & (k > q - 4096)),
    "keys_end_at_8192": edit("visible", lambda at, seen, q, k: seen & (k < 8192)),
    "rows_end_at_256": edit("visible", lambda at, seen, q, k: seen & (q < at.context_len + 256)),  # of one sequence
    "sequences_end_at_256": edit("visible", lambda at, seen, q, k: seen & (at.seq < 256)),
    "heads_end_at_64": edit("kv_heads", lambda at, heads: heads.masked_fill(torch.arange(len(heads)) >= 64, 0)),
    "ratio_10_is_8": edit("kv_heads", ratio_8),  # from 9 to 11
    "keys_kept_by_address": lambda: Kept("key"),
    "table_kept_by_address": lambda: Kept("table"),
    "cap_before_the_query_scale": edit("score", cap_before),
}
# Which cases of the smoke level a bug shows in, by what they ask.
WHERE = {
    "scale_of_the_head_size": lambda case: case.softmax_scale == 0.5,
    "value_in_strides_of_key": lambda case: apart(case) and longest(case) > 0,
    "whole_softcap": lambda case: capped(case),
    "slopes_of_the_paper": lambda case: case.ask.alibi == "drawn",
    "window_ends_at_4096": lambda case: (case.ask.sliding_window or 0) > 4096,
    "keys_end_at_8192": lambda case: longest(case) > 8192,
    "rows_end_at_256": lambda case: max(query for query, _ in case.lens) > 256,
    "sequences_end_at_256": lambda case: len(case.lens) > 256,
    "heads_end_at_64": lambda case: case.heads[0] > 64 and case.heads[1] > 1,
    "ratio_10_is_8": lambda case: case.heads[0] // case.heads[1] in (9, 10, 11) and case.heads[1] > 1,
    "keys_kept_by_address": lambda case: case.change == "key" and not case.brief,
    "table_kept_by_address": lambda case: case.change == "table" and not case.brief,
    "cap_before_the_query_scale": lambda case: case.fp8_query and capped(case),
}


def longest(case):
    return max((keys for query, keys in case.lens if query), default=0)


def apart(case):
    return case.value_style and case.key_style != case.value_style


def capped(case):
    """Whether there are logits, and they come so near to the cap that it changes them."""
    return case.ask.softcap == 0.77 and longest(case) > 0 and (case.softmax_scale or 1.0) > 0.003


@cache
def smoke():
    """The cases of the smoke level that are no named ones, as this kernel is asked them; the smaller ones first."""
    made = [fitted(read(name), SUPPORTS, {}) for name in level("smoke") if name.startswith("axes-")]
    return sorted(made, key=size)


def small():
    """The smaller half of them, which takes a tenth of the time."""
    return smoke()[: len(smoke()) // 2]


def launcher(edits):
    return lambda batch, f, out, lse: emulate(batch, f, out, Schedule(512), lse=lse, edits=edits)


def why_not(case, bug=Edits):
    return Asked.of(case).why_not(launcher(bug()))


@pytest.mark.parametrize("bug", BUGS)
def test_each_bug_dies_at_smoke(bug):
    first, *others = [case for case in smoke() if WHERE[bug](case)][:4]
    asked = Asked.of(first)
    assert not asked.why_not(launcher(Edits()))
    assert asked.why_not(launcher(BUGS[bug]())) or any(why_not(case, BUGS[bug]) for case in others)


def test_the_same_kernel_without_bugs_passes():
    for case in small()[::12]:
        assert why_not(case) == "", case.name
