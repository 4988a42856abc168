"""Why one kernel takes longer: the property that shortens the slower one's estimate most is named."""

import pytest

from common import gpus
from compare.__main__ import main as diptych
from compare.static import pair, warp
from compare.workloads import Workload, parse_lens

H200 = gpus.resolve("h200")
CONFIG = {"block_m": 16, "tile_size": 64, "num_warps": 4, "num_stages": 3}
CLOCKS = {"matrix": 300, "exp": 100, "address": 300, "mask": 100, "arithmetic": 300, "loads": 400, "barrier": 100}
LOOP = {
    "instructions": 400, "matrix": {"HMMA 16816": 32}, "matrix_flops": 1, "vector": 250, "transcendental": 10,
    "loads": {"128": 16}, "shared_reads": {"128": 32}, "shared_writes": {}, "barriers": 8, "waits": 1,
    "spill_traffic": 0, "kinds": {"address": 120, "mask": 40}, "cold": CLOCKS | {"loads": 1000}, "warm": CLOCKS,
}  # fmt: skip
FACTS = {
    "kernel": "_q_block_kernel", "arch": "sm_90", "num_warps": 4, "num_stages": 3, "registers": 128, "spills": 0,
    "shared_bytes": 50_000, "instructions": 1000, "matrix": {"HMMA 16816": 64}, "pipelined": 2, "loads": {"128": 40},
    "occupancy": {"programs": 4, "waves": 16, "limit": "registers"}, "loops": [LOOP],
}  # fmt: skip


def side(kernel, lens="4q1s8k", config=(), *, gpu=H200, **changes):
    workload, config = Workload(lens, parse_lens(lens)), CONFIG | dict(config)
    return pair.side(workload, kernel, config, [FACTS | changes], gpu)


def loop(kind, clocks, **changes):
    """FACTS' loop with more clocks of a kind."""
    more = {name: LOOP[name] | {kind: LOOP[name].get(kind, 0) + clocks} for name in ("cold", "warm")}
    return {"loops": [LOOP | more | changes]}


@pytest.mark.parametrize("kind", warp.KINDS)
def test_the_kind_whose_clocks_were_added_is_the_one_that_is_named(kind):
    slow, fast = side("triton/q_block", **loop(kind, 700)), side("helion/q_block")
    assert pair.cause(slow, fast).name == kind
    assert pair.sentence(slow, fast).startswith("triton/q_block is estimated")


@pytest.mark.parametrize(("changes", "name", "words"), [
    (loop("mask", 900, instructions=900, kinds={"address": 120, "mask": 540}), "mask",
     "masks: 1000 for 100 clocks a tile (540 instructions for 40)"),
    ({"registers": 255, "shared_bytes": 200_000,
      "occupancy": {"programs": 1, "waves": 4, "limit": "shared memory"}}, "programs",
     "the programs of a unit: 1 for 4 (255 registers a thread, 200000 bytes of shared memory)"),
    ({"instructions": 90_000}, "outside", "what a program does beside whole tiles, masked tiles included"),
], ids=["masks", "occupancy", "outside"])  # fmt: skip
def test_the_difference_that_was_made_is_told_with_its_figures(changes, name, words):
    lens = "4q2k" if name == "programs" else "4q1s8k"
    slow, fast = side("triton/q_block", lens, **changes), side("triton/q_block", lens)
    assert pair.trades(slow, fast)[0].name == name
    assert words in pair.sentence(slow, fast)


def test_from_counts_alone_instructions_and_stages_still_tell():
    counted = LOOP | {"cold": {}, "warm": {}}
    fast = side("triton/q_block", loops=[counted])
    more = counted | {"vector": 900, "instructions": 1050, "kinds": {"arithmetic": 900, "matrix": 32}}
    assert pair.cause(side("triton/q_block", loops=[more]), fast).name == "arithmetic"
    unpipelined = side("triton/q_block", loops=[counted], pipelined=0, num_stages=1)
    assert pair.cause(unpipelined, fast).name == "loads"


def test_how_a_batch_is_cut_is_a_difference_too():
    slow, fast = side("triton/q_block", "q1s32k", {"tile_size": 16}), side("triton/q_block", "q1s32k")
    said = pair.sentence(slow, fast)
    assert "how the batch is cut: 8 programs of up to 2048 tiles for 8 programs of up to 512 tiles" in said


