"""What a decode over a cache of 8 bits must keep on sm_90: K and V asked for a tile ahead, and V no 16 bits in between.

An H200 took 146 us for a row whose bytes take 56: V went through shared memory once more, as 16 bits, four words to a
bank, and each tile was asked for when the one before was done.
"""

from dataclasses import asdict, replace

import pytest
import torch

from common.gpus import resolve
from common.spec import AttentionShape
from compare.competitors import registry
from compare.workloads import Ask
from compilations import compilation

H200 = resolve("h200")
SHAPE = AttentionShape(32, 8, 128, 16, torch.bfloat16, kv_dtype=torch.float8_e4m3fn)
DECODES = ((1, 4096),) * 32
BYTES_OF_16_LANES = 16 * 32  # a warp's 128-bit load
SMALL = 8  # stores to shared memory of a thread and tile: its part of P and of sums over warps, but no V (16)


def _job(kernel, config=None, scales="one"):
    return compilation(kernel, DECODES, SHAPE, config=config, ask=Ask(scales=scales))


def _ahead(kernel):
    """A config of 64 keys in five stages: two tiles of page ids and of K and V are ahead."""
    return asdict(replace(registry.load(kernel).DEFAULT, block_m=16, tile_size=64, num_warps=4, num_stages=5))


def _loops(outcomes):
    """(where, facts, loop) of every loop that multiplies few rows: those of m16n8k16."""
    for outcome in outcomes:
        assert outcome.status == "ok", f"{outcome.job.kernel}: {outcome.reason}"
        found = [(f, loop) for f in outcome.facts for loop in f["loops"] if loop["matrix"].get("HMMA 16816")]
        assert found, f"{outcome.job.kernel}: no product of few rows"
        for facts, loop in found:
            yield f"{outcome.job.kernel} {facts['kernel']} {outcome.config}", facts, loop


def _tiles_held(facts, loop):
    """Tiles of K and V, as a loop copies them, that the shared memory of a program holds."""
    return facts["shared_bytes"] // (loop["loads"]["128"] * BYTES_OF_16_LANES * facts["num_warps"])


def _faults(facts, loop):
    if loop["to_shared"] != sum(loop["loads"].values()):
        yield f"{loop['to_shared']} of the loads {loop['loads']} are asynchronous"
    if set(loop["loads"]) != {"128", "32"}:
        yield f"loads of {loop['loads']} bits: K and V by 16 bytes, page ids and scales by 4"
    if _tiles_held(facts, loop) < 2:
        yield f"{_tiles_held(facts, loop)} tile in {facts['shared_bytes']} B"
    if loop["shared_reads"].get("8"):
        yield f"{loop['shared_reads']['8']} bytes read one by one"
    if sum(loop["shared_writes"].values()) > SMALL:
        yield f"writes {loop['shared_writes']} to shared memory"


def _check(outcomes):
    bad = [f"{where}: {fault}" for where, facts, loop in _loops(outcomes) for fault in _faults(facts, loop)]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("kernel", ["triton/q_block", pytest.param("helion/parallel_softmax", marks=pytest.mark.slow)])
def test_a_tile_is_asked_for_while_they_work_on_another(compiled, kernel):
    _check(compiled(H200, _job(kernel, _ahead(kernel))))


@pytest.mark.slow
@pytest.mark.parametrize("dsl", ["triton", "helion"])
@pytest.mark.parametrize("scales", ["one", "tokens"])
def test_every_decode_does(compiled, dsl, scales):
    kernels = [f"{dsl}/{rung}" for rung in ("q_block", "parallel_softmax")]
    _check(compiled(H200, *(_job(kernel, _ahead(kernel), scales=scales) for kernel in kernels)))


def test_an_fp8_query_has_a_bound_of_registers(compiled):
    """The loop of a bf16 query, which converts K, keeps what it needs without one."""
    narrow = replace(SHAPE, dtype=torch.float8_e4m3fn)
    default = registry.load("triton/parallel_softmax").DEFAULT
    loads = {"tile_size": 32, "num_warps": 1, "num_stages": 5, "gather": "run", "registers": 240}
    config = asdict(replace(default, num_segments=7, **loads))
    (bound,) = compiled(H200, compilation("triton/parallel_softmax", DECODES, narrow, config, ask=Ask(scales="one")))
    segments = next(facts for facts in bound.facts if facts["kernel"] == "_segments_kernel")
    assert segments["registers"] <= bound.config["registers"] == 240 and not segments["spill_bytes"]


def test_three_stages_hold_one_tile_and_are_seen(compiled):
    config = {"block_m": 16, "tile_size": 128, "num_warps": 4, "num_stages": 3}
    faults = [list(_faults(facts, loop)) for _, facts, loop in _loops(compiled(H200, _job("triton/q_block", config)))]
    assert len(faults) == 2 and all(len(found) == 1 and found[0].startswith("1 tile in ") for found in faults)
