"""Measured winners: found by key, absolute, kept line by line, and what is none is said once."""

import dataclasses
import importlib
import json
import os
import types
import warnings
from dataclasses import dataclass

import pytest

from common import gpus
from common.serving import winners
from common.serving.choice import Family, Timed
from common.serving.stamps import stamp
from common.serving.winners import Winner, built, key
from common.spec import AttentionShape
from common.spec.metadata import BatchStats

SHAPE, H200 = AttentionShape(), gpus.resolve("h200")
TIMED = BatchStats.of([(1, 4096)] * 8)
SOURCE = '"""A."""\n\nfrom triton import below\n\n\ndef launch(x):\n    """A."""\n    return below.twice(x)  # why\n'


@dataclass(frozen=True)
class Part:
    tile_size: int = 64
    num_segments: int = 1


@dataclass(frozen=True)
class Config:
    prefill: Part = Part(128)
    decode: Part = Part()


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """The folder of two kernels; winners are kept beside it."""
    monkeypatch.setenv(winners.FOLDER, str(tmp_path / "cache"))
    found = tmp_path / "triton"
    (found / "heuristics" / "learned").mkdir(parents=True)
    for name in ("plain", "able"):
        (found / f"{name}.py").write_text(SOURCE)
    (found / "below.py").write_text("def twice(x):\n    return 2 * x\n")
    return found


def family(kernels):
    """Two kernels of Part, of which `plain` is taken."""
    modules = {
        name: types.SimpleNamespace(SUPPORTS=frozenset(), DEFAULT=Part(), default=lambda *_, size=size: Part(size))
        for name, size in (("plain", 16), ("able", 8))
    }
    modules |= {"heuristics": types.SimpleNamespace(__path__=[str(kernels / "heuristics")])}
    return Family("triton", ("plain", "able"), modules.__getitem__)


def winner(kernels, stats=TIMED, **changes):
    plain = {"key": key(SHAPE, stats), "of": "auto", "kernel": "able", "config": {"tile_size": 32, "num_segments": 6}}
    plain |= {"us": 90.0, "first_us": 100.0, "row": "w0"} | changes
    return Winner(**{"stamp": stamp(kernels, plain["kernel"])} | plain)


def file(gpu=H200):
    found = winners.path("triton", gpu)
    found.parent.mkdir(parents=True, exist_ok=True)
    return found


