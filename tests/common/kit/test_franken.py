"""Bugs that no tidy batch shows die at smoke, each by a case of the axes; the same kernel without them passes."""

from functools import cache

import pytest
from kit_franken import BUGS, SUPPORTS, Franken

from calls import tensors
from common.kit.fitting import fitted
from common.kit.inside import Asked
from common.kit.kit import Kit
from common.kit.levels import level, read, size

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


def launcher(*bugs):
    kernel = Franken(*bugs)

    def launch(batch, f, out, lse):
        options = {"sliding_window": f.sliding_window, "softcap": f.softcap, "sinks": f.sinks}
        options |= {"alibi_slopes": f.alibi_slopes, "query_scale": f.query_scale}
        options |= {"key_scale": f.key_scale, "value_scale": f.value_scale}
        kernel(**tensors(batch), softmax_scale=batch.softmax_scale, out=out, lse=lse, **options)

    return launch


def why_not(case, *bugs):
    return Asked.of(case).why_not(launcher(*bugs))


@pytest.mark.parametrize("bug", BUGS)
def test_each_bug_dies_at_smoke(bug):
    first, *others = [case for case in smoke() if WHERE[bug](case)][:4]
    asked = Asked.of(first)
    assert not asked.why_not(launcher())
    assert asked.why_not(launcher(bug)) or any(why_not(case, bug) for case in others)


def test_all_of_them_together_die_in_the_kit(child, kernels_are_importable):
    kit = Kit("kit_franken:franken", 7, child)
    results = [kit.once(case.name) for case in small()[::6]]
    assert sum(result.status == "incorrect" for result in results) > len(results) / 2


def test_the_same_kernel_without_bugs_passes():
    for case in small()[::12]:
        assert why_not(case) == "", case.name
