"""What the compiled code of every choice must keep: no spills, no product twice, wide loads, room for two programs.

The choice is what an untuned user of the GPU gets, or the tree where the GPU has one. On AMD nothing may spill. On
NVIDIA spills are reported and not refused: a config that was chosen by its time may keep a few bytes in local memory
(the fastest prefill shape of an H200 does), and ptxas spills single words below its limit to gain occupancy.
"""

import pytest
import torch

from common.gpus import resolve
from common.spec import AttentionShape
from compare.competitors import registry
from compare.static.compile import compile_in_child
from compare.workloads import Ask
from compilations import compilation

BATCHES = {
    "decode-8x2k": ((1, 2048),) * 8,
    "decode-128x2k": ((1, 2048),) * 128,
    "decode-1x32k": ((1, 32768),),
    "verify-32x4": ((4, 4096),) * 32,
    "prefill-2k": ((2048, 2048),),
    "mixed": ((1, 2048),) * 4 + ((512, 1536),) * 4,
}

WITH_NEW_KV = {"prefill-2k", "mixed"}  # kernels that read the step's new K and V hold tiles of them too
MULTIPLY = ("q_block_kernel", "prefill_kernel", "decode_kernel", "segments_kernel", "long_queries_kernel")
MULTIPLY += ("unpaged_kernel", "attend_items_kernel")
REDUNDANT = 1.05  # of the products' work, what the waves of a program may issue
NARROW = ("8", "16")  # bits of a lane's load in a loop over keys: a 16-byte row read in eight instructions
# Without TMA Triton 3.7.1 takes what a tensor descriptor addresses for aligned to 2 bytes; auto goes round it.
NARROW_BY_DESCRIPTORS = "_unpaged_kernel"
WITHOUT_TMA = ("gfx", "sm_80", "sm_89")
# Helion's loop over a static grid keeps three loops of 256 lanes alive: 370 registers, one program a unit.
ONE_PROGRAM = {("_helion__attend_items_kernel", 256)}


def _job(kernel, head_size, batch, large_cache=False):
    shape = AttentionShape(32, 8, head_size, 16, torch.bfloat16)
    return compilation(kernel, BATCHES[batch], shape, new_kv=batch in WITH_NEW_KV, large_cache=large_cache)


def _multiplies(facts):
    return facts["kernel"].endswith(MULTIPLY) and "reduce" not in facts["kernel"]


def _faults(facts, gpu, head_size):
    """What is wrong with one compiled function."""
    amd = gpu.vendor == "amd"
    if amd and facts["scratch_bytes"]:  # without any a register went to an accumulation register, not to memory
        yield f"{facts['spills']} spills, {facts['scratch_bytes']} B scratch"
    if facts["lost_descriptors"]:
        yield f"ptxas has lost {facts['lost_descriptors']} operands of products"
    if not _multiplies(facts):
        return
    if not sum(facts["matrix"].values()):
        yield "no matrix instruction"
    if facts["matrix_redundancy"] is not None and facts["matrix_redundancy"] > REDUNDANT:
        yield f"issues {facts['matrix_redundancy']:.2f} times the work of its products"
    for loop in facts["loops"]:
        narrow = sum(loop["loads"].get(bits, 0) for bits in NARROW)
        expected = gpu.arch.startswith(WITHOUT_TMA) and facts["kernel"] == NARROW_BY_DESCRIPTORS
        if loop["matrix"] and narrow and not expected:
            yield f"{narrow} loads of at most 2 bytes a lane in a loop over keys"
    if not facts["loads"].get("128") and "tma" not in facts["loads"]:
        yield "no 128-bit load"
    held = facts["occupancy"]["programs"] * gpu.units
    if facts["kernel"].endswith("attend_items_kernel") and facts["grid"][0] > held:  # the last begin behind the others
        yield f"a static grid of {facts['grid'][0]} programs, of which the GPU holds {held}"
    if amd and facts["occupancy"]["programs"] < 2 and (facts["kernel"], head_size) not in ONE_PROGRAM:
        yield f"a unit holds {facts['occupancy']['programs']} program, for {facts['occupancy']['limit']}"


def _check(gpu, jobs):
    """One child per target; a kernel that could not launch (too much LDS) comes back as compile_error: a fault too."""
    bad, seen = [], 0
    for outcome in compile_in_child(jobs, resolve(gpu)):
        job, row = outcome.job, outcome.job.workload
        where = f"{job.kernel} head {row.shape.head_size} {row.lens[0]}x{len(row.lens)} on {gpu}"
        if outcome.status != "ok":
            bad.append(f"{where}: {outcome.status}: {outcome.reason}")
        for facts in outcome.facts:
            seen += _multiplies(facts)
            faults = _faults(facts, resolve(gpu), row.shape.head_size)
            bad += [f"{where} {facts['kernel']}: {fault}; {outcome.config}" for fault in faults]
    assert not bad, "\n".join(bad)
    assert seen >= len({job.kernel for job in jobs if "naive" not in job.kernel})


