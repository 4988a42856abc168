"""The cases of the serving kernels hold the corners that they are named after."""

from dataclasses import dataclass

import pytest
import torch

from common.cases.case import config_for
from common.cases.named import BY_NAME, CASES, FAMILY, build
from common.spec import Layout
from common.spec.metadata import SHORT_QUERY

TILED = [case for case in FAMILY if case.tile_size]
NEW = [case for case in CASES if case.new_kv]


def test_tiles_are_smaller_equal_and_larger_than_pages_of_every_kind():
    assert {case.block_size for case in TILED} == {16, 24, 48, 64, 128, 528, 544, 784}
    pairs = [(case.block_size, case.tile_size) for case in TILED]
    relations = {"smaller": lambda p, t: t < p, "equal": lambda p, t: t == p, "larger": lambda p, t: t > p}
    for name, holds in relations.items():
        assert sum(holds(*pair) for pair in pairs) >= 2, name
    assert any(page % tile for page, tile in pairs if tile < page), "a tile over the edge of a page it is smaller than"
    assert any(tile % page for page, tile in pairs if page < tile), "a tile that ends inside a page"


@dataclass(frozen=True)
class Part:
    tile_size: int = 32
    num_warps: int = 4


@dataclass(frozen=True)
class Whole:
    prefill: Part = Part(64)
    decode: Part = Part(16)
    segments: int = 2


def test_a_tile_reaches_every_part_of_a_config_and_nothing_else():
    case = BY_NAME["page-24-tile-16"]
    assert config_for(case, Whole()) == Whole(Part(16), Part(16))
    assert config_for(case, Part()) == Part(16)
    assert config_for(BY_NAME["head-80"], Whole()) == Whole()
    assert config_for(case, None) is None


def test_the_border_of_short_queries_is_met_from_both_sides_alone_and_mixed():
    border = {SHORT_QUERY - 1, SHORT_QUERY, SHORT_QUERY + 1}
    for with_new in (True, False):
        mixed = [case for case in FAMILY if case.new_kv == with_new and border <= {q for q, _ in case.lens}]
        assert mixed
    alone = [{q for q, s in case.lens if s} - {0} for case in FAMILY]
    assert all({query} in alone for query in border)


def test_new_tokens_come_in_every_kind_of_batch():
    def kinds(case):
        return {(q > SHORT_QUERY, q == 1, s > q) for q, s in case.lens if q and s}

    found = [kinds(case) for case in NEW]
    assert {(True, False, False)} in found, "prompts alone"
    assert {(True, False, True)} in found, "chunks over a context alone"
    assert {(False, True, True)} in found, "decodes alone"
    assert {(False, False, True)} in found, "speculative alone"
    assert any(len(kind) >= 4 for kind in found), "all of them"
    contexts = {(s - q) % 16 for case in NEW for q, s in case.lens if s > q}
    assert 0 in contexts and len(contexts) >= 6


@pytest.mark.parametrize("case", NEW, ids=lambda case: case.name)
def test_rows_of_nobody_among_the_new_tokens_are_nan(case):
    batch, _ = build(case)
    with_key = [torch.arange(q) >= q - s for q, s in case.lens]  # the last query is at the last key
    seen = torch.cat([*with_key, torch.zeros(case.pad_tokens, dtype=torch.bool)])
    seen &= not batch.shape.quantised  # there the caches count: nobody may read the new tokens
    for new in (batch.key, batch.value):
        assert torch.equal(new.isfinite().all(-1).all(-1), seen)


def test_x_packed_pages_come_with_and_without_new_tokens_in_words_of_four_eight_and_sixteen():
    packed = [case for case in CASES if case.layout is Layout.X_PACKED]
    assert {case.new_kv for case in packed} == {True, False}
    assert {build(case)[0].key_cache.shape[-1] for case in packed} == {4, 8, 16}


@pytest.mark.parametrize("name", ["no-tokens-but-padding", "no-sequences-but-padding", "new-kv-no-tokens"])
def test_padding_alone_has_rows_and_no_tokens(name):
    batch, _ = build(BY_NAME[name])
    assert batch.num_tokens > 0 and int(batch.query_start_loc[-1]) == 0
