import importlib
from dataclasses import replace

import pytest

import compare.bench.arena
import fake_kernels
from common.spec.kernel import Precision
from common.spec.paged_batch import E4M3
from compare.bench import gate
from compare.bench.arena import Arena, page_sets
from compare.bench.gate import Rejected
from compare.bench.subject import Subject, failure, status_of
from compare.record.records import Status
from compare.workloads import Ask
from compare.workloads.suites import pick, suite

BF16 = pick(suite("smoke"), "ragged-decode")[0]


def judged(name, sets=(0, 1), row=BF16, pad_tokens=0):
    """The whole gate, as a timed cell meets it: before, and again on new values."""
    arena = Arena(row, 2, "cpu", pad_tokens)
    subject = Subject(f"fake_kernels:{name}", arena, None)

    def run():
        for number in sets:
            subject.launch(number)

    first = gate.before(arena, run, sets, Precision())
    arena.set_values(1)
    return gate.again(arena, run, sets, Precision(), first)


def test_an_honest_kernel_passes_on_every_set_of_pages_and_values():
    result = judged("honest")
    assert (result.page_sets, result.value_sets, result.bit_equal, result.contract) == (2, 2, True, "")
    assert 0.0 < max(result.worst.values()) <= 1.0


LIARS = {
    "lies": (Status.INCORRECT, "page set 0"),
    "remembers": (Status.INCORRECT, "expected"),
    "skips": (Status.INCORRECT, "found nan"),
    "skips_seven": (Status.INCORRECT, "1 elements are not written"),
    "dithers": (Status.NONDETERMINISTIC, "differ between two runs"),
    "overruns": (Status.INCORRECT, "wrote outside out_"),
    "eats_inputs": (Status.INCORRECT, "changed one of its inputs"),
}


@pytest.mark.parametrize("name", LIARS)
def test_a_liar_is_caught_and_named(name):
    importlib.reload(fake_kernels)  # some liars count their calls
    with pytest.raises(Rejected, match=LIARS[name][1]) as caught:
        judged(name, sets=(0, 1) if name in ("lies", "remembers") else (0,))
    assert caught.value.status is LIARS[name][0]


def test_an_lse_of_other_bits_is_nondeterministic():
    importlib.reload(fake_kernels)
    arena = Arena(BF16, 1, "cpu")
    subject = Subject("fake_kernels:dithers_in_its_lse", arena, None)
    first = gate.before(arena, lambda: subject.launch(0), (0,), Precision())
    with pytest.raises(Rejected, match="lse beside an LSE: page set 0: 1 elements differ") as caught:
        gate.with_lse(arena, lambda: subject.launch(0, arena.lse), 0, Precision(), first)
    assert caught.value.status is Status.NONDETERMINISTIC


def test_what_one_kernel_spoiled_is_not_the_next_ones_fault():
    importlib.reload(fake_kernels)
    arena = Arena(BF16, 1, "cpu")
    for name, accepted in (("eats_inputs", False), ("honest", True), ("overruns", False), ("honest", True)):
        subject = Subject(f"fake_kernels:{name}", arena, None)
        try:
            gate.before(arena, lambda subject=subject: subject.launch(0), [0], Precision())
        except Rejected as refusal:
            assert not accepted, (name, refusal)
        else:
            assert accepted, name


def test_a_changed_tensor_of_a_feature_is_found_and_restored():
    row = replace(BF16, ask=Ask(alibi="linear"))
    with pytest.raises(Rejected, match="changed one of its inputs"):
        judged("eats_slopes", sets=(0,), row=row)
    arena = Arena(row, 1, "cpu")
    slopes = arena.features.alibi_slopes.clone()
    arena.features.alibi_slopes.zero_()
    arena.refill()
    assert arena.features.alibi_slopes.equal(slopes)


FP8_OUT = replace(BF16, ask=Ask(out_dtype=E4M3[0]))


def test_outputs_of_one_byte_are_judged_alike():
    importlib.reload(fake_kernels)
    assert judged("scaled", row=FP8_OUT, pad_tokens=2).bit_equal
    for name, said in (
        ("scaled_skips", "found nan"),
        ("scaled_skips_seven", "1 elements are not written"),
        ("scaled_pads", "belong to no sequence"),
    ):
        with pytest.raises(Rejected, match=said):
            judged(name, sets=(0,), row=FP8_OUT, pad_tokens=2)


PROMPT = pick(suite("smoke"), "prefill-33")[0].with_new_kv()


def test_new_tokens_are_an_input_that_nobody_may_change_and_every_set_of_pages_holds():
    assert judged("honest", row=PROMPT).page_sets == judged("new_tokens_alone", row=PROMPT).value_sets == 2
    with pytest.raises(Rejected, match="changed one of its inputs"):
        judged("eats_new_tokens", row=PROMPT)


def test_rows_of_nobody_must_stay_as_they_were():
    assert judged("honest", pad_tokens=2).page_sets == 2
    with pytest.raises(Rejected, match="belong to no sequence"):
        judged("pads", pad_tokens=2)


@pytest.mark.parametrize("at_once", [2**28, 3000])
def test_page_sets_hold_the_same_values_on_other_pages(monkeypatch, at_once):
    monkeypatch.setattr(compare.bench.arena, "COPY_BYTES", at_once)
    arena = Arena(BF16, 3, "cpu")
    tables = [batch.block_table for batch in arena.batches]
    assert all(not tables[0].equal(table) for table in tables[1:])
    keys = [batch.key_cache[batch.block_table[2, :4].long()] for batch in arena.batches]
    assert all(gate.same_bits(keys[0], other) for other in keys[1:])


def test_values_come_back_when_asked_for_again():
    arena = Arena(BF16, 2, "cpu")
    before, first = arena.fingerprint(), arena.expected
    arena.set_values(1)
    assert arena.fingerprint() != before and not arena.expected.out.equal(first.out)
    arena.set_values(0)
    assert arena.fingerprint() == before and arena.expected is first


def test_a_cycle_reads_more_than_the_last_level_cache():
    (decode,) = pick(suite("peers"), "q1s512")
    assert page_sets(decode, 60 << 20) == 256  # 2 MiB each
    assert page_sets(decode, 256 << 20) == 512  # 4 x 256 MiB
    assert page_sets(pick(suite("peers"), "128q1s8k~")[0], 60 << 20) == 1


def test_keys_that_no_row_sees_are_not_held_often():
    (row,) = pick(suite("peers"), "128q1s8k~")
    seen = replace(row, ask=Ask(sliding_window=64), lens=((1, 131_072),) * 128)
    assert page_sets(seen, 60 << 20) == 1 < page_sets(replace(seen, lens=seen.lens[:1]), 60 << 20)


@pytest.mark.parametrize(
    ("name", "status"),
    [("refuses", Status.UNSUPPORTED), ("raises", Status.CRASH), ("no_features", Status.UNSUPPORTED)],
)
def test_an_exception_becomes_a_status(name, status):
    row = pick(suite("smoke"), "window-17")[0]
    with pytest.raises(Exception) as caught:
        judged(name, row=row)
    assert status_of(caught.value) is status
    told = failure(caught.value)
    assert told["reason"] and ("Traceback" in told["log_tail"]) == (status is Status.CRASH)