def test_the_winner_of_a_key_comes_before_the_rules(kernels):
    own = winner(kernels, of="able", config={"tile_size": 8, "num_segments": 2})
    winners.append(file(), winner(kernels), own)
    auto = family(kernels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = auto.choose(SHAPE, TIMED, H200)
        near = auto.choose(SHAPE, BatchStats.of([(1, 3800)] * 8), H200)
        others = [auto.choose(SHAPE, BatchStats.of(lens), H200) for lens in ([(1, 4096)] * 11, [(2, 4096)] * 8)]
        named = auto.named("able", SHAPE, TIMED, H200), auto.named("plain", SHAPE, TIMED, H200)
        rules = auto.choose(SHAPE, TIMED, H200, heuristics="default")
    assert (found.kernel, found.config, found.measured) == ("able", Part(32, 6), True)
    assert found.path == "measured on w0, 90.0 us, without it 100.0" and found.provenance == str(file())
    assert near == found
    assert [one.config for one in (*others, rules)] == [Part(16)] * 3 and not rules.measured
    assert [one.config for one in named] == [Part(8, 2), Part(16)]


def test_the_code_of_a_shipped_winner_is_compared_where_its_shape_is_asked_for(kernels):
    asked, plain = [], json.loads(json.dumps(dataclasses.asdict(winner(kernels))))
    own = dataclasses.replace(winner(kernels, row="own"), stamp="of the code")
    other = plain | {"key": key(dataclasses.replace(SHAPE, head_size=96), TIMED)}
    winners.append(file(), own)
    found = winners.Winners(file(), [plain, other], lambda name: asked.append(name) or "of the code")
    assert found.find("auto", SHAPE, TIMED).row == "own" and found.has(SHAPE) and len(asked) == 2
    assert not found.has(dataclasses.replace(SHAPE, head_size=32)) and len(asked) == 2
    assert len(found) == 1 and len(asked) == 3, "of another code"


def test_what_a_capacity_reaches_has_the_winners_within_it(kernels):
    odd = BatchStats.of([(1, 5000)] * 5 + [(1, 100)] * 2)
    beyond = winner(kernels, BatchStats.of([(1, 64)] * 99), row="beyond")
    winners.append(file(), winner(kernels, odd), beyond)
    auto = family(kernels)
    reached = [choice.path for choice in auto.reachable(SHAPE, H200, 64, 8, 8192) if choice.measured]
    assert len(reached) == 1 and "measured on w0" in reached[0]
    assert auto.choose(SHAPE, odd, H200).measured


def test_the_last_line_of_a_key_counts_and_a_torn_one_costs_itself_alone(kernels):
    winners.append(file(), winner(kernels))
    with file().open("a") as torn:
        torn.write('{"key": "32:8')
    winners.append(file(), winner(kernels, config={"tile_size": 128, "num_segments": 2}))
    with pytest.warns(UserWarning, match="ignored 1 lines that are no winners") as said:
        assert family(kernels).choose(SHAPE, TIMED, H200).config == Part(128, 2)
    assert len(said) == 1


def test_the_fastest_is_kept_for_this_process_and_the_next(kernels):
    auto = family(kernels)
    first = auto.choose(SHAPE, TIMED, H200)
    other = dataclasses.replace(first, kernel="able", config=Part(32, 4))
    auto.keep_times(SHAPE, TIMED, H200, [Timed(first, 100.0), Timed(other, 90.0)], "here")
    for one in (auto, family(kernels)):
        found = one.choose(SHAPE, TIMED, H200)
        assert (found.kernel, found.config) == ("able", Part(32, 4)) and one.is_measured(SHAPE, TIMED, H200)


@pytest.mark.parametrize(("us", "kept"), [(99.0, "plain"), (97.0, "able"), (None, "plain")])
def test_what_is_not_faster_by_more_than_noise_changes_nothing(kernels, us, kept):
    auto = family(kernels)
    first = auto.choose(SHAPE, TIMED, H200)
    other = dataclasses.replace(first, kernel="able", config=Part(32, 4))
    auto.keep_times(SHAPE, TIMED, H200, [Timed(first, 100.0), Timed(other, us)], "here")
    assert auto.choose(SHAPE, TIMED, H200).kernel == kept and auto.is_measured(SHAPE, TIMED, H200)


def test_a_folder_that_cannot_be_written_is_said_and_the_process_has_the_winner(kernels, monkeypatch, tmp_path):
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv(winners.FOLDER, str(tmp_path / "taken"))
    auto = family(kernels)
    first = auto.choose(SHAPE, TIMED, H200)
    with pytest.warns(UserWarning, match="cannot be written"):
        auto.keep_times(SHAPE, TIMED, H200, [Timed(first, 1.0)], "here")
    assert auto.choose(SHAPE, TIMED, H200).measured


def test_without_a_folder_nothing_is_written(kernels, monkeypatch, tmp_path):
    monkeypatch.setenv(winners.FOLDER, "0")
    auto = family(kernels)
    auto.keep_times(SHAPE, TIMED, H200, [Timed(auto.choose(SHAPE, TIMED, H200), 1.0)], "here")
    assert auto.choose(SHAPE, TIMED, H200).measured and not (tmp_path / "cache").exists()


@pytest.mark.parametrize("other", [
    {"head_size": 64}, {"num_kv_heads": 4}, {"block_size": 32}, {"dtype": "float16"}, {"value_size": 64},
    {"kv_dtype": "int8"},
], ids=str)  # fmt: skip
def test_another_shape_is_another_key(other):
    shape = AttentionShape.from_dict(SHAPE.to_dict() | other)
    assert key(shape, TIMED) != key(SHAPE, TIMED)


def test_a_key_has_steps_of_at_most_a_quarter_and_none_among_few():
    few = [key(SHAPE, BatchStats.of([(q, 4096)] * n)) for n in range(1, 9) for q in range(1, 9)]
    assert len(set(few)) == 64
    assert key(SHAPE, BatchStats.of([(1, 4096)] * 33)) == key(SHAPE, BatchStats.of([(1, 4096)] * 40))
    assert key(SHAPE, BatchStats.of([(1, 4096)] + [(1, 512)] * 7)) != key(SHAPE, TIMED)
    assert key(SHAPE, BatchStats.of([(1, 9)])) == "32:8:128 16 bfloat16 bfloat16 | 1 1 1 1 10 8"


@pytest.mark.parametrize("lens", [[(1, 4096)] * 11, [(7, 900)] * 3 + [(1, 5)], [(1, 1)]])
def test_the_sizes_of_a_key_have_that_key(lens):
    at = key(SHAPE, BatchStats.of(lens))
    assert key(SHAPE, winners.stats_of(at)) == at


def test_nothing_of_a_config_comes_from_elsewhere():
    whole = dataclasses.asdict(Config(Part(16, 2), Part(32, 3)))
    assert built(Config(), whole) == Config(Part(16, 2), Part(32, 3))
    for bad in ({}, whole | {"younger": 1}, whole | {"decode": {"tile_size": 16}}):
        with pytest.raises(ValueError, match="found the fields"):
            built(Config(), bad)
    for bad in (7, {"tile_size": "16", "num_segments": 1}, {"tile_size": -1, "num_segments": 1}, None):
        with pytest.raises(ValueError, match="allowed what is like"):
            built(Config(), whole | {"decode": bad})


BROKEN = {
    "no-json": "{", "a-list": "[]", "another-project": '{"winners": {}}', "no-text": b"\xff\xfe",
    "half-a-line": '{"key": "32:8:128", "of": "auto"}', "another-key": {"key": "nonsense"},
    "a-text-for-a-time": {"us": "fast"}, "older-member": {"config": {"tile_size": 32, "gone": 1}},
}  # fmt: skip


@pytest.mark.parametrize("found", BROKEN.values(), ids=BROKEN)
def test_a_line_that_is_no_winner_is_named_once_and_the_rules_answer(kernels, found):
    if isinstance(found, dict):
        found = json.dumps(dataclasses.asdict(winner(kernels)) | found)
    file().write_bytes(found if isinstance(found, bytes) else found.encode())
    auto = family(kernels)
    with pytest.warns(UserWarning, match=r"no winners|ignored the winner of w0") as said:
        for stats in (TIMED, BatchStats.of([(1, 64)]), TIMED):
            auto._chosen.clear()
            assert auto.choose(SHAPE, stats, H200).config == Part(16)
    assert len(said) == 1


def test_a_file_that_others_may_write_to_is_left_out(kernels):
    winners.append(file(), winner(kernels))
    file().chmod(0o666)
    with pytest.warns(UserWarning, match="somebody else may write to it"):
        assert family(kernels).choose(SHAPE, TIMED, H200).config == Part(16)


def test_what_was_timed_with_other_code_is_named_once_and_not_used(kernels):
    winners.append(file(), winner(kernels), winner(kernels, of="able"))
    (kernels / "below.py").write_text("def twice(x):\n    return x + x\n")
    auto = family(kernels)
    with pytest.warns(UserWarning, match="ignored times of older code of able") as said:
        found = auto.choose(SHAPE, TIMED, H200), auto.named("able", SHAPE, TIMED, H200)
    assert len(said) == 1 and [one.config for one in found] == [Part(16), Part(8)]


def test_a_kernel_that_is_gone_is_other_code(kernels):
    winners.append(file(), winner(kernels, kernel="gone", stamp="0" * 16))
    with pytest.warns(UserWarning, match="older code of gone"):
        assert family(kernels).choose(SHAPE, TIMED, H200).config == Part(16)


def test_a_stamp_is_of_code_and_not_of_words(kernels):
    before, path = stamp(kernels, "able"), kernels / "able.py"
    for text, same in (
        (SOURCE.replace("A.", "Other\nwords.").replace("  # why", ""), True),
        (SOURCE + "y = 2\n", False),
    ):
        path.write_text(text)
        os.utime(path, ns=(1, len(text)))
        assert (stamp(kernels, "able") == before) == same
    assert stamp(kernels, "none") == ""


def test_the_shipped_winners_are_of_the_kernels_that_are_here(monkeypatch):
    monkeypatch.setenv(winners.FOLDER, "0")
    for dsl in ("triton", "helion"):
        auto = importlib.import_module(f"dsl_{dsl}.auto").FAMILY
        for gpu in map(gpus.resolve, gpus.TABLE):
            for plain in ((known := auto.learned(gpu)) and known.winners) or ():
                one = Winner.of_plain(plain)
                assert built(auto.kernel(one.kernel).DEFAULT, one.config) and one.stamp == auto.stamp(one.kernel)
