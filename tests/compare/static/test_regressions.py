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
from compare.static.nvidia_code import lost_descriptors, parse
from compare.workloads import Ask
from compilations import compilation
from dsls import HELION_SLOWLY

BATCHES = {
    "decode-8x2k": ((1, 2048),) * 8, "decode-128x2k": ((1, 2048),) * 128, "decode-1x32k": ((1, 32768),),
    "verify-32x4": ((4, 4096),) * 32, "prefill-2k": ((2048, 2048),), "mixed": ((1, 2048),) * 4 + ((512, 1536),) * 4,
}  # fmt: skip

WITH_NEW_KV = {"prefill-2k", "mixed"}  # kernels that read the step's new K and V hold tiles of them too
MULTIPLY = ("q_block_kernel", "prefill_kernel", "decode_kernel", "segments_kernel", "long_queries_kernel")
GRIDS = ("attend_items_kernel", "attend_copied_kernel")
MULTIPLY += ("unpaged_kernel", *GRIDS)
REDUNDANT = 1.05  # of the products' work, what the waves of a program may issue
NARROW = ("8", "16")  # bits of a lane's load in a loop over keys: a 16-byte row read in eight instructions


def _job(kernel, head_size, batch, large_cache=False):
    shape = AttentionShape(32, 8, head_size, 16, torch.bfloat16)
    return compilation(kernel, BATCHES[batch], shape, new_kv=batch in WITH_NEW_KV, large_cache=large_cache)


def _multiplies(facts):
    return facts["kernel"].endswith(MULTIPLY) and "reduce" not in facts["kernel"]


def _faults(facts, gpu):
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
    repeats = facts["kernel"].endswith("attend_items_kernel")  # 16 rows by the warps of prompts: they wait for bytes
    if facts["matrix_redundancy"] is not None and facts["matrix_redundancy"] > REDUNDANT and not repeats:
        yield f"issues {facts['matrix_redundancy']:.2f} times the work of its products"
    for loop in facts["loops"]:
        narrow = sum(loop["loads"].get(bits, 0) for bits in NARROW)
        if loop["matrix"] and narrow:
            yield f"{narrow} loads of at most 2 bytes a lane in a loop over keys"
    if not facts["loads"].get("128") and "tma" not in facts["loads"]:
        yield "no 128-bit load"
    held = facts["occupancy"]["programs"] * gpu.units
    if facts["kernel"].endswith(GRIDS) and facts["grid"][0] > held:  # the last begin behind the others
        yield f"a static grid of {facts['grid'][0]} programs, of which the GPU holds {held}"
    if amd and facts["occupancy"]["programs"] < 2:
        yield f"a unit holds {facts['occupancy']['programs']} program, for {facts['occupancy']['limit']}"


def _check(compiled, gpu, jobs):
    """A kernel that could not launch (too much LDS) comes back as compile_error: a fault too."""
    bad, seen = [], 0
    for outcome in compiled(resolve(gpu), *jobs):
        job, row = outcome.job, outcome.job.workload
        where = f"{job.kernel} head {row.shape.head_size} {row.lens[0]}x{len(row.lens)} on {gpu}"
        if outcome.status != "ok":
            bad.append(f"{where}: {outcome.status}: {outcome.reason}")
        for facts in outcome.facts:
            seen += _multiplies(facts)
            faults = _faults(facts, resolve(gpu))
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
def test_the_choices_for_an_mi300_hold(compiled, dsl, rungs):
    """The rungs whose code the others share; `auto` runs one of them. Helion generates and compiles static_grid and
    unpaged in 27 s, which the test of every choice does."""
    jobs = [_job(f"{dsl}/{rung}", 128, "prefill-2k") for rung in rungs]
    _check(compiled, "mi300", [*jobs, _job(f"{dsl}/parallel_softmax", 128, "decode-8x2k", large_cache=True)])


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["mi300", "h200"])
@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_the_widest_head_neither_spills_nor_outgrows(compiled, dsl, gpu):
    kernels = [kernel for kernel in registry.OWN if kernel.startswith(dsl)]
    _check(compiled, gpu, [_job(kernel, 256, "prefill-2k") for kernel in kernels])


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["mi250", "mi300", "mi355", "a100", "h200", "b200"])
@pytest.mark.parametrize("kernel", registry.OWN)
def test_every_choice_holds_on_every_batch(compiled, kernel, gpu):
    """Also with a cache beyond 2 GiB, which AMD's compiler addresses by other instructions."""
    caches = (False, True) if resolve(gpu).vendor == "amd" else (False,)
    jobs = [
        _job(kernel, head_size, batch, large) for head_size in (64, 128, 256) for batch in BATCHES for large in caches
    ]
    _check(compiled, gpu, jobs)


