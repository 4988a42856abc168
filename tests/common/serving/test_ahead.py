"""A warm-up compiles in threads and makes the calls that bring a kernel (ahead_child.py)."""

import os
import sys
from pathlib import Path

import pytest
import torch

import children
from common import gpus
from common.serving import ahead, pack
from common.serving.ahead import Children, Work
from common.serving.points import points, prompts
from common.spec import AttentionShape, Features
from dsls import HELION_SLOWLY

HERE = Path(__file__).resolve().parent


def warmed(tmp_path, *words):
    environment = children.compiling(
        HERE.parents[2], *sys.path, PYTHONWARNINGS="ignore", TRITON_CACHE_DIR=str(tmp_path)
    )
    return children.answer([str(HERE / "ahead_child.py"), *words], environment)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """What a first warm-up of Triton's kernels left in a folder, and what it said."""
    folder = tmp_path_factory.mktemp("first")
    return folder, warmed(folder, "triton")


@pytest.mark.parametrize("dsl", HELION_SLOWLY)
def test_threads_compile_all_of_a_warm_up_and_calls_that_bring_a_kernel_are_made(dsl, first, tmp_path):
    """Such a call may launch a reduction that another brought."""
    said = first[1] if dsl == "triton" else warmed(tmp_path, dsl)
    assert said["here"] == [] and len(said["threads"]) >= 2
    once, again = said["launched"]
    assert once == again  # the second plan's kernels are in this process already
    assert said["calls"] > once >= len(said["threads"])


def test_with_packed_code_a_warm_up_compiles_nothing(first, tmp_path):
    """Triton's own compiler and cache, for an H200 that is not here."""
    folder, said = first
    pack.pack(folder, file := tmp_path / "a.pack", made := {"gpu": "h200"})
    pack.unpack(file, there := tmp_path / "second", made)
    second = warmed(there, "triton")
    assert len(said["made"]) == len(said["threads"]) and second["made"] == []
    assert second["launched"] == said["launched"] and any(there.iterdir())


def test_a_kernel_that_does_not_compile_raises_from_the_warm_up_what_the_compiler_said(tmp_path):
    said = warmed(tmp_path, "triton", "_segments")
    assert said["raised"] == "no such instruction" and said["launched"] == []
    assert set(said["threads"]) - {"_segments_kernel"}, "the others are compiled"


def work_of(planner, **features):
    sizes = [1, 2], [1, 2, 4, 8, 16, 32, 64]
    stated = [(list(points(*sizes)), False), (list(prompts(*sizes, [2, 4, 8, 16, 32])), True)]
    shape = AttentionShape(8, 2, 64, 16, torch.bfloat16)
    return Work(planner, None, shape, Features(**features), (32, 2, 64), 4, stated, gpus.resolve("h200"))


def shared_by(count, *works):
    begun = Children(count)
    for work in works:
        begun.add(work)
    return begun


@pytest.mark.parametrize("dsl", HELION_SLOWLY)
def test_what_children_compiled_for_an_absent_gpu_is_what_a_warm_up_finds(dsl, tmp_path, monkeypatch):
    """Three processes; then the caches have all that ahead_child.py asks for, and a second start begins none."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    work = work_of(f"dsl_{dsl}.auto")
    assert shared_by(3, work).end(300) and len(list(tmp_path.rglob("*.cubin"))) >= 2
    said = warmed(tmp_path, dsl)
    assert said["made"] == [] and len(said["threads"]) >= 2 and said["generated"] == 0
    again = shared_by(3, work)
    assert again._first is not None and again.end(300)
    again.keep()
    assert shared_by(3, work)._first is None


def test_children_take_the_works_of_several_kinds_of_layers(tmp_path, monkeypatch):
    """With a sink for each head, with a window too, and without either: each has code of its own."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    sinks = {"sinks": torch.zeros(8)}
    works = [work_of("dsl_triton.auto", **one) for one in (sinks, sinks | {"sliding_window": 16}, {})]
    assert len({work.key for work in works}) == 3
    counts = []
    for some in (works[:1], works):
        assert shared_by(3, *some).end(300)
        counts.append(len(list(tmp_path.rglob("*.cubin"))))
    assert counts[1] > counts[0] + 2


def test_a_tensor_with_an_entry_per_page_or_sequence_has_no_stand_in():
    heads = ahead.stand_ins(Features(sinks=torch.ones(8), key_scale=torch.ones(1)))
    assert heads.sinks.tolist() == [0.0] * 8 and heads.key_scale.tolist() == [0.0]
    assert ahead.stand_ins(Features(key_scale=torch.ones(2, 16, 8))) is None
    assert ahead.stand_ins(Features(causal_per_sequence=torch.ones(2, dtype=torch.int32))) is None


def test_all_forks_work_and_one_that_fails_is_told(tmp_path):
    first = os.getpid()
    ahead._in_forks(lambda: (tmp_path / str(os.getpid())).touch(), 2)
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(RuntimeError, match="2 of 2 forks"):
        ahead._in_forks(lambda: 1 // (os.getpid() == first), 2)


@pytest.mark.parametrize(
    ("planner", "keeper"),
    [
        ("dsl_helion.auto", "dsl_helion.kept"),
        ("diptych.dsl_helion.auto", "dsl_helion.kept"),
        ("dsl_triton.native.auto", None),
    ],
)
def test_a_package_says_what_keeps_its_code_under_either_name(planner, keeper):
    assert ahead.keeper_of(planner) == keeper


def test_no_process_generates_what_nobody_finds(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("DIPTYCH_HELION_CACHE", "0")
    assert not ahead.is_kept("dsl_helion.auto") and ahead.is_kept("dsl_triton.auto")
    assert shared_by(3, work_of("dsl_helion.auto"))._first is None


def test_each_key_is_taken_by_one(tmp_path):
    one, other = ahead._Claims(tmp_path), ahead._Claims(tmp_path)
    assert [one("a"), other("a"), other("b"), one("b"), one("a"), other("b")] == [1, 0, 1, 0, 1, 1]


def test_children_that_die_or_take_too_long_are_told_and_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert not shared_by(1, work_of("dsl_triton.nothing")).end()
    slow = shared_by(1, work_of("dsl_triton.nothing"))
    assert not slow.end(0.01) and slow.end()  # nobody is left


@pytest.mark.parametrize("dsl", HELION_SLOWLY)
@pytest.mark.parametrize(
    ("kernel", "capacity"),
    [
        ("auto", (1024, 2, 1024)),
        ("static_grid", (2100, 40, 4096)),
        *(pytest.param("auto", n, marks=pytest.mark.slow) for n in ((300, 7, 700), (64, 8, 4096))),
        *(pytest.param(name, (300, 40, 700), marks=pytest.mark.slow) for name in ("q_block", "unpaged", "split")),
    ],
    ids=str,
)
def test_a_trace_binds_nothing_that_the_warm_up_did_not(dsl, kernel, capacity):
    """A short query beside one of 20 tokens once met partial results that no warm-up had laid by token; a static grid
    of few places once was a constant of its kernel (warm_up_child.py)."""
    environment = children.compiling(HERE.parents[2], *sys.path, PYTHONWARNINGS="ignore")
    said = children.answer([str(HERE / "warm_up_child.py"), dsl, kernel, *map(str, capacity)], environment)
    assert said["warm"] > (10 if kernel == "auto" else 0) and said["lacked"] == []