def test_sums_in_place_of_products_are_told_as_its_products_whatever_the_tiles():
    sums = {"loops": [LOOP | {"matrix": {}, "instructions": 4000, "cold": CLOCKS | {"arithmetic": 9000}}]}
    slow, fast = side("triton/q_block", "q1s32k", {"tile_size": 16}, **sums), side("triton/q_block", "q1s32k")
    assert pair.cause(slow, fast).name == "matrix"
    assert "its products" in pair.sentence(slow, fast) and "(no products for 32 HMMA" in pair.sentence(slow, fast)


def test_a_sentence_names_as_many_as_explain_half():
    changes = loop("mask", 400)["loops"][0]
    more = {name: changes[name] | {"exp": changes[name]["exp"] + 400} for name in ("cold", "warm")}
    slow, fast = side("triton/q_block", loops=[changes | more]), side("triton/q_block")
    assert "masks: " in pair.sentence(slow, fast) or "exponentials: " in pair.sentence(slow, fast)
    assert {one.name for one in pair.trades(slow, fast)[:2]} == {"mask", "exp"}


def test_what_is_alike_is_said_so():
    assert "are estimated alike" in pair.sentence(side("triton/q_block"), side("triton/q_block"))
    assert pair.cause(side("triton/q_block"), side("triton/q_block")) is None


def test_order_of_the_two_does_not_matter():
    both = side("triton/q_block", **loop("exp", 500)), side("helion/q_block")
    assert pair.sentence(*pair.ordered(both)) == pair.sentence(*pair.ordered(both[::-1]))


def test_more_clocks_never_shorten_an_estimate():
    times = [side("triton/q_block", **loop("address", clocks)).us for clocks in (0, 10, 500, 5000)]
    assert times == sorted(times)


def test_every_launch_is_told_with_what_a_warp_issues_for_a_tile():
    told = "\n".join(pair.lines(side("triton/q_block")))
    assert "128 registers, 0 spills, 50000 bytes shared, 4 a unit by registers" in told
    assert "a tile: 400 instructions: 120 address, 40 mask" in told
    assert "32 HMMA 16816 (mma.sync), 1 waits; loads 16 of 128 bits" in told


@pytest.fixture
def shared(monkeypatch, compiled):
    """Compiles in children that other tests have started."""
    monkeypatch.setattr(pair, "compile_in_child", lambda jobs, gpu: compiled(gpu, *jobs))


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("gpu", ["h200", "mi300"])
def test_two_kernels_are_compiled_and_told(gpu, capsys):
    words = ["explain", "8q1s2k", "--gpu", gpu, "--pair", "triton/q_block", "triton/parallel_softmax"]
    assert diptych(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("triton/")][:2] == [words[-2], words[-1]]
    assert lines[-1].startswith("triton/") and (" above triton/" in lines[-1] or " alike" in lines[-1])
    assert any("a tile: " in line and " address, " in line for line in lines)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(("words", "code", "said"), [
    (["--pair", "triton/q_blok", "triton/naive", "--gpu", "h200"], 2, "triton/q_blok"),
    (["--pair", "triton/q_block", "triton/naive"], 3, "--gpu h200"),
    (["--pair", "triton/q_block", "triton/naive", "--gpu", "l40s"], 2, "l40s"),
    (["--pair", "triton/q_block", "triton/naive", "--gpu", "h2000"], 2, "h2000"),
    (["--pair", "triton/q_block", "triton/native.sm90_prefill", "--gpu", "mi300"], 2, "triton/native.sm90_prefill"),
], ids=["kernel", "no-gpu", "no-peaks", "gpu", "not-compiled"])  # fmt: skip
def test_what_cannot_be_compared_is_said(words, code, said, capsys):
    assert diptych(["explain", "q1s64", *words]) == code
    assert said in capsys.readouterr().err


def test_a_row_that_cannot_be_read_is_said(capsys):
    assert diptych(["explain", "q1z", "--gpu", "h200", "--pair", "triton/q_block", "triton/naive"]) == 2
    assert "q1z" in capsys.readouterr().err