def test_a_static_grid_of_more_programs_than_stay_is_seen(compiled):
    """Helion's took 198 registers by Triton 3.6.0: two programs a unit of an H200, and a grid for three."""
    job = ("triton/static_grid", BATCHES["decode-8x2k"], AttentionShape())
    part = {"block_m": 16, "tile_size": 64, "gather": "key"}
    config = {"decode": part, "prefill": part | {"tile_size": 16}, "programs": 2000}
    (outcome,) = compiled(resolve("h200"), compilation(*job, config))
    faults = [fault for facts in outcome.facts for fault in _faults(facts, resolve("h200"))]
    assert [fault.partition(", of")[0] for fault in faults] == ["a static grid of 2000 programs"]


@pytest.mark.parametrize(
    "kernel", ["triton/static_grid", pytest.param("triton/adjustable_tile", marks=pytest.mark.slow)]
)
def test_a_prompt_over_int8_spills_in_no_loop_over_tiles_on_an_a100(compiled, kernel):
    """Q Blocks that read by runs: 63 accesses in one loop, 26 in the other."""
    shape = AttentionShape(32, 8, 128, 16, torch.bfloat16, kv_dtype=torch.int8)
    job = compilation(kernel, BATCHES["prefill-2k"], shape, ask=Ask(scales="tokens"))
    (outcome,) = compiled(resolve("a100"), job)
    long_queries = next(facts for facts in outcome.facts if _multiplies(facts))
    spilled = [loop["spill_traffic"] for loop in long_queries["loops"] if sum(loop["matrix"].values())]
    assert long_queries["kernel"] in ("_attend_items_kernel", "_long_queries_kernel")
    assert len(spilled) >= 2 and not any(spilled), (spilled, outcome.config)


def test_a_config_with_every_product_twice_is_seen(compiled):
    """64 rows for four waves: MFMA of 32 rows leaves two waves to repeat the others' score tile."""
    job = ("triton/q_block", BATCHES["prefill-2k"], AttentionShape())
    config = {"block_m": 64, "tile_size": 64, "num_warps": 4, "num_stages": 2}
    (outcome,) = compiled(resolve("mi300"), compilation(*job, config))
    (facts,) = outcome.facts
    assert facts["matrix_redundancy"] == 1.5
    faults = list(_faults(facts, resolve("mi300")))
    assert any("1.50 times" in fault for fault in faults) and any("holds 1 program" in fault for fault in faults)


@pytest.mark.parametrize("dsl", HELION_SLOWLY)
@pytest.mark.parametrize("rung", ["parallel_softmax", "static_grid"])
def test_the_warps_of_a_draft_share_the_products_of_a_head_in_parts(compiled, dsl, rung):
    """With the rest of V last, its 16 lanes left no warp lanes of its own, and four warps made all products."""
    shape = AttentionShape(32, 8, 80, 16, torch.bfloat16)
    (outcome,) = compiled(resolve("h200"), compilation(f"{dsl}/{rung}", BATCHES["verify-32x4"], shape))
    (draft,) = [facts for facts in outcome.facts if _multiplies(facts)]
    assert draft["num_warps"] == 4 and 1 <= draft["matrix_redundancy"] < 1.2


@pytest.mark.parametrize("kernel", ["triton/unpaged", pytest.param("helion/unpaged", marks=pytest.mark.slow)])
def test_a_prompts_queries_are_read_from_shared_memory_by_the_products(compiled, kernel):
    """Helion's rows had a third axis until they were loaded: 16 reads into registers and 52 waits a tile of 64 keys."""
    (outcome,) = compiled(resolve("h200"), compilation(kernel, BATCHES["prefill-2k"], AttentionShape()))
    unpaged = next(facts for facts in outcome.facts if facts["kernel"].endswith("unpaged_kernel"))
    tiles = [loop for loop in unpaged["loops"] if loop["matrix"]]
    assert len(tiles) == 2 and all(not loop["shared_reads"] and loop["waits"] < 16 for loop in tiles)


@pytest.mark.parametrize("head_size", [64, *(pytest.param(size, marks=pytest.mark.slow) for size in (128, 256))])
@pytest.mark.parametrize("dsl", HELION_SLOWLY)
def test_no_sum_over_keys_is_one_of_fp8(compiled, dsl, head_size):
    """sm_90 sums products of fp8 in 14 bits, truncated. A sum over keys has `head_size` columns of V; one over lanes
    has the keys of a tile."""
    shape = AttentionShape(8, 2, head_size, 16, torch.float8_e4m3fn)
    (outcome,) = compiled(resolve("h200"), compilation(f"{dsl}/unpaged", ((512, 2048),), shape, ask=Ask(scales="one")))
    assert outcome.status == "ok", outcome.reason
    loops = [loop["matrix"] for facts in outcome.facts for loop in facts["loops"] if "unpaged" in facts["kernel"]]
    products = [{name.split()[0]: count for name, count in loop.items()} for loop in loops if loop]
    assert len(products) >= 2, "the loops over whole and over masked tiles"
    assert all(set(found) == {"QGMMA", "HGMMA"} for found in products)


