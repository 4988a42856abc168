"""A table of measured winners: found by key, absolute, named once where it is none, old or another's."""

import dataclasses
import importlib
import json
import os
import types
import warnings
from dataclasses import dataclass

import pytest

from common import gpus
from common.serving.choice import OF_THIS_GPU, UNTUNED, Family
from common.serving.measured import LABEL, built, key, stamp
from common.spec import AttentionShape
from common.spec.metadata import BatchStats

SHAPE, H200 = AttentionShape(), gpus.resolve("h200")
TIMED = BatchStats.of([(1, 4096)] * 8)
SOURCE = '"""Doc."""\n\nfrom fake import below\n\n\ndef launch(x):\n    """Doc."""\n    return below.twice(x)  # why\n'


@dataclass(frozen=True)
class Part:
    tile_size: int = 64
    num_segments: int = 1


@dataclass(frozen=True)
class Config:
    prefill: Part = Part(128)
    decode: Part = Part()


def winner(**changes):
    plain = {"row": "w0", "kernel": "able", "configs": {"able": {"tile_size": 32, "num_segments": 6}}}
    return plain | {"us": 90.0, "rules_us": 100.0} | changes


@pytest.fixture
def fake(tmp_path):
    """(family, write): two kernels of Part, rules that take `plain`, and a table of what `write` is given."""
    kernels = tmp_path / "fake"
    (kernels / "heuristics" / "fitted").mkdir(parents=True)
    for name in ("plain", "able"):
        (kernels / f"{name}.py").write_text(SOURCE)
    (kernels / "below.py").write_text("def twice(x):\n    return 2 * x\n")
    rules = types.SimpleNamespace(
        auto_kernel=lambda *_: "plain",
        auto=lambda *_: ("plain", Part(16)),
        plain=lambda *_: Part(16),
        able=lambda *_: Part(8),
    )
    modules = {name: types.SimpleNamespace(SUPPORTS=frozenset(), DEFAULT=Part()) for name in ("plain", "able")}
    modules |= {"heuristics.generic.default": rules}
    modules |= {"heuristics.fitted": types.SimpleNamespace(__path__=[str(kernels / "heuristics" / "fitted")])}

    def write(winners, **changes):
        sources = {name: stamp(kernels, name) for name in ("plain", "able")}
        plain = {"label": LABEL, "dsl": "fake", "gpu": H200.title, "provenance": {"commit": "abc", "rows": 3}}
        plain |= {"sources": sources, "winners": winners} | changes
        (kernels / "heuristics" / "fitted" / "h200.json").write_text(json.dumps(plain))

    return Family("fake", ("plain", "able"), modules.__getitem__, recorded=None), write, kernels


def test_the_winner_of_a_key_comes_before_the_rules(fake):
    family, write, _ = fake
    write({key(SHAPE, TIMED): winner()})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = family.choose(SHAPE, TIMED, H200)
        near = family.choose(SHAPE, BatchStats.of([(1, 3800)] * 8), H200)
        others = [family.choose(SHAPE, BatchStats.of(lens), H200) for lens in ([(1, 4096)] * 11, [(2, 4096)] * 8)]
        named = family.named("able", SHAPE, TIMED, H200), family.named("plain", SHAPE, TIMED, H200)
        rules = family.choose(SHAPE, TIMED, H200, heuristics="default")
    assert (found.kernel, found.config, found.measured) == ("able", Part(32, 6), True)
    assert found.path == "heuristics/fitted/h200.json: measured on w0, 90.0 us, by the rules 100.0"
    assert found.provenance == "commit abc, rows 3" and near == found
    assert [one.config for one in (*others, rules)] == [Part(16)] * 3 and not rules.measured
    assert [one.config for one in named] == [Part(32, 6), Part(16)]


def test_what_a_capacity_reaches_has_the_winners_within_it(fake):
    family, write, _ = fake
    odd = BatchStats.of([(1, 5000)] * 5 + [(1, 100)] * 2)
    write({key(SHAPE, odd): winner(), key(SHAPE, BatchStats.of([(1, 64)] * 99)): winner(row="beyond")})
    reached = [choice.path for choice in family.reachable(SHAPE, H200, 64, 8, 8192) if choice.measured]
    assert len(reached) == 1 and "measured on w0" in reached[0]
    assert family.choose(SHAPE, odd, H200).measured