@pytest.mark.parametrize(
    ("dsl", "rungs"),
    [
        ("triton", ("q_block", "static_grid", "unpaged")),
        pytest.param("helion", ("q_block",), marks=pytest.mark.slow),
    ],
)
def test_the_choices_for_an_mi300_hold(dsl, rungs):
    """The rungs whose code the others share; `auto` runs one of them. Helion generates and compiles static_grid and
    unpaged in 27 s, which the test of every choice does."""
    jobs = [_job(f"{dsl}/{rung}", 128, "prefill-2k") for rung in rungs]
    _check("mi300", [*jobs, _job(f"{dsl}/parallel_softmax", 128, "decode-8x2k", large_cache=True)])


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["mi300", "h200"])
@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_the_widest_head_neither_spills_nor_outgrows(dsl, gpu):
    kernels = [kernel for kernel in registry.OWN if kernel.startswith(dsl)]
    _check(gpu, [_job(kernel, 256, "prefill-2k") for kernel in kernels])


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["mi250", "mi300", "mi355", "a100", "h200", "b200"])
@pytest.mark.parametrize("kernel", registry.OWN)
def test_every_choice_holds_on_every_batch(kernel, gpu):
    """Also with a cache beyond 2 GiB, which AMD's compiler addresses by other instructions."""
    caches = (False, True) if resolve(gpu).vendor == "amd" else (False,)
    jobs = [
        _job(kernel, head_size, batch, large) for head_size in (64, 128, 256) for batch in BATCHES for large in caches
    ]
    _check(gpu, jobs)


def test_a_static_grid_of_more_programs_than_stay_is_seen():
    """Helion's took 198 registers by Triton 3.6.0: two programs a unit of an H200, and a grid for three."""
    job = ("triton/static_grid", BATCHES["decode-8x2k"], AttentionShape())
    part = {"block_m": 16, "tile_size": 64, "programs": 2000}
    config = {"decode": part, "prefill": {"block_m": 16, "tile_size": 16, "programs": 132}}
    outcome = next(iter(compile_in_child([compilation(*job, config)], resolve("h200"))))
    faults = [fault for facts in outcome.facts for fault in _faults(facts, resolve("h200"), 128)]
    assert [fault.partition(", of")[0] for fault in faults] == ["a static grid of 2000 programs"]


@pytest.mark.parametrize(
    "kernel", ["triton/static_grid", pytest.param("triton/adjustable_tile", marks=pytest.mark.slow)]
)
def test_a_prompt_over_int8_spills_in_no_loop_over_tiles_on_an_a100(kernel):
    """Q Blocks that read by runs: 63 accesses in one loop, 26 in the other."""
    shape = AttentionShape(32, 8, 128, 16, torch.bfloat16, kv_dtype=torch.int8)
    job = compilation(kernel, BATCHES["prefill-2k"], shape, ask=Ask(scales="tokens"))
    (outcome,) = compile_in_child([job], resolve("a100"))
    long_queries = next(facts for facts in outcome.facts if _multiplies(facts))
    spilled = [loop["spill_traffic"] for loop in long_queries["loops"] if sum(loop["matrix"].values())]
    assert long_queries["kernel"] in ("_attend_items_kernel", "_long_queries_kernel")
    assert len(spilled) == 2 and not any(spilled), (spilled, outcome.config)


def test_a_config_with_every_product_twice_is_seen():
    """64 rows for four waves: MFMA of 32 rows leaves two waves to repeat the others' score tile."""
    job = ("triton/q_block", BATCHES["prefill-2k"], AttentionShape())
    config = {"block_m": 64, "tile_size": 64, "num_warps": 4, "num_stages": 2}
    (outcome,) = compile_in_child([compilation(*job, config)], resolve("mi300"))
    (facts,) = outcome.facts
    assert facts["matrix_redundancy"] == 1.5
    faults = list(_faults(facts, resolve("mi300"), 128))
    assert any("1.50 times" in fault for fault in faults) and any("holds 1 program" in fault for fault in faults)


@pytest.mark.parametrize("kernel", ["triton/unpaged", pytest.param("helion/unpaged", marks=pytest.mark.slow)])
def test_a_prompts_queries_are_read_from_shared_memory_by_the_products(kernel):
    """Helion's rows had a third axis until they were loaded: 16 reads into registers and 52 waits a tile of 64 keys."""
    (outcome,) = compile_in_child([compilation(kernel, BATCHES["prefill-2k"], AttentionShape())], resolve("h200"))
    unpaged = next(facts for facts in outcome.facts if facts["kernel"].endswith("unpaged_kernel"))
    tiles = [loop for loop in unpaged["loops"] if loop["matrix"]]
    assert len(tiles) == 2 and all(not loop["shared_reads"] and loop["waits"] < 16 for loop in tiles)
