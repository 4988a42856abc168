"""What a wrong result is said to equal: each mistake planted in the emulation is named, and nothing else is."""

import math
from dataclasses import replace

import pytest
import torch

from common.cases.case import build, outputs
from common.cases.fills import FILLS
from common.kit.causes import Found, explained, not_written, said
from common.kit.levels import read, seeded
from common.mutants.emulation import Edits, Schedule, emulate
from common.oracle.integrity import Guards
from common.spec.precision import Precision

STRIDES = "query-15-16-17@lens=16/16.5/32.9/48@spare_pages=0@value_style=transposed"
PAGES = "query-15-16-17"
WINDOW = "window-page"
LOUD = "query-15-16-17@loud=4.0@lens=1/90.17/60.3/33"


@pytest.fixture(autouse=True)
def one_thread():
    """The references are small: on a busy machine threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def edit(method, change):
    """An emulation with one method changed: change(what is right, at, the method's other arguments)."""

    def changed(self, at, *arguments):
        return change(getattr(Edits, method)(self, at, *arguments), at, *arguments)

    return type("Planted", (Edits,), {method: changed})()


def _other_strides(right, at, kind, cache):
    return cache.as_strided(cache.shape, at.batch.key_cache.stride()) if kind == "value" else cache


def _shown(right, at, query, key, seen):
    return seen | ((key == query + 1) & (key < at.seq_len))


def _top_left(right, at, query, key, seen):
    return (key <= query - at.context_len) & (key < at.seq_len)


def _neighbour(right, at, kind, index, pages):
    return at.batch.block_table[(at.seq - 1) % at.batch.num_seqs].long()[index]


PLANTED = {  # words -> (case, method, what it gives)
    "K's strides for V": (STRIDES, "cache", _other_strides),
    "KV head = query head modulo KV heads": (
        PAGES, "kv_heads", lambda heads, at, _: torch.arange(len(heads)) % at.batch.shape.num_kv_heads),
    "KV head 0 for every query head": (PAGES, "kv_heads", lambda heads, at, _: heads * 0),
    "the block-table row of the sequence before": ("query-15-16-17@lens=9/40.5/40.17/40", "pages", _neighbour),
    "the first block-table row for every sequence": (
        "query-15-16-17@lens=9/40.5/40.17/40", "pages",
        lambda pages, at, kind, index, *_: at.batch.block_table[0].long()[index]),
    "a causal mask that shows one key too many": (PAGES, "visible", _shown),
    "a causal mask that hides the query's own key": (
        PAGES, "visible", lambda seen, at, query, key, _: seen & (key < query)),
    "positions counted from the first query (a causal mask from the top left)": (PAGES, "visible", _top_left),
    "sequences without their first key": (PAGES, "visible", lambda seen, at, query, key, _: seen & (key > 0)),
    "sequences without their last key": (
        PAGES, "visible", lambda seen, at, query, key, _: seen & (key < at.seq_len - 1)),
    "whole tiles of 32 keys alone": (
        f"{PAGES}@lens=9/70.5/40.17/99", "visible",
        lambda seen, at, query, key, _: seen & (key < at.seq_len // 32 * 32)),
    "no causal mask": (PAGES, "causal", lambda *_: False),
    "a window that is one key wider": (
        WINDOW, "visible", lambda seen, at, q, k, _: (k <= q) & (k >= q - at.features.sliding_window)),
    "a window that is one key narrower": (
        WINDOW, "visible", lambda seen, at, q, k, _: (k <= q) & (k > q - at.features.sliding_window + 1)),
    "no window": (f"{WINDOW}@lens=1/30.9/25", "visible", lambda seen, at, q, k, _: k <= q),  # one tile
    "no lookback": (f"{PAGES}@chunk=8@chunk_lookback=1", "chunk", lambda right, *_: (right[0], 0)),
    "no spans": (f"{PAGES}@lens=5/20.6/9@spans=15/18_4/7", "spans", lambda *_: []),
    "no softmax scale": (PAGES, "scale", lambda *_: 1.0),
    "the softmax scale applied twice": (PAGES, "scale", lambda scale, *_: scale * scale),
    "head_size^-0.5 in place of softmax_scale": (
        f"{PAGES}@softmax_scale=0.37", "scale", lambda _, at, *__: at.batch.shape.head_size**-0.5),
    "the logits in base 2: no log2(e) in the exponent": (PAGES, "scale", lambda scale, *_: scale * math.log(2.0)),
    "log2(e) in the exponent twice": (PAGES, "scale", lambda scale, *_: scale * math.log2(math.e)),
    "no soft cap": (f"{PAGES}@softcap=0.77", "score", lambda _, at, logits, softcap: logits),
    "no sinks": (f"{PAGES}@sinks=near", "sink", lambda sinks, *_: torch.full_like(sinks, -math.inf)),
    "ALiBi slopes of the other sign": (f"{PAGES}@alibi=linear", "slopes", lambda slopes, *_: -slopes),
    "no ALiBi": (f"{PAGES}@alibi=linear", "slopes", lambda slopes, *_: 0 * slopes),
    "no scale of V": (
        f"{PAGES}@kv_dtype=float8_e4m3fn@scales=heads", "kv_scale",
        lambda scale, at, kind, _: scale if kind == "key" else None),
    "the scale of K for V": (
        f"{PAGES}@kv_dtype=float8_e4m3fn@scales=heads@scale_factor=7.0", "kv_scale",
        lambda scale, at, kind, _: at.features.key_scale),
    "rows that are not divided by their sums": (PAGES, "finish", lambda _, at, acc, total: acc),
    "an LSE in base 2": (PAGES, "lse", lambda lse, *_: lse * math.log2(math.e)),
}  # fmt: skip


def wrong(expression, edits, tile=32):
    case, guards = seeded(read(expression), 3), Guards()
    batch, features = build(case, "cpu", guards)
    out, lse = outputs(case, batch, guards)
    emulate(batch, features, out, Schedule(tile), lse=lse, edits=edits)
    return Found(out, lse, batch, features, Precision(), case.structured)


@pytest.mark.parametrize("words", PLANTED)
def test_a_planted_mistake_is_named(words):
    expression, method, change = PLANTED[words]
    names = explained(wrong(expression, edit(method, change)))
    assert words in names and len(names) <= 3


LIMITS = ("@sliding_window=75", "@chunk=50@chunk_lookback=1")


@pytest.mark.parametrize(
    ("limit", "tile"), [("", 32), ("", 64), *((limit, tile) for limit in LIMITS for tile in (16, 32))]
)
def test_an_accumulator_without_its_rescale_is_named_with_its_tile(limit, tile):
    """Each tile's product is added to what was not made smaller: the sum alone was."""
    names = explained(wrong(LOUD + limit, NotRescaled(), tile))
    assert names == [f"an accumulator that a greater maximum does not rescale, in tiles of {tile} keys"]


def test_tiles_that_begin_at_the_first_key_of_a_window_are_known():
    """The kernel walks 40 keys of its own in tiles of 16, wherever they begin."""
    names = explained(wrong("window-page@lens=1/90.1/75@loud=4.0@sliding_window=40", FromTheWindow(), 16))
    assert names == ["an accumulator that a greater maximum does not rescale, in tiles of 16 keys"]


class NotRescaled(Edits):
    """Undoes what the step multiplies the accumulator by: acc of before / fade."""

    def __init__(self):
        self.before = None

    def maximum(self, at, m):
        self.m = m
        return m

    def accumulator(self, at, acc):
        first = self.before is None or self.place != (at.seq, at.segment)
        self.place = (at.seq, at.segment)
        if not first:
            old, m = self.before
            fade = torch.exp2(m - self.shift(at, self.m))
            acc = acc + (1.0 - fade)[..., None] * old
        self.before = (acc, self.m)
        return acc


class FromTheWindow(NotRescaled):
    """Tiles from the first key that the sequence's first row sees."""

    def segment(self, at, keys):
        return range(max(0, at.context_len - at.features.sliding_window + 1), at.seq_len)


OTHERS = {  # right ones, and mistakes that none of the names is
    "a key in the middle is lost": ("visible", lambda seen, at, q, k, _: seen & (k != at.seq_len // 2)),
    "a row that is 1% too small": ("finish", lambda row, *_: 0.99 * row),
    "lanes in another order": ("finish", lambda row, *_: row.flip(-1)),
    "slots in another order": ("slots", lambda slots, *_: slots.flip(0)),
    "a sum in bf16": ("total", lambda total, *_: total.bfloat16().float() * 1.02),
    "values of another head, keys of its own": ("cache", lambda c, at, kind, _: c.flip(2) if kind == "value" else c),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_another_mistake_has_no_name(name):
    found = wrong(LOUD, edit(*OTHERS[name]))
    assert explained(found) == []


def test_a_nan_that_a_mistake_spreads_is_no_proof_of_another():
    """V that no row sees is NaN and is multiplied by 0: what is finite is right."""
    case, guards = seeded(read("window-page@lens=1/40.3/30"), 3), Guards()
    batch, features = build(case, "cpu", guards)
    FILLS["unseen-values-nan"](batch, features)
    out, lse = outputs(case, batch, guards)
    edits = edit("wanted", lambda right, at, key, seen: torch.ones_like(key, dtype=torch.bool))
    emulate(batch, features, out, Schedule(32), lse=lse, edits=edits)
    assert out.isnan().any() and explained(Found(out, lse, batch, features, Precision(), False)) == []


def test_a_right_result_has_no_cause_and_an_output_that_is_the_query_is_known():
    found = wrong(PAGES, Edits())
    assert explained(found) == [] and not found.is_the_query
    assert replace(found, out=found.batch.query.clone()).is_the_query


def test_zeros_are_not_said_to_be_what_a_mistake_that_hides_every_key_gives():
    found = wrong("query-15-16-17", Edits())  # under 64 keys a sequence
    assert explained(replace(found, out=torch.zeros_like(found.out), lse=None)) == []


def test_one_name_can_be_asked_for_alone():
    expression, method, change = PLANTED["no sinks"]
    found = wrong(expression, edit(method, change))
    assert explained(found, "no sinks") == ["no sinks"] and explained(found, "no softmax scale") == []


def test_where_too_many_mistakes_give_the_same_none_is_named():
    """One token that sees one key: nothing that is asked of it shows."""
    found = wrong("query-15-16-17@lens=1/1", edit("finish", lambda row, *_: 0.0 * row + math.nan))
    assert explained(found) == [] and said([]) == ""
    assert said(["no window", "no sinks"]) == "; equals what no window, or no sinks would give"


def test_what_was_not_written_is_told_by_two_fills():
    first, again = torch.zeros(3, 2, 4), torch.zeros(3, 2, 4)
    first[1, 0, 2:], again[1, 0, 2:] = math.nan, 7.0
    first[2, 1, 0], again[2, 1, 0] = math.nan, math.nan  # a NaN that was computed
    words = not_written("out", first, again, math.nan, 7.0)
    assert words == "; 2 numbers of out were not written, the first at token 1, head 0, lane 2"
    assert not_written("out", first, first, math.nan, 7.0) == ""
    assert "token 1, head 0" in not_written("lse", again[..., 2], first[..., 2], 7.0, math.nan)
