"""Cross-compilation of both DSLs, in child processes; also the canaries of every private hook it stands on."""

import os
from pathlib import Path

import pytest
import torch

from common.batch import make_batch
from common.gpus import ARCHES, TABLE, resolve
from common.spec import AttentionShape, Features
from compare.compile_child import CompileJob, compile_in_child
from compare.crosscompile import CannotCompile, flatten, static_facts

SHAPE = AttentionShape(2, 1, 64, 64, torch.bfloat16)
LENS = ((64, 64),)
TRITON = "diptych_probe.triton_product"
HELION = "diptych_probe.helion_product"
BAD = "diptych_probe.misbehaves"


@pytest.fixture(autouse=True)
def _probes_are_importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "probes"), prepend=os.pathsep)


def _compile(gpu, *jobs, **options):
    outcomes = list(compile_in_child(jobs, resolve(gpu), **options))
    assert [outcome.job for outcome in outcomes] == list(jobs)
    return outcomes


def _ok(outcome):
    assert outcome.status == "ok", (outcome.reason, outcome.log_tail)
    (facts,) = outcome.facts
    return facts


@pytest.mark.parametrize("arch", ARCHES)
def test_both_dsls_compile_for_every_arch_of_the_table(arch):
    gpu = next(gpu for gpu in TABLE.values() if gpu.arch == arch)
    triton, helion = map(_ok, _compile(gpu.name, CompileJob(TRITON, LENS, SHAPE), CompileJob(HELION, LENS, SHAPE)))
    for facts in (triton, helion):
        assert facts["arch"] == arch
        assert facts["matrix"], "the products must run on matrix units"
        assert facts["registers"] > 0 and facts["code_bytes"] > 0 and len(facts["sha256"]) == 64
        assert (facts["spills"], facts["scratch_bytes"]) == (0, 0)
    assert set(triton["loads"]) & {"128", "64"}, "alignment and strides divisible by 16 must reach the compiler"
    assert "16" not in triton["loads"]
    assert helion["grid"] == [gpu.units], "a persistent grid has the target's units, not this machine's"


def test_arguments_are_opened_and_constants_dropped():
    """Three tensors and the scale; Q's strides are 128, 64 and K's 4096, 64, 64; a stride of 1 is a constant."""
    plain, sinks = map(
        _ok, _compile("h200", CompileJob(TRITON, LENS, SHAPE), CompileJob(TRITON, LENS, SHAPE, sinks=True))
    )
    assert plain["runtime_args"] == 3 + 1 + 2 + 3
    assert sinks["runtime_args"] == plain["runtime_args"] + 1
    assert sinks["sha256"] != plain["sha256"]


@pytest.mark.parametrize("gpu", ["mi300", "a100"])
def test_a_starved_kernel_is_seen_to_spill(gpu):
    big = {"rows": 128, "num_warps": 4, "waves_per_eu": 8, "maxnreg": 32}
    shape = AttentionShape(2, 1, 128, 64, torch.bfloat16)
    facts = _ok(_compile(gpu, CompileJob(TRITON, LENS, shape, config=big))[0])
    assert facts["spills"] > 20
    assert facts["spill_bytes"] >= 4 * facts["spills"] and facts["scratch_bytes"] > 0
    assert facts["dropped"] == (["maxnreg"] if gpu == "mi300" else ["waves_per_eu"])


@pytest.mark.parametrize(("gpu", "limit"), [("mi300", 64 * 1024), ("h200", 227 * 1024)])
def test_code_that_asks_for_more_shared_memory_than_there_is_does_not_pass(gpu, limit):
    shape = AttentionShape(2, 1, 256, 64, torch.bfloat16)
    (outcome,) = _compile(gpu, CompileJob(TRITON, LENS, shape, config={"rows": 256, "num_warps": 8}))
    assert outcome.status == "compile_error"
    assert f"shared memory, {gpu} has {limit} for a program" in outcome.reason
    assert outcome.facts[0]["shared_bytes"] > limit


def test_a_cache_beyond_2_gib_compiles_to_other_code_on_amd():
    near, far = map(
        _ok, _compile("mi300", CompileJob(TRITON, LENS, SHAPE), CompileJob(TRITON, LENS, SHAPE, large_cache=True))
    )
    assert near["sha256"] != far["sha256"]
    assert (near["cache"], far["cache"]) == ("within 2 GiB", "beyond 2 GiB")


def test_a_crash_or_an_exception_costs_one_job():
    jobs = [CompileJob(BAD, LENS, SHAPE, config={"how": how}) for how in ("raise", "abort", "refuse", "flood")]
    jobs += [CompileJob("no.such.module", LENS, SHAPE), CompileJob(TRITON, LENS, SHAPE)]
    raised, died, refused, flooded, missing, good = _compile("mi300", *jobs)
    assert (raised.status, raised.reason) == ("compile_error", "RuntimeError: no registers left")
    assert died.status == "crash" and "last words of the compiler" in died.log_tail
    assert refused.status == "unsupported"
    assert flooded.status == "ok" and flooded.facts == ()
    assert missing.status == "unavailable" and "no" in missing.reason
    _ok(good)
    assert good.config == {"rows": 32, "num_warps": 4, "waves_per_eu": 0, "maxnreg": None}


def test_a_hang_ends_at_its_limit(monkeypatch):
    monkeypatch.setattr("compare.compile_child.START_LIMIT_S", 25.0)
    jobs = [CompileJob(BAD, LENS, SHAPE, config={"how": how}) for how in ("refuse", "hang")]
    _, hung = _compile("mi300", *jobs, limit_s=1.0)
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
    from compare.helion_target import MissingHook, helion_as

    with helion_as(resolve("mi300")):
        assert compat.is_hip() and compat.supports_amd_cdna_tunables()
        assert not compat.supports_tf32_precision_on_amd() or compat._amd_base_arch() == "gfx942"
    assert not compat.is_hip()
    monkeypatch.delattr(compat, "_is_hip")
    with pytest.raises(MissingHook, match="_is_hip"), helion_as(resolve("mi300")):
        pass
