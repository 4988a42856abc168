"""Cross-compilation of both DSLs, in child processes; also the canaries of every private hook it stands on."""

import dataclasses
import os
from pathlib import Path

import pytest
import torch

from common.cases.batch import make_batch
from common.gpus import ARCHES, TABLE, resolve
from common.spec import AttentionShape, Features
from compare.static.compile import compile_in_child
from compare.static.crosscompile import CannotCompile, static_facts
from compare.static.jit import flatten
from compare.workloads import Ask
from compilations import compilation

SHAPE = AttentionShape(2, 1, 64, 64, torch.bfloat16)
LENS = ((64, 64),)
TRITON = "diptych_probe.triton_product"
HELION = "diptych_probe.helion_product"
BAD = "diptych_probe.misbehaves"


def _wide(head_size):
    return AttentionShape(2, 1, head_size, 64, torch.bfloat16)


STARVED = {"rows": 128, "num_warps": 4, "waves_per_eu": 8, "maxnreg": 32}
JOBS = {  # one child per target compiles all of them: its start costs more than most jobs
    "plain": compilation(TRITON, LENS, SHAPE),
    "sinks": compilation(TRITON, LENS, SHAPE, ask=Ask(sinks="drawn")),
    "beyond 2 GiB": compilation(TRITON, LENS, SHAPE, large_cache=True),
    "starved": compilation(TRITON, LENS, _wide(128), config=STARVED),
    "too big": compilation(TRITON, LENS, _wide(256), config={"rows": 256, "num_warps": 8}),
    "raises": compilation(BAD, LENS, SHAPE, config={"how": "raise"}),
    "dies": compilation(BAD, LENS, SHAPE, config={"how": "abort"}),
    "refuses": compilation(BAD, LENS, SHAPE, config={"how": "refuse"}),
    "floods": compilation(BAD, LENS, SHAPE, config={"how": "flood"}),
    "missing": compilation("no.such.module", LENS, SHAPE),
    "last": compilation(TRITON, LENS, SHAPE),
}


@pytest.fixture(scope="module", autouse=True)
def _probes_are_importable():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "support" / "probes"), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def mi300():
    """Each job is taken when the one before has its outcome, by whatever child."""
    taken = []

    def jobs():
        for job in JOBS.values():
            taken.append(job)
            yield job

    found = [(outcome, len(taken)) for outcome in compile_in_child(jobs(), resolve("mi300"))]
    assert [(outcome.job, count) for outcome, count in found] == [(job, n) for n, job in enumerate(JOBS.values(), 1)]
    return dict(zip(JOBS, (outcome for outcome, _ in found), strict=True))


@pytest.fixture(scope="module")
def a100(compiled):
    names = ("plain", "sinks", "starved")
    return dict(zip(names, compiled(resolve("a100"), *(JOBS[name] for name in names)), strict=True))


def _ok(outcome):
    assert outcome.status == "ok", (outcome.reason, outcome.log_tail)
    (facts,) = outcome.facts
    return facts


EVERY_DAY = {"gfx942"}


@pytest.mark.parametrize(
    "arch", [arch if arch in EVERY_DAY else pytest.param(arch, marks=pytest.mark.slow) for arch in ARCHES]
)
def test_both_dsls_compile_for_every_arch_of_the_table(compiled, arch):
    gpu = next(gpu for gpu in TABLE.values() if gpu.arch == arch)
    triton, helion = map(_ok, compiled(gpu, *(compilation(probe, LENS, SHAPE) for probe in (TRITON, HELION))))
    for facts in (triton, helion):
        assert facts["arch"] == arch
        assert facts["matrix"], "the products must run on matrix units"
        assert facts["registers"] > 0 and facts["code_bytes"] > 0 and len(facts["sha256"]) == 64
        assert (facts["spills"], facts["scratch_bytes"]) == (0, 0)
    assert set(triton["loads"]) & {"128", "64"}, "alignment and strides divisible by 16 must reach the compiler"
    assert "16" not in triton["loads"]
    assert helion["grid"] == [gpu.units], "a persistent grid has the target's units, not this machine's"


