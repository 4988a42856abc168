"""The rows of `serving`, by which kernels are judged, and of `tuning`, where trees are fitted: none is in both."""

import argparse

import pytest
import torch

from compare.plan import selection, situation
from compare.run import options
from compare.workloads import Workload, suites
from compare.workloads.cost import cost
from compare.workloads.suites import pick, suite

NO_GPU = situation.Situation(None, False, "cpu", "")


def row_of(name: str, label: str) -> Workload:
    return next(row for row in suite(name) if row.label == label)


def test_serving_holds_the_rows_by_which_auto_is_judged():
    rows = suite("serving")
    words = [row.label.replace("~", "") for row in rows[:17]]
    assert words == [
        *("q128s8k", "q512s8k", "q512s32k", "q2ks32k", "8q256s4k"),
        *("16q1s2k_16q512s1536", "64q1s2k_2q2ks2k", "255q1s1k_1q2ks8k", "128q1s4k_1q512s16k", "32q1s8k_8q256s4k"),
        *("240q1s512_4q2ks2k", "q4s8k", "8q8s4k", "32q4s4k", "128q3s1k", "256q1s1k", "1024q1s512"),
    ]
    assert sum(row.kind == "mixed" for row in rows[:17]) == 6


def test_serving_has_a_row_of_each_class_under_other_heads_and_pages():
    rows = suite("serving")[17:]
    names = ("8:1:128", "16:1:128", "28:4:128", "64:8:64+window128+sinks", "16:8:256", "page64", "page128")
    assert [row.label.partition("@")[2] for row in rows] == [name for name in names for _ in range(4)]
    for first in range(0, len(rows), 4):
        assert {row.kind for row in rows[first : first + 4]} == {"decode", "speculative", "prefill", "mixed"}
    for row in rows:
        heads, page = (
            f"{row.shape.num_query_heads}:{row.shape.num_kv_heads}:{row.shape.head_size}",
            row.shape.block_size,
        )
        assert f"@{heads if page == 16 else f'page{page}'}" in row.label and (page == 16 or heads == "32:8:128")
        assert row.ask.names() == (("sliding_window=128", "sinks") if "sinks" in row.label else ())


def test_groups_of_serving_with_a_context_vary_by_the_number_of_the_row():
    mixed = suite("serving")[9]
    assert mixed.label == "32q1s8k~_8q256s4k~"
    for group, longest, query in ((mixed.lens[:32], 8192, 1), (mixed.lens[32:], 4096, 256)):
        generator = torch.Generator().manual_seed(2000 + 9)
        lengths = (torch.rand(len(group), generator=generator) * 0.5 + 0.5).mul(longest).long().tolist()
        assert group == tuple((query, n) for n in [longest, *lengths[1:]])


def test_whole_prompts_and_single_sequences_of_serving_do_not_vary():
    assert row_of("serving", "64q1s2k~_2q2ks2k").lens[64:] == ((2048, 2048),) * 2
    assert row_of("serving", "q512s32k").lens == ((512, 32768),)


@pytest.mark.parametrize("name", [name for name in suites.SUITES if name != "tuning"])
def test_no_row_of_tuning_is_in_another_suite(name):
    tuned = {tuple(sorted(row.lens)) for row in suite("tuning")}
    assert not [row.label for row in suite(name) if tuple(sorted(row.lens)) in tuned]


def test_tuning_is_one_draw_whose_leading_parts_hold_every_class():
    rows = suite("tuning")
    assert len(rows) == suites.ROWS and [row.lens for row in rows] == [row.lens for row in suite("tuning", 7)]
    assert {row.lens for row in rows} == {row.lens for row in suites.draw()}
    kinds = [row.kind for row in rows]
    for first in range(0, len(rows), 4):
        assert sorted(kinds[first : first + 4]) == ["decode", "mixed", "prefill", "speculative"]


def test_every_row_of_tuning_is_inside_its_bounds():
    for row in suite("tuning"):
        stats = row.stats
        assert suites.fits(row)
        assert 1 <= stats.num_seqs <= 512 and stats.max_query_len <= 16 * 1024 and stats.num_tokens <= 32 * 1024
        assert max(seq_len - query_len for query_len, seq_len in row.lens) <= 128 * 1024
        assert cost(row).kv_bytes < 14e9


