"""The floor and the estimate: work from lengths, clocks from facts, and what limits."""

import dataclasses
import json

import pytest
import torch

from common import gpus
from common.spec import AttentionShape
from common.spec.kernel import Capacity
from compare.competitors import registry
from compare.static.estimate import (
    MACHINES,
    NoEstimate,
    column,
    estimate,
    flops_of,
    machine_of,
    makespan,
    text,
    tile_code,
)
from compare.static.estimate_work import works
from compare.workloads import Ask, Workload, cost, parse_lens

H200, MI300 = gpus.resolve("h200"), gpus.resolve("mi300")
Q_BLOCK = {"block_m": 16, "tile_size": 64, "num_warps": 4, "num_stages": 3}
SEGMENTS = Q_BLOCK | {"num_segments": 8}
FACTS = {
    "kernel": "_q_block_kernel", "arch": "sm_90", "num_warps": 4, "num_stages": 3, "registers": 128,
    "shared_bytes": 50_000, "instructions": 3000, "matrix": {"HMMA 16816": 192}, "pipelined": 2,
}  # fmt: skip
LOOP = {
    "instructions": 500, "matrix": {"mfma 16x16x16": 32}, "matrix_flops": 32 * 2 * 16**3, "vector": 300,
    "transcendental": 16, "shared_reads": {"128": 8}, "shared_writes": {},
}  # fmt: skip


def workload(lens: str) -> Workload:
    return Workload(lens, parse_lens(lens))


def test_floor_is_never_above_the_estimate():
    for lens in ("q1s16", "128q1s4k", "q2k", "16q1s2k_4q512s1k"):
        said = estimate(workload(lens), "triton/q_block", Q_BLOCK, [FACTS], H200)
        assert 0 < said.floor_us <= said.us
        assert said.floor_us == cost.floor_us(workload(lens), H200)


def test_launch_limits_a_tiny_call_bytes_a_large_decode_and_latency_a_lone_program():
    tiny = {**FACTS, "kernel": "_segments_kernel"}, {**FACTS, "kernel": "_reduce_segments_kernel", "matrix": {}}
    amd = [{**FACTS, "arch": "gfx942"}]
    assert estimate(workload("q1s16"), "triton/q_block", Q_BLOCK, amd, MI300).limiter == "launch"
    assert estimate(workload("256q1s8k"), "triton/parallel_softmax", SEGMENTS, tiny, H200).limiter == "bytes"
    assert estimate(workload("q1s32k"), "triton/q_block", Q_BLOCK, [FACTS], H200).limiter == "latency"


def test_redundant_matrix_work_costs():
    loop = LOOP | {"matrix_flops": 64 * LOOP["matrix_flops"]}
    facts = [FACTS | {"arch": "gfx942", "shared_bytes": 8192, "loops": [one]} for one in (LOOP, loop)]
    once, often = (estimate(workload("q8k"), "triton/q_block", Q_BLOCK, [fact], MI300) for fact in facts)
    assert often.us > 2 * once.us
    assert often.limiter == "matrix"


def test_bank_conflicts_that_the_model_saw_cost():
    plain = FACTS | {"arch": "gfx942", "shared_bytes": 8192, "loops": [LOOP | {"shared_reads": {"128": 64}}]}
    met = plain | {"executed": {"lds clocks": 5000, "lds fewest": 1000}}
    once, often = (estimate(workload("q8k"), "triton/q_block", Q_BLOCK, [fact], MI300) for fact in (plain, met))
    assert often.us > 2 * once.us
    assert often.limiter == "issue"


def test_more_resident_programs_hide_latency():
    crowded = estimate(workload("64q1s4k"), "triton/q_block", Q_BLOCK, [FACTS | {"registers": 255}], H200)
    roomy = estimate(workload("64q1s4k"), "triton/q_block", Q_BLOCK, [FACTS], H200)
    assert roomy.launches[0].resident > crowded.launches[0].resident
    assert roomy.launches[0].schedule_us < crowded.launches[0].schedule_us


