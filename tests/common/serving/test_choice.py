"""Choices are made on a grid that a capacity can enumerate; hints are corrected by shapes, and cost time alone."""

import dataclasses
import importlib
import itertools
import random
import types
from dataclasses import dataclass

import pytest
import torch

import common.serving.prepared
from common import gpus
from common.cases.batch import make_batch
from common.serving.arguments import HINTS
from common.serving.choice import NO_GPU, Choice
from common.serving.grid import (
    EIGHTHS,
    GRID,
    KEYS,
    decided_by,
    few_keys,
    hinted_stats,
    on_grid,
    reachable_stats,
    rounded,
    seen,
)
from common.serving.pieces import MOST_PARTS_BYTES, distinct, few_segments, pieces
from common.serving.prepared import choice_for
from common.spec import AttentionShape, Features
from common.spec.kernel import Capacity
from common.spec.metadata import EVERY_KEY, BatchStats
from ruled import Ruled

SHAPE, H200 = AttentionShape(), gpus.resolve("h200")


def family(auto=lambda shape, stats, gpu: ("plain", "untuned"), needs_all=frozenset({"causal"})):
    """A family of two kernels, `plain` and `able`, that chooses by `auto`, and has neither winners nor logs."""

    def load(name):
        if name in ("plain", "able"):
            supports = needs_all if name == "able" else frozenset({"causal"})
            return types.SimpleNamespace(SUPPORTS=supports, DEFAULT=f"{name}-DEFAULT")
        raise ModuleNotFoundError(f"No module named 'x.{name}'", name=f"x.{name}")

    return Ruled("fake", ("plain", "able"), load, rule=auto)


@pytest.mark.parametrize(("n", "up"), [(0, 1), (1, 1), (2, 2), (3, 3), (5, 6), (7, 8), (9, 12), (49, 64), (4097, 6144)])
def test_sizes_are_rounded_up_to_the_grid(n, up):
    assert rounded(n) == up
    assert rounded(up) == up and up in GRID


def test_a_point_of_the_grid_is_its_own_and_everything_that_hints_can_say_is_reachable():
    tokens, seqs, keys = 100, 20, 500
    known, draw = set(reachable_stats(tokens, seqs, keys)), random.Random(0)
    for stats in known:
        assert on_grid(stats.num_seqs, stats.num_decodes, stats.max_query_len, stats.max_seq_len) == stats
    for _ in range(3000):
        n = draw.randint(1, seqs)
        hints = [draw.choice((None, 0, 1, draw.randint(1, 2 * keys))) for _ in range(3)]
        found = hinted_stats(n, draw.randint(1, tokens), keys, *hints)
        assert on_grid(found.num_seqs, found.num_decodes, found.max_query_len, found.max_seq_len) in known


@pytest.mark.parametrize(
    ("shapes", "hints", "expected"),
    [
        ((32, 32, 4096), (1, 2048, 32), (32, 32, 1, 2048)),
        ((32, 32, 4096), (None, None, None), (32, 32, 1, 4096)),  # as many tokens as sequences: taken for decodes
        ((1, 300, 4096), (1, 1, None), (1, 0, 300, 320)),  # no sequence is shorter than the mean query
        ((4, 40, 4096), (4000, 99999, None), (4, 3, 40, 4096)),  # nor longer than all tokens, or its row of pages
        ((244, 8432, 8192), (2048, 2048, None), (244, 240, 2048, 2048)),  # 240 decodes beside 4 prompts
        ((17, 8193, 8192), (512, 2048, 1), (17, 1, 512, 2048)),  # one decode is one, and none is none
        ((17, 8704, 8192), (512, 2048, 0), (17, 0, 512, 2048)),
        ((32, 2040, 8192), (128, 2048, 17), (32, 17, 128, 2048)),
        ((0, 0, 16), (None, None, None), (1, 1, 1, 16)),
    ],
    ids=["exact", "unknown", "too-small", "too-large", "mixed", "one", "none", "most", "empty"],
)
def test_hints_that_shapes_refute_are_corrected(shapes, hints, expected):
    stats = hinted_stats(*shapes, *hints)
    assert (stats.num_seqs, stats.num_decodes, stats.max_query_len, stats.max_seq_len) == expected