def test_tuning_reaches_from_one_sequence_to_hundreds_and_from_no_context_to_long_ones():
    rows = suite("tuning")
    contexts = [max(seq_len - query_len for query_len, seq_len in row.lens) for row in rows]
    counts = [row.stats.num_seqs for row in rows]
    assert min(contexts) == 0 and max(contexts) > 100_000 and min(counts) == 1 and max(counts) > 256
    shares = {round(row.stats.num_decodes / row.stats.num_seqs, 1) for row in rows if row.kind == "mixed"}
    assert len(shares) >= 5


def asked(*words: str) -> argparse.Namespace:
    return options.parse(words).rows


def test_new_kv_gives_every_row_another_label_and_id():
    plain = selection.selection(asked("--suite", "peers", "--workload", "q2k"), NO_GPU).workloads
    given = selection.selection(asked("--suite", "peers", "--workload", "q2k", "--new-kv"), NO_GPU).workloads
    assert [row.label for row in plain] == ["q2k"] and [row.label for row in given] == ["q2k+kv"]
    assert plain[0].id != given[0].id and plain[0].lens == given[0].lens
    assert given[0].asked == ("new_kv",)


def test_rows_with_new_kv_have_it_and_others_do_not():
    (row,) = pick(suite("smoke"), "mixed-with-empty")
    assert row.batches(1, "cpu")[0].key is None
    batch = row.with_new_kv().batches(1, "cpu")[0]
    assert batch.key.shape == (batch.num_tokens, 2, 64)


@pytest.mark.parametrize(("name", "rows"), [("fig6", 24), ("fig7", 9), ("fig8", 12), ("fig9", 8)])
def test_a_figures_suite_is_small_enough_to_run_in_minutes_and_labels_are_unique(name, rows):
    labels = [row.label for row in suite(name)]
    assert len(labels) == len(set(labels)) == rows


def test_figure_6_has_every_decode_share_at_every_length_and_the_longest_in_every_batch():
    rows = suite("fig6")
    seen = {(row.stats.max_seq_len, 100 * row.stats.num_decodes // row.stats.num_seqs) for row in rows}
    assert seen == {(longest, share) for longest in (256, 1024, 4096) for share in (0, 50, 100)}
    assert row_of("fig6", "8x1024-50%decode").lens[4:] == ((1024, 1024), (205, 205), (103, 103), (410, 410))


def test_figure_9_decodes_behind_500_prompt_tokens_at_batch_1():
    assert [row.lens for row in suite("fig9")][::7] == [((1, 510),), ((1, 13300),)]


@pytest.mark.parametrize("name", ["fig6", "fig7", "fig8", "fig9"])
def test_a_figures_suite_brings_its_kernels_and_no_baseline_without_a_gpu(name):
    chosen = selection.selection(asked("--suite", name), NO_GPU).kernels
    assert {kernel.split("/")[0] for kernel in chosen} == {"triton", "helion"}
    wanted = selection.selection(asked("--suite", name, "--kernels", "triton/naive"), NO_GPU).kernels
    assert wanted == ("triton/naive",)


def test_unseen_rows_are_the_seeds_and_every_leading_part_has_all_classes():
    first, again, other = suites.unseen(3), suites.unseen(3), suites.unseen(4)
    assert first == again and not {row.id for row in first} & {row.id for row in other}
    assert suites.unseen(3, 24) == first[:24]
    assert {row.shape for row in first} != {row.shape for row in other}
    for part in (first[:24], first):
        kinds = [row.kind for row in part]
        assert all(kinds.count(kind) == len(part) // 4 for kind in ("decode", "prefill", "mixed", "speculative"))
        assert len({(row.shape, row.ask) for row in part}) == suites.UNSEEN_SHAPES
    classes = {(row.shape, row.kind) for row in first}  # no shape is met by one class alone
    assert all(len({kind for held, kind in classes if held == shape}) == 4 for shape, _ in classes)


def test_unseen_rows_are_inside_the_bounds_of_what_is_measured():
    rows = [row for seed in range(3) for row in suites.unseen(seed)]
    assert all(suites.fits(row) for row in rows)
    assert all(8 <= row.shape.num_query_heads <= 128 and 1 <= row.shape.queries_per_kv <= 16 for row in rows)
    known = {row.lens for name in ("peers", "serving", "tuning") for row in suite(name)}
    assert not known & {row.lens for row in rows if len(row.lens) > 1}