def test_arguments_are_opened_and_constants_dropped(a100):
    """Three tensors and the scale; Q's strides are 128, 64 and K's 4096, 64, 64; a stride of 1 is a constant."""
    plain, sinks = _ok(a100["plain"]), _ok(a100["sinks"])
    assert plain["runtime_args"] == 3 + 1 + 2 + 3
    assert sinks["runtime_args"] == plain["runtime_args"] + 1
    assert sinks["sha256"] != plain["sha256"]


@pytest.mark.parametrize(("gpu", "dropped"), [("mi300", "maxnreg"), ("a100", "waves_per_eu")])
def test_a_starved_kernel_is_seen_to_spill(gpu, dropped, request):
    facts = _ok(request.getfixturevalue(gpu)["starved"])
    assert facts["spills"] > 20
    assert facts["spill_bytes"] >= 4 * facts["spills"] and facts["scratch_bytes"] > 0
    assert facts["dropped"] == [dropped], "options that the target's compiler does not know are named"


def test_code_that_asks_for_more_shared_memory_than_there_is_does_not_pass(mi300):
    outcome = mi300["too big"]
    assert outcome.status == "compile_error"
    assert "shared memory, mi300 has 65536 for a program" in outcome.reason
    assert outcome.facts[0]["shared_bytes"] > 65536


def test_a_cache_beyond_2_gib_compiles_to_other_code_on_amd(mi300):
    near, far = _ok(mi300["plain"]), _ok(mi300["beyond 2 GiB"])
    assert near["sha256"] != far["sha256"]
    assert (near["cache"], far["cache"]) == ("within 2 GiB", "beyond 2 GiB")


def test_a_crash_or_an_exception_costs_one_job(mi300):
    assert (mi300["raises"].status, mi300["raises"].reason) == ("compile_error", "RuntimeError: no registers left")
    assert mi300["dies"].status == "crash" and "last words of the compiler" in mi300["dies"].log_tail
    assert mi300["refuses"].status == "unsupported"
    assert mi300["floods"].status == "ok" and mi300["floods"].facts == ()
    assert mi300["missing"].status == "unavailable" and "no" in mi300["missing"].reason
    assert mi300["last"].config == {"rows": 32, "num_warps": 4, "waves_per_eu": 0, "maxnreg": None}
    assert _ok(mi300["last"])["sha256"] == _ok(mi300["plain"])["sha256"], "the same job gives the same code"


def test_a_hang_ends_at_its_limit(monkeypatch):
    monkeypatch.setattr("compare.static.compile.START_LIMIT_S", 25.0)
    hang = compilation(BAD, LENS, SHAPE, config={"how": "hang"})
    _, hung = compile_in_child([JOBS["refuses"], hang], resolve("mi300"), limit_s=1.0)
    assert hung.status == "timeout" and "1 s" in hung.reason


def test_a_process_that_interprets_refuses():
    triton = pytest.importorskip("triton")
    if not triton.knobs.runtime.interpret:
        pytest.skip("this process compiles")
    with pytest.raises(CannotCompile, match="TRITON_INTERPRET"):
        static_facts(None, make_batch(LENS, SHAPE), Features(), None, resolve("mi300"))


def test_flatten_opens_tuples_and_drops_none():
    tensor = torch.empty(1)
    assert flatten((1, (None, 2.0), [tensor, (None,)])) == [1, 2.0, tensor]
    assert flatten(None) == []


def test_a_hook_that_helion_dropped_is_named(monkeypatch):
    compat = pytest.importorskip("helion._compat")
    from common.absent import MissingHook, helion_as

    with helion_as(resolve("mi355")):
        assert compat.is_hip() and compat.supports_amd_cdna_tunables()
        assert not compat.supports_tf32_precision_on_amd(), "only gfx942 multiplies tf32"
    monkeypatch.delattr(compat, "_is_hip")
    with pytest.raises(MissingHook, match="_is_hip"), helion_as(resolve("mi300")):
        pass


@pytest.mark.parametrize(("name", "arch"), [("rx7900xtx", "gfx906"), ("l40s", "sm_35")])
def test_an_arch_that_triton_cannot_compile_for_is_a_row_with_its_first_line(compiled, name, arch):
    gpu = dataclasses.replace(resolve(name), arch=arch)
    (outcome,) = compiled(gpu, compilation(TRITON, LENS, SHAPE))
    assert outcome.status == "compile_error" and outcome.facts == ()
    assert "Error: " in outcome.reason and "\n" not in outcome.reason
    assert outcome.log_tail, "the rest of the error is kept"