def drawn_lens(draw):
    """Up to 300 sequences of up to 100k keys: decodes, drafts or prompts, of one length or of lengths far apart."""
    most, keys, apart = draw.choice((1, 8, 300)), int(100_000 ** draw.random()), draw.choice((0, 1, 3))
    queries = [draw.randint(1, most) for _ in range(draw.randint(1, draw.choice((3, 20, 300))))]
    return [(query, max(query, int(keys * draw.random() ** apart))) for query in queries]


def test_a_call_with_every_hint_decides_by_what_its_lengths_say():
    """What a comparison chooses by, exact stats, and what a call does, hints and shapes, are the same."""
    draw, eighths = random.Random(0), set()
    for lens in (drawn_lens(draw) for _ in range(1000)):
        stats = BatchStats.of(lens)
        hints = [getattr(stats, name) for name in HINTS]
        told = hinted_stats(stats.num_seqs, stats.num_tokens, stats.max_seq_len + draw.randint(0, 999), *hints)
        assert told == decided_by(stats), lens
        if told.prompt_seq_len is None:
            eighths.add(EIGHTHS * told.total_seq_len // (told.num_seqs * told.max_seq_len))
    assert len(eighths) == EIGHTHS


def test_short_decodes_beside_long_prompts_are_told_from_long_decodes_beside_short_prompts():
    """Both have as many keys in all; where nobody says whose they are, decodes and prompts share them evenly."""
    lens = [(1, 100)] * 30 + [(87, 30_000)] * 2
    swapped = [(1, 2007)] * 30 + [(87, 1395)] + [(87, 1395)]
    first, second = decided_by(BatchStats.of(lens)), decided_by(BatchStats.of(swapped))
    assert (first.total_seq_len - first.prompt_seq_len, first.prompt_seq_len) == (30 * 112, 2 * 32768)
    assert (second.total_seq_len - second.prompt_seq_len, second.prompt_seq_len) == (30 * 2048, 2 * 1536)
    unsaid = decided_by(dataclasses.replace(BatchStats.of(lens), prompt_seq_len=None))
    assert (unsaid.total_seq_len - unsaid.prompt_seq_len, unsaid.prompt_seq_len) == (30 * 2048, 2 * 2048)


@pytest.mark.parametrize(
    ("max_seq_len", "total", "expected"),
    [
        (1024, 8 * 1024, 8 * 1024), (1024, None, 8 * 1024), (1024, 10**12, 8 * 1024), (1024, -5, 1024),
        (1024, 3000, 3 * 1024),  # 2.9 eighths
        (1000, 3000, 3 * 1024),
        (None, 3000, 8 * 4096),  # of which nobody says how many one sequence has
        (99999, 3000, 4096),  # an eighth of what a row of pages holds
    ],
)  # fmt: skip
def test_a_total_that_shapes_refute_is_corrected(max_seq_len, total, expected):
    assert hinted_stats(8, 8, 4096, 1, max_seq_len, 8, total).total_seq_len == expected
    assert hinted_stats(2, 1024, 1024, 512, 512, 0, 1).total_seq_len == 1024, "all keys are no fewer than query tokens"


def test_a_choice_is_made_from_exact_counts_and_from_keys_in_small_steps():
    """11 sequences of 88 Q Blocks stay 11: as 12 they had a segment less, and ran at half of their speed."""
    stats = decided_by(BatchStats.of([(4, 3000)] + [(4, 1500)] * 10))
    assert (stats.num_seqs, stats.num_tokens, stats.max_query_len, stats.max_seq_len) == (11, 44, 4, 3072)
    assert stats.total_seq_len == -(-11 * 3072 * 5 // EIGHTHS)  # 18,000 keys are 4.3 eighths of 11 times 3072
    assert decided_by(stats) == stats
    drawn = [decided_by(BatchStats.of([(1, n), (2, 5), (1, 9 * n)])) for n in range(3, 90)]
    assert [decided_by(one) for one in drawn] == drawn
    assert all(up / n <= 1.25 for n in range(4, 5000) if (up := few_keys(n)) in KEYS)
    assert decided_by(BatchStats.of(())) == BatchStats(1, 1, 1, 1, 1, 1)


@pytest.mark.parametrize("most", [2**30, 2**40])
def test_hints_of_any_size_are_stats(most):
    """Of more keys than a sequence can have, each alone and all, beside a table that could hold as many."""
    for hints in itertools.product((1, 20, 2**40), repeat=5):
        stats = hinted_stats(2, 40, most, *hints)
        assert (stats.num_seqs, stats.num_tokens) == (2, 40) and stats.max_seq_len in KEYS
    assert hinted_stats(2, 40, most, None, None, None).max_seq_len in KEYS


@dataclass(frozen=True)
class Part:
    num_segments: int
    tile_size: int = 64


@dataclass(frozen=True)
class Nested:
    prefill: Part
    decode: Part
    overlap: bool = True


@pytest.mark.parametrize(
    ("wanted", "found"), [(1, 1), (5, 5), (9, 10), (11, 12), (15, 16), (21, 20), (49, 48), (85, 80), (128, 128)]
)
def test_segments_are_the_nearest_of_a_short_list(wanted, found):
    stats = BatchStats.of([(1, 2048)])
    assert few_segments(Part(wanted), SHAPE, stats) == Part(found)
    both = few_segments(Nested(Part(1, 128), Part(wanted)), SHAPE, stats)
    assert both == Nested(Part(1, 128), Part(found))
    assert few_segments(few_segments(Part(wanted), SHAPE, stats), SHAPE, stats) == Part(found)


def test_partial_results_of_prompts_are_counted_where_one_launch_serves_all_queries():
    """128 sequences of up to 64 tokens: seven segments of all of them would take 0.9 GiB."""
    stats = BatchStats.of([(1, 2048)] * 127 + [(64, 2048)])
    assert few_segments(Part(7), SHAPE, stats) == Part(1)
    assert few_segments(Nested(Part(1), Part(7)), SHAPE, stats) == Nested(Part(1), Part(7))
    assert few_segments("a config of another kind", SHAPE, stats) == "a config of another kind"


@pytest.mark.parametrize("lens", [[(1, 131072)] * 96, [(1, 9)] * 90 + [(17, 64)] * 6, [(16, 131072)] * 256, [(1, 9)]])
def test_partial_results_have_a_bound(lens):
    """Of every sequence up to 16 tokens: lengths are on the device, and a hint may be wrong."""
    stats = BatchStats.of(lens)
    segments = few_segments(Part(85), SHAPE, stats).num_segments
    tokens = stats.num_seqs * min(stats.max_query_len, 16)
    assert segments == 1 or segments * tokens * SHAPE.num_query_heads * (SHAPE.head_size + 2) * 4 <= MOST_PARTS_BYTES
    assert segments >= 16 or tokens > 300


def test_a_gpu_without_logs_or_units_is_said_once_and_chosen_for():
    auto, other = importlib.import_module("dsl_triton.auto"), dataclasses.replace(H200, name="another")
    with pytest.warns(UserWarning, match=r"no logs of another .*compare tune .* --gpu another") as said:
        for keys in (64, 4096):
            choice = auto.choose(SHAPE, BatchStats.of([(1, keys)]), other)
    assert len(said) == 1 and choice.path == "heuristics/learned/h200.json"
    none = dataclasses.replace(H200, name="other", units=0)
    with pytest.warns(UserWarning) as said:
        for lens in ([(1, 4096)], [(4, 3000)] * 10, [(2048, 2048)]):
            assert auto.choose(SHAPE, BatchStats.of(lens), none).config
    assert sum("with 0 units; choosing as for 1" in str(one.message) for one in said) == 1


def test_what_the_chosen_kernel_lacks_is_served_by_one_that_has_it():
    fake = family(needs_all=frozenset({"causal", "sinks"}))
    stats = BatchStats.of([(1, 9)])
    assert fake.choose(SHAPE, stats, None, frozenset({"sinks"})) == Choice("able", "able-DEFAULT", "DEFAULT", NO_GPU)
    assert fake.choose(SHAPE, stats, None, frozenset({"alibi"})).kernel == "plain"  # whose launch says what is missing


def by_keys(choose=None):
    """A family whose rules give the keys that they were asked for as the config."""
    return family(choose or (lambda shape, stats, gpu: ("plain", stats.max_seq_len)))


@pytest.mark.parametrize(
    ("lens", "sees", "keys"),
    [
        ([(1, 4096)] * 8, EVERY_KEY, 4096),
        ([(1, 4096)] * 8, 1, 64),
        ([(1, 4096)] * 8, 256, 384),  # five tiles of 64 keys, which begin anywhere
        ([(1, 300)] * 8, 256, 320),
        ([(4, 4096)] * 8, 1000, 1536),
        ([(1, 4096)] * 8, 2**31 - 1, 4096),
        ([(5, 4096)] * 8, 256, 384),
        ([(1, 4096)] * 7 + [(128, 8192)], 256, 512),
        ([(4096, 4096)], 1024, 4096),
    ],
    ids=["every-key", "one", "window", "shorter", "drafts", "widest", "two-q-blocks", "mixed", "prompt"],
)
def test_a_batch_is_chosen_for_by_the_keys_that_it_sees(lens, sees, keys):
    stats = BatchStats.of(lens)
    assert by_keys().choose(SHAPE, stats, H200, sees=sees).config == keys
    found = seen(stats, sees)
    assert found.max_seq_len <= stats.max_seq_len and found.total_seq_len <= stats.total_seq_len
    assert few_keys(found.max_seq_len) == keys


@pytest.mark.parametrize("features", [Features(sliding_window=9), Features(chunk=5, chunk_lookback=1), Features()])
def test_a_call_tells_the_choice_what_its_features_let_a_token_see(monkeypatch, features):
    monkeypatch.setattr(common.serving.prepared, "gpu_of", lambda device: H200)
    batch = make_batch([(1, 400)] * 2, AttentionShape(4, 2, 32), fill=False)
    chosen = choice_for(by_keys(), batch, features)
    assert chosen.config == (448 if features.plain and features.sliding_window is None else 96)


@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_numbers_of_segments_are_one_piece_where_compilers_make_one_code(dsl):
    """What a merge holds is a power of two, and Triton asks of Helion's integers whether 16 divides them."""
    kernel = importlib.import_module(f"dsl_{dsl}.parallel_softmax")

    def piece(segments: int):
        return pieces(Choice("parallel_softmax", kernel.Config(num_segments=segments), "", ""))

    alike = [(5, 8), (10, 14), (20, 28), (48, 64), (40, 56)]
    apart = [(1, 2), (2, 3), (8, 10), (14, 16), (28, 32), (56, 64), (16, 32)]
    assert all(piece(a) == piece(b) for a, b in alike)
    assert all(piece(a) != piece(b) for a, b in apart)


@pytest.mark.parametrize("dsl", ["triton", "helion"])
@pytest.mark.parametrize("segments", [2, 3, 5, 7, 10, 14])
def test_rows_of_partial_results_are_sixteens_whatever_the_segments(dsl, segments):
    kernel = importlib.import_module(f"dsl_{dsl}.unpaged")
    config = kernel.Config(kernel.Prefill(num_segments=segments))
    shape, capacity = AttentionShape(24, 4, 128, 16), Capacity(8192, 4, torch.device("cpu"), 64)
    rows = kernel.workspace(shape, capacity, config).parts.acc.shape[1]
    assert rows % 16 == 0 and rows * segments >= kernel.MOST_PARTS - segments


def test_a_choice_that_recurs_keeps_its_first_place():
    """The first of the candidates is what a measurement is compared with."""
    a, b, again = Choice("q_block", 1, "first"), Choice("q_block", 2), Choice("q_block", 1, "second")
    assert distinct([a, b, again]) == [a, b]