@pytest.mark.parametrize("dsl", HELION_SLOWLY)
@pytest.mark.parametrize(("value_size", "widest"), [(200, 64), pytest.param(192, 128, marks=pytest.mark.slow)])
def test_rows_that_begin_between_multiples_of_16_bytes_are_read_in_narrower_words(compiled, dsl, value_size, widest):
    """K of 192 bytes with V of 200 behind it stopped an H200 with "misaligned address" when triton 3.6.0 read K 16
    bytes at a time. That the gather form is not `flat` tests/kernels says."""
    shape = AttentionShape(2, 1, 192, 16, torch.bfloat16, value_size, torch.float8_e4m3fn)
    config = {"block_m": 16, "tile_size": 32, "num_warps": 4, "num_stages": 2}
    config |= {"gather": "flat"} if dsl == "helion" else {}
    job = compilation(f"{dsl}/q_block", ((1, 40), (3, 70)), shape, config, style="interleaved")
    (outcome,) = compiled(resolve("h200"), job)
    assert outcome.status == "ok", (outcome.reason, outcome.log_tail)
    loops = [loop["loads"] for facts in outcome.facts for loop in facts["loops"] if loop["matrix"]]
    found = max(int(bits) for loads in loops for bits in loads)
    assert found <= widest if widest < 128 else found == widest


@pytest.mark.parametrize("dsl", HELION_SLOWLY)
def test_a_feature_that_is_off_is_no_argument_and_no_code(compiled, dsl):
    """Features travel as one argument, a NamedTuple or a dict."""
    shape, lens = AttentionShape(8, 2, 64, 16, torch.bfloat16), ((3, 70), (1, 40))
    asked = (Ask(), Ask(sliding_window=17, sinks="drawn"))
    outcomes = compiled(resolve("a100"), *(compilation(f"{dsl}/q_block", lens, shape, ask=ask) for ask in asked))
    assert {outcome.status for outcome in outcomes} == {"ok"}, [outcome.reason for outcome in outcomes]
    plain, more = (outcome.facts[0] for outcome in outcomes)
    assert more["runtime_args"] - plain["runtime_args"] == 2  # the window and the sinks' pointer, nothing else
    assert more["instructions"] > plain["instructions"]


# ptxas 12.8.93 forgets where a V of fewer lanes than K begins. Of a tile of 64 keys, K 128 lanes and V 16 of 8 bits:
# V's descriptor, from UR14 and UR11, which nothing has set.
LOST = """
        /*1b90*/                   UIADD3 UR10, UR12, 0x4000, URZ ;
        /*1bb0*/                   UIADD3 UR14, UP0, UR14, 0x20, URZ ;
        /*1bf0*/                   USHF.R.U32.HI UR10, URZ, 0x4, UR10 ;
        /*1c10*/                   UIADD3.X UR11, UR11, -0x3ffffff0, URZ, UP0, !UPT ;
        /*1c50*/                   USGXT.U32 UR50, UR10, 0xe ;
        /*1c70*/                   UMOV UR8, URZ ;
        /*1cc0*/                   UIADD3 UR22, UP0, UR50, 0x2, URZ ;
        /*1ca0*/                   UIADD3.X UR23, UR8, 0x40000040, URZ, UP0, !UPT ;
"""
ONE_STAGE = {"block_m": 64, "tile_size": 64, "num_warps": 4, "num_stages": 1}


def test_a_descriptor_of_a_register_that_nothing_set_is_lost():
    assert lost_descriptors(parse(LOST)) == (0x1C10,)


def test_a_descriptor_whose_upper_word_is_zero_is_not():
    assert lost_descriptors(parse(LOST.replace("UIADD3 UR10, UR12, 0x4000", "UMOV UR11"))) == ()


@pytest.mark.parametrize("dsl", HELION_SLOWLY)
def test_values_of_few_lanes_keep_their_descriptors(compiled, dsl):
    """V reaches shared memory where K was: from 8 bits in any config, from 16 without pipelining."""
    few = AttentionShape(32, 2, 112, 16, torch.float16, value_size=16, kv_dtype=torch.float8_e4m3fn)
    jobs = [
        compilation(f"{dsl}/q_block", ((31, 31), (2, 2)), few, ONE_STAGE, ask=Ask(scales="one")),
        compilation(f"{dsl}/q_block", ((31, 31),), AttentionShape(4, 1, 64, 16, value_size=32), ONE_STAGE),
    ]
    outcomes = compiled(resolve("h200"), *jobs)
    assert [(outcome.status, outcome.reason) for outcome in outcomes] == [("ok", "")] * len(jobs)
    for outcome in outcomes:
        (facts,) = outcome.facts
        assert any("x16x16" in shape or "x64x16" in shape for shape in facts["matrix"]), facts["matrix"]
        assert facts["lost_descriptors"] == 0