def test_a_config_of_the_rules_kernel_alone_changes_no_kernel(fake):
    family, write, _ = fake
    write({key(SHAPE, TIMED): winner(kernel=None, configs={"plain": {"tile_size": 32, "num_segments": 2}})})
    found = family.choose(SHAPE, TIMED, H200)
    assert (found.kernel, found.config) == ("plain", Part(32, 2)) and found.measured


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


def test_nothing_of_a_config_comes_from_elsewhere():
    whole = dataclasses.asdict(Config(Part(16, 2), Part(32, 3)))
    assert built(Config(), whole) == Config(Part(16, 2), Part(32, 3))
    for bad in ({}, whole | {"younger": 1}, whole | {"decode": {"tile_size": 16}}):
        with pytest.raises(ValueError, match="found the fields"):
            built(Config(), bad)


BROKEN = {
    "no-json": "{",
    "another-project": '{"winners": {}}',
    "a-list": "[]",
    "another-gpu": {"gpu": "AMD Instinct MI300X"},
    "another-dsl": {"dsl": "helion"},
    "no-winner": {"winners": {key(SHAPE, TIMED): {"row": "w0"}}},
    "no-config": {"winners": {key(SHAPE, TIMED): winner(configs={})}},
    "older-member": {"winners": {key(SHAPE, TIMED): winner(configs={"able": {"tile_size": 32, "gone": 1}})}},
    "older-kernel": {"winners": {key(SHAPE, TIMED): winner(kernel="gone", configs={"gone": {}})}},
}


@pytest.mark.parametrize("found", BROKEN.values(), ids=BROKEN)
def test_a_table_that_is_none_is_named_once_and_the_rules_answer(fake, found):
    family, write, kernels = fake
    if isinstance(found, str):
        (kernels / "heuristics" / "fitted" / "h200.json").write_text(found)
    else:
        write(**{"winners": {}} | found)
    with pytest.warns(
        UserWarning, match=r"fake: heuristics/fitted/h200.json (is no table of its kind|has no answer)"
    ) as said:
        for stats in (TIMED, BatchStats.of([(1, 64)]), TIMED):
            family._chosen.clear()
            assert family.choose(SHAPE, stats, H200).config == Part(16)
    assert len(said) == 1 and "untuned defaults are used; `python -m compare tune" in str(said[0].message)


def test_what_was_timed_with_other_code_is_named_once_and_not_used(fake):
    family, write, kernels = fake
    write({key(SHAPE, TIMED): winner()})
    (kernels / "below.py").write_text("def twice(x):\n    return x + x\n")
    with pytest.warns(UserWarning, match=r"h200.json is stale, timed with other code of plain, able") as said:
        found = family.choose(SHAPE, TIMED, H200), family.named("able", SHAPE, TIMED, H200)
    assert len(said) == 1 and [one.config for one in found] == [Part(16), Part(8)]


def test_a_stamp_is_of_code_and_not_of_words(fake):
    *_, kernels = fake
    before, path = stamp(kernels, "able"), kernels / "able.py"
    for text, same in (
        (SOURCE.replace("Doc.", "Other\nwords.").replace("  # why", ""), True),
        (SOURCE + "y = 2\n", False),
    ):
        path.write_text(text)
        os.utime(path, ns=(1, len(text)))
        assert (stamp(kernels, "able") == before) == same
    assert stamp(kernels, "none") == ""


@pytest.mark.parametrize(("written_on", "found"), [({"h200"}, OF_THIS_GPU), (set(), UNTUNED)])
def test_rules_that_were_written_on_the_gpu_need_no_table_and_no_warning(fake, written_on, found):
    family, *_ = fake
    family.load("heuristics.generic.default").WRITTEN_ON = written_on
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert family.choose(SHAPE, TIMED, H200).provenance == found
    assert len(said) == (found == UNTUNED)


def test_the_committed_tables_are_of_the_kernels_that_are_here():
    """Whatever `tune` installed: every key's configs can be built, and a stale one says so before a user meets it."""
    for dsl in ("triton", "helion"):
        family = importlib.import_module(f"dsl_{dsl}.auto").FAMILY
        for gpu in map(gpus.resolve, gpus.TABLE):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                table = family.table(gpu)
            assert not [one for one in said if "no table of its kind" in str(one.message)]
            for one in table.winners.values() if table else ():
                for name, plain in one.configs.items():
                    assert built(family.kernel(name).DEFAULT, plain)
