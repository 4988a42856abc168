"""Why one kernel takes longer: the property that shortens the slower one's estimate most is named."""

import pytest

from common import gpus
from compare.__main__ import main as diptych
from compare.static import pair
from compare.static.compile import Compilation, Outcome
from compare.static.estimate import estimate
from compare.static.estimate_work import works
from compare.workloads import Workload, parse_lens

H200 = gpus.resolve("h200")
CONFIG = {"block_m": 16, "tile_size": 64, "num_warps": 4, "num_stages": 3}
LOOP = {
    "instructions": 400, "matrix": {"HMMA 16816": 32}, "matrix_flops": 1, "vector": 250, "transcendental": 10,
    "scalar": 4, "loads": {"128": 16}, "shared_reads": {"128": 32}, "shared_writes": {}, "barriers": 8, "waits": 1,
}  # fmt: skip
FACTS = {
    "kernel": "_q_block_kernel", "arch": "sm_90", "num_warps": 4, "num_stages": 3, "registers": 128, "spills": 0,
    "shared_bytes": 50_000, "instructions": 1000, "matrix": {"HMMA 16816": 64}, "pipelined": 2, "loads": {"128": 40},
    "occupancy": {"programs": 4, "waves": 16, "limit": "registers"}, "loops": [LOOP],
}  # fmt: skip


def side(kernel, lens="64q1s2k", config=(), **changes):
    workload, config, facts = Workload(lens, parse_lens(lens)), CONFIG | dict(config), [FACTS | changes]
    outcome = Outcome(Compilation(workload, kernel), "ok", config, facts=tuple(facts))
    said = estimate(workload, kernel, config, facts, H200)
    return pair.Side(kernel, outcome, works(kernel, config, [FACTS["kernel"]], workload), said)


@pytest.mark.parametrize(("changes", "name", "words"), [
    ({"instructions": 3000, "loops": [LOOP | {"instructions": 900, "vector": 700}]}, "instructions a tile",
     "a warp issues 900 for 400, 700 vector for 250"),
    ({"registers": 255, "shared_bytes": 200_000,
      "occupancy": {"programs": 1, "waves": 4, "limit": "shared memory"}}, "programs of a unit",
     "1 for 4, limited by shared memory (255 registers a thread, 200000 bytes)"),
    ({"pipelined": 0, "num_stages": 1}, "loads ahead", "1 stages for 3, 0 pipelined loads for 2"),
], ids=["instructions", "occupancy", "pipelining"])  # fmt: skip
def test_the_difference_that_was_made_is_the_one_that_is_named(changes, name, words):
    lens = "4q2k" if name == "programs of a unit" else "4q1s8k"
    slow, fast = side("triton/q_block", lens, **changes), side("triton/q_block", lens)
    assert next(iter(pair.trades(slow, fast, H200))) == name
    said = pair.sentence(slow, fast, H200)
    assert f"of it by its {name}: {words}." in said and said.startswith("triton/q_block is estimated")


def test_how_a_batch_is_cut_is_a_difference_too():
    slow, fast = side("triton/q_block", "q1s32k", {"tile_size": 16}), side("triton/q_block", "q1s32k")
    assert "of it by its tiles: 8 programs of up to 2048 tiles for 8 programs of up to 512 tiles" in pair.sentence(
        slow, fast, H200
    )


def test_what_is_alike_is_said_so():
    assert "are estimated alike" in pair.sentence(side("triton/q_block"), side("triton/q_block"), H200)


def test_every_launch_is_told_with_what_a_warp_issues_for_a_tile():
    told = "\n".join(pair.lines(side("triton/q_block")))
    assert "128 registers, 0 spills, 50000 bytes shared" in told and "4 a unit by registers" in told
    assert "a tile, each warp: 400 instructions: 32 matrix, 10 transcendental, 250 vector" in told


def test_two_kernels_are_compiled_and_told(capsys):
    words = ["explain", "8q1s2k", "--gpu", "h200", "--pair", "triton/q_block", "triton/parallel_softmax"]
    assert diptych(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("triton/")][:2] == [words[-2], words[-1]]
    assert lines[-1].startswith("triton/") and (" above triton/" in lines[-1] or " alike" in lines[-1])


@pytest.mark.parametrize(("words", "code", "said"), [
    (["--pair", "triton/q_blok", "triton/naive", "--gpu", "h200"], 2, "triton/q_blok"),
    (["--pair", "triton/q_block", "triton/naive"], 3, "--gpu h200"),
    (["--pair", "triton/q_block", "triton/naive", "--gpu", "l40s"], 5, "l40s"),
], ids=["kernel", "no-gpu", "no-peaks"])  # fmt: skip
def test_what_cannot_be_compared_is_said(words, code, said, capsys):
    assert diptych(["explain", "q1s64", *words]) == code
    assert said in capsys.readouterr().err