def test_whole_waves():
    assert makespan([4] * 8, 8, 1.0, 0.5) == 4.5
    assert makespan([4] * 9, 8, 1.0, 0.5) == 9.0
    assert makespan([8, 1, 1, 1], 2, 1.0, 0.0) == 8.0
    assert makespan([], 8, 1.0, 0.5) == 0.5


@pytest.mark.parametrize("lens", ["q1s1k", "32q4s4k", "q100s1000", "3q1s17_2q40s90"])
def test_segments_deal_the_tiles_of_the_q_blocks(lens):
    whole = works("triton/q_block", Q_BLOCK, ["_q_block_kernel"], workload(lens))[0]
    parts = works("helion/parallel_softmax", SEGMENTS, ["_helion__segments_kernel"], workload(lens))[0]
    assert sum(parts.tiles) == sum(whole.tiles)
    assert max(parts.tiles) <= -(-max(whole.tiles) // 8)


def test_q_blocks_cover_the_causal_triangle():
    work = works("triton/q_block", Q_BLOCK, ["_q_block_kernel"], workload("q64"))[0]
    assert cost.cost(workload("q64")).flops <= sum(work.tiles) * work.tile_flops
    assert len(work.tiles) == 16 * 8  # 64 tokens in blocks of 4, under 8 KV heads


def test_a_static_grid_shares_tiles_evenly():
    part = {"block_m": 16, "tile_size": 64}
    config = {"decode": part, "prefill": part, "programs": 396}
    symbols = ["_plan_kernel", "_attend_items_kernel", "_merge_parts_kernel"]
    _, work, _ = works("triton/static_grid", config, symbols, workload("8q1s4k"))
    assert len(work.tiles) == 396
    assert max(work.tiles) - min(work.tiles) <= 1
    assert sum(work.tiles) == 8 * 8 * 64
    symbols[1:2] = 2 * symbols[1:2]  # a launch for each class
    _, short, long, _ = works("triton/static_grid", config, symbols, workload("8q1s4k_q64s64"))
    assert short.tiles == work.tiles and short.tile_flops == work.tile_flops == long.tile_flops
    assert sum(long.tiles) == 8 * 16  # 16 Q Blocks of 4 tokens, a tile each


@pytest.mark.parametrize(("least", "copies"), [({}, True), ({"least_query_len": 65}, False)], ids=["older", "short"])
def test_a_static_grid_copies_as_its_config_says(least, copies):
    """Records of before the field copy every prompt of a capture of enough tokens."""
    part = {"block_m": 16, "tile_size": 64, "programs": 9}
    config = {"decode": part, "prefill": part, "copied": part | {"least_tokens": 64} | least, "programs": 9}
    symbols = ["_plan_kernel", "_attend_items_kernel", "_attend_items_kernel", "_merge_parts_kernel"]
    long = works("triton/static_grid", config, symbols, workload("q64s64"))[2]
    assert (sum(long.tiles) == 0) == copies  # what is copied this launch leaves alone


def test_every_tokens_scales_are_read_with_its_key():
    shape, row = AttentionShape(kv_dtype=torch.int8), workload("q1s1k")
    plain, scaled = (dataclasses.replace(row, shape=shape, ask=Ask(scales=form)) for form in ("heads", "tokens"))
    one, more = (works("triton/q_block", Q_BLOCK, ["_q_block_kernel"], row)[0] for row in (plain, scaled))
    assert more.read_bytes - one.read_bytes == 1024 * 8 * 8  # keys, KV heads, bytes: float32 of K and of V
    assert more.tile_bytes - one.tile_bytes == 64 * 8


@pytest.mark.parametrize("dsl", registry.DSLS)
def test_what_unpaged_copies_is_what_a_row_of_its_scratch_holds(dsl):
    """Triton's rows of 80 and 24 lanes are 128 and 32 wide, Helion's as many as there are."""
    shape = AttentionShape(8, 2, 80, 16, torch.bfloat16, 24, torch.int8)
    row = Workload("copied", ((100, 1000),), shape, Ask(scales="tokens"))
    kernel, part = registry.load(f"{dsl}/unpaged"), dataclasses.asdict(registry.load(f"{dsl}/unpaged").DEFAULT)
    made = kernel.workspace(shape, Capacity(1, 100, torch.device("cpu"), 1000), kernel.DEFAULT)
    held = sum(tensor.nbytes for tensor in (made.key, made.value, made.scales)) // len(made.key)
    symbols = [("_helion_" if dsl == "helion" else "") + name for name in ("_copy_kernel", "_unpaged_kernel")]
    copy, attend = works(f"{dsl}/unpaged", part, symbols, row)
    assert (copy.read_bytes, copy.write_bytes) == (2000 * (80 + 24 + 8), 2000 * held)
    assert (attend.read_bytes, attend.tile_bytes) == (
        2000 * held + 100 * 8 * 80 * 2,
        part["prefill"]["tile_size"] * held,
    )


def test_copies_of_a_tile_in_the_text_share_its_instructions():
    work = works("triton/q_block", Q_BLOCK, ["_q_block_kernel"], workload("q1s1k"))[0]
    once = tile_code(work, FACTS | {"matrix": {"HMMA 16816": 32}})  # 32 x 4096 x 4 warps: one tile's FLOPs
    thrice = tile_code(work, FACTS | {"matrix": {"HMMA 16816": 96}})
    assert once.instructions == pytest.approx(3 * thrice.instructions)


@pytest.mark.parametrize(
    ("instruction", "flops"),
    [("HMMA 16816", 4 * 4096), ("HGMMA 64x128x16", 2 * 64 * 128 * 16), ("mfma 32x32x8", 4 * 16384), ("UTCHMMA", 0)],
)
def test_flops_of_an_instruction(instruction, flops):
    assert flops_of(instruction, warps=4) == flops


def test_clocks_follow_from_the_stated_peaks():
    stated = {"mi300": 2.1, "mi250": 1.7, "mi355": 2.4, "a100": 1.41}
    assert {name: round(machine_of(gpus.resolve(name))[1], 2) for name in stated} == stated
    assert {"gfx90a", "gfx942", "gfx950", "sm_80", "sm_90", "sm_100"} <= set(MACHINES)


def test_no_rule_is_a_typed_error():
    unknown = dataclasses.replace(H200, bf16_tflops=None, name="other")
    for kernel, gpu, named in (("baseline/flex", H200, "flex"), ("triton/q_block", unknown, "other")):
        with pytest.raises(NoEstimate, match=named):
            estimate(workload("q1s16"), kernel, Q_BLOCK, [FACTS], gpu)


def test_the_column_of_an_absent_gpu_is_plain_values():
    said = column(workload("q1s1k"), "triton/q_block", Q_BLOCK, [FACTS], H200)
    assert json.loads(json.dumps(said, allow_nan=False)) == said
    assert said["floor_us"] <= said["us"]
    assert said["text"] == text(said["floor_us"], said["us"], "nvidia")
    assert text(1.0, 2.5, "nvidia").startswith("1.0 .. 2.5 x [0.")
    assert text(1.0, 2.5, "nobody") == "1.0 .. 2.5 x [unknown]"


def test_without_a_rule_the_column_is_a_floor():
    said = column(workload("q1s1k"), "baseline/flex", Q_BLOCK, [FACTS], H200)
    assert (said["us"], said["limiter"]) == (None, None)
    assert said["floor_us"] == cost.floor_us(workload("q1s1k"), H200)
    assert said["text"].endswith(" .. unknown")
    silent = dataclasses.replace(H200, bf16_tflops=None, hbm_gbps=None)
    assert column(workload("q1s1k"), "triton/q_block", Q_BLOCK, [FACTS], silent) is None
