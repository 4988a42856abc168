import pytest
import torch

from common.spec import SpecError
from compare.workloads import GrammarError, Workload, parse_lens, parse_shape, suites
from compare.workloads.suites import pick, suite

MALFORMED = {
    "99999999999q1s2k": "99999999999q1s2k", "2q1s2k_q1s2097152k": "q1s2097152k", "": "", "q": "q", "q1s2kk": "q1s2kk",
    "32x1s2k": "32x1s2k", "q1s2k_": "", "q1s2k__q3": "", "0q1s2k": "0q1s2k", "q5s3": "q5s3",
    "q1s2k_16q512s15": "16q512s15", "q1 s2k": "q1 s2k", "-1q1s4": "-1q1s4", "q1s2k,q3": "q1s2k,q3",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "lens"),
    [
        ("q1s2k", [(1, 2048)]),
        ("2q2k", [(2048, 2048)] * 2),
        ("3q1s2k_2q512s1536", [(1, 2048)] * 3 + [(512, 1536)] * 2),
        ("q4s8~", [(4, 8)]),
    ],
)
def test_grammar(text, lens):
    assert parse_lens(text) == tuple(lens)


@pytest.mark.parametrize(("text", "part"), MALFORMED.items(), ids=list(MALFORMED))
def test_malformed_grammar_shows_the_offending_part(text, part):
    with pytest.raises(GrammarError) as caught:
        parse_lens(text)
    message, shown, marks = str(caught.value).splitlines()
    assert repr(part) in message
    assert shown == f"  {text}"
    assert marks.count("^") == max(len(part), 1)
    assert text[marks.index("^") - 2 :].startswith(part)


def test_a_tilde_varies_lengths_and_keeps_the_longest_first():
    lens = parse_lens("32q1s2k~")
    assert lens[0] == (1, 2048)
    assert all(1024 <= n <= 2048 for _, n in lens)
    assert len({n for _, n in lens}) > 20
    assert parse_lens("8q4s4~") == ((4, 4),) * 8  # never below the query length


@pytest.mark.parametrize("text", ["32:8", "32:8:128:1", "a:b:c", "lama-3-8b"])
def test_a_shape_nobody_knows_is_refused(text):
    with pytest.raises(GrammarError, match="shape"):
        parse_shape(text, 16, "bf16")


def test_a_misspelt_model_gets_its_nearest_name_and_sizes_that_are_not_attention_are_refused_by_theirs():
    with pytest.raises(GrammarError, match="nearest: llama-3-8b"):
        parse_shape("lama-3-8b", 16, "bf16")
    with pytest.raises(SpecError, match="num_query_heads"):
        parse_shape("30:8:128", 16, "bf16")
    with pytest.raises(GrammarError, match="dtype"):
        parse_shape("32:8:128", 16, "fp8")


def test_every_row_survives_the_pipe_to_the_worker():
    for row in (row for name in suites.SUITES for row in suite(name)):
        for same in (row, row.with_new_kv()):
            assert Workload.from_dict(same.to_dict()) == same


def test_ids_follow_values_and_not_labels():
    row = suite("smoke")[0]
    renamed = Workload("other", row.lens, row.shape, row.ask, row.style, row.shared_pages, row.seed)
    assert renamed.id == row.id
    assert len({r.id for r in suite("smoke") + suite("peers") + suite("peers", seed=1)}) == 8 + 23 + 23
    assert row.with_new_kv().id != row.id
    assert suite("peers")[0].id == "402a9c4adea9ca50"  # what committed results call it


def test_smoke_is_what_was_decided():
    rows = suite("smoke")
    dtypes = [row.shape.dtype for row in rows]
    assert len(rows) == 8
    assert all(dtypes.count(dtype) >= 2 for dtype in (torch.float16, torch.bfloat16, torch.float32))
    assert any(row.style == "interleaved" for row in rows) and any(row.shared_pages for row in rows)
    assert any(row.ask.sliding_window == 17 for row in rows) and any(not row.ask.causal for row in rows)


@pytest.mark.parametrize(("batch", "longest", "label"), [(8, 512, "8q1s512~"), (32, 32768, "32q1s32k~")])
def test_peers_has_the_published_lengths(batch, longest, label):
    (row,) = pick(suite("peers"), label)
    g = torch.Generator().manual_seed(1000 + batch)
    lengths = (torch.rand(batch, generator=g) * 0.5 + 0.5).mul(longest).long()
    lengths[0] = longest
    assert [seq_len for _, seq_len in row.lens] == lengths.tolist()


def test_peers_has_the_published_prompts():
    (row,) = pick(suite("peers"), "8q1k~")
    lengths = (torch.rand(8, generator=torch.Generator().manual_seed(77)) * 0.5 + 0.5).mul(1024).long().tolist()
    assert row.lens == tuple((n, n) for n in [1024, *lengths[1:]])


def test_peers_classes():
    kinds = [row.kind for row in suite("peers")]
    wanted = {"decode": 16, "speculative": 1, "prefill": 5, "mixed": 1}
    assert {kind: kinds.count(kind) for kind in set(kinds)} == wanted


def test_a_seed_moves_values_only():
    first, second = suite("peers", 0), suite("peers", 5)
    assert [row.lens for row in first] == [row.lens for row in second]
    assert all(a.id != b.id for a, b in zip(first, second, strict=True))


def test_unknown_names_come_with_the_nearest():
    with pytest.raises(GrammarError, match="nearest: peers"):
        suite("peer")
    with pytest.raises(GrammarError, match=r"nearest: .*window-17"):
        pick(suite("smoke"), "windw-17")


def test_labels_are_unique_in_a_suite():
    for name in suites.SUITES:
        labels = [row.label for row in suite(name)]
        assert len(set(labels)) == len(labels)
