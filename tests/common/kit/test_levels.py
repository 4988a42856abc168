"""Case expressions, levels, and cases with something left out."""

from dataclasses import replace

import pytest
import torch

from common.cases.case import build
from common.cases.fills import MOST_CODE
from common.kit import levels
from common.kit.levels import BY_NAME, level, read, seeded, simpler, size, write
from common.spec import SpecError


@pytest.mark.parametrize("name", ["first", "smoke", pytest.param("full", marks=pytest.mark.slow)])
def test_every_expression_of_a_level_is_read_back(name):
    expressions = list(level(name))
    assert len(set(expressions)) == len(expressions) >= 20
    assert all(read(write(read(expression))) == read(expression) for expression in expressions)


def test_an_expression_says_every_change():
    changed = BY_NAME["window-page"].but(
        lens=((1, 40), (5, 5)), heads=(2, 1), dtype=torch.float16, sliding_window=None,
        softcap=2.5, style="hnd", new_kv=True, table_dtype=torch.int64,
    )  # fmt: skip
    assert read(write(changed)) == changed
    assert read(write(replace(changed, lens=()))).lens == ()


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("window-pages", "a named case, as window-page"),
        ("window-page@dtype=float17", "a value that dtype can have"),
        ("window-page@lens=1", "a value that lens can have"),
        ("window-page@weather=fair", "field=value with one of"),
        ("pages-reversed@arrange=last_pages", "arrange only none"),
    ],
)
def test_an_expression_that_means_nothing_is_refused(expression, words):
    with pytest.raises(SpecError, match=words):
        read(expression)


def test_values_follow_the_seed_and_the_case():
    case = BY_NAME["batch-1"]
    first, again, other = (build(seeded(case, seed))[0].query for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("name", ["everything-at-once", "pages-reversed", "keys-4500", "batch-257"])
def test_a_simpler_case_is_smaller_and_can_be_built(name):
    case = BY_NAME[name]
    candidates = list(simpler(case))
    assert candidates and all(size(each) < size(case) and read(write(each)) == each for each in candidates)
    for each in candidates[:3]:
        batch, _ = build(seeded(each, 1))
        assert batch.num_seqs == len(each.lens)


def test_the_cases_to_refuse_are_not_of_the_kit():
    assert not [case for case in levels.KIT_CASES if case.refused]
    assert set(levels.SMOKE) <= set(BY_NAME) and set(levels.BEFORE) <= set(BY_NAME)
    assert not [name for name in levels.SMOKE if BY_NAME[name].large]


IMPOSSIBLE = {
    "tree-of-8@tree=1.0": "tree=",  # each the other's parent: went round for ever
    "tree-of-8@tree=0": "tree=(0,)",
    "window-page@sliding_window=0": "sliding_window",
    "window-page@sliding_window=2147483648": "sliding_window",
    "random-7@chunk=0": "chunk=0",  # a division by it, while the batch was built
    "window-page@head_size=7": "head_size",
    "window-page@head_size=-8": "head_size=-8",
    "window-page@lens=-1/20": "lens='-1/20'",
    "window-page@lens=1/99999999": "lens=",
    "window-page@lens=9000/1000000@cross=true@causal=false@sliding_window=none": "logits=",
    "window-page@heads=3/2": "num_query_heads",
    "window-page@heads=0/0": "heads=",
    "window-page@block_size=1073741824": "block_size=1073741824",
    "window-page@block_size=1048576@head_size=512@heads=64/64": "K and V=",
    "window-page@spare_pages=-1": "spare_pages=-1",
    "window-page@softcap=nan": "softcap=nan",
    "window-page@loud=inf": "loud=inf",
    "window-page@style=odd": "style='odd'",
    "window-page@sinks=many": "sinks='many'",
    "window-page@causal=3": "causal=3",
    "window-page@non_causal=7": "non_causal=(7,)",
    "window-page@spans=0/3": "spans=",
    "window-page@kv_dtype=float64": "kv_dtype",
    "window-page@dtype=none": "dtype",
    "window-page@cross=true": "cross",
    "random-１２": "a named case",
    "random-99999999999999999999999": "a named case",
    f"{'x' * 5000}": "a named case",
}


@pytest.mark.parametrize("expression", IMPOSSIBLE, ids=lambda text: text[:50])
def test_a_case_that_cannot_be_is_refused(expression):
    with pytest.raises(SpecError) as caught:
        read(expression)
    assert IMPOSSIBLE[expression] in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize("name", [case.name for case in levels.CODES])
def test_the_cases_of_codes_have_every_finite_code_of_their_type(name):
    case = BY_NAME[name]
    batch, _ = build(case)
    every = torch.arange(256, dtype=torch.uint8).view(case.shape.cache_dtype).float()
    every = every[every.isfinite() & (every.abs() <= MOST_CODE)]
    caches = [batch.value_cache] if case.fp8_query else [batch.key_cache, batch.value_cache]
    assert all(set(every.tolist()) <= set(cache.float().flatten().tolist()) for cache in caches)
    assert name in levels.SMOKE


def test_decodes_alone_have_many_rows():
    """Batches of decodes had fewer than a thousand rows of tokens and heads: those behind could be unwritten."""
    decodes = [BY_NAME[name] for name in levels.SMOKE if all(query == 1 for query, _ in BY_NAME[name].lens)]
    assert max(len(case.lens) * case.heads[0] for case in decodes) > 2**13
