"""Rules as data: the first that applies decides, a GPU is asked what it has, and one count of segments fits all."""

import pytest
import torch

from common import gpus
from common.serving import untuned
from common.serving.grid import KEYS, decided_by
from common.serving.rules import MERGE, START, WORTH, Rule, Rules, Situation, always, filling, splits
from common.spec import AttentionShape
from common.spec.metadata import BatchStats, cdiv

SHAPE, H200 = AttentionShape(), gpus.resolve("h200")


def situation(lens, shape=SHAPE, gpu=H200):
    return Situation(shape, decided_by(BatchStats.of(lens)), gpu)


def test_the_first_rule_that_applies_decides_and_the_next_is_its_runner_up():
    table = Rules(
        Rule("few", lambda s: s.stats.num_seqs < 4, lambda s: "few", "8 of 9 rows"),
        Rule("short", lambda s: s.short, lambda s: "short"),
        Rule("all", always, lambda s: "all"),
    )
    assert [table(SHAPE, BatchStats.of(lens), H200) for lens in ([(1, 9)], [(1, 9)] * 4, [(99, 99)] * 4)] == [
        "few",
        "short",
        "all",
    ]
    assert [rule.name for rule in table.told(situation([(1, 9)]))] == ["few", "short", "all"]
    assert str(table[0]) == "few (8 of 9 rows)" and str(table[1]) == "short (not measured)"


@pytest.mark.parametrize(
    ("programs", "tiles", "found"),
    [(8, 512, 48), (64, 128, 6), (1024, 16, 1), (264, 4096, 1), (88, 24, 3), (96, 24, 2), (8, 1, 1), (0, 0, 1)],
)
def test_segments_fill_the_slots_once(programs, tiles, found):
    """One decode of 32k keys of 8 heads, 8 of 8k, 128 of 2048: as sweeps by hand found; and 4 tokens of 11 and 12
    sequences of 64:8 heads over 3,000 keys, with two programs a unit."""
    slots = 264 if tiles == 24 or programs == 264 else 396
    assert splits(programs, slots, tiles) == found


def test_no_count_of_segments_ends_much_sooner():
    for programs in (1, 7, 40, 100, 133, 300, 900):
        for tiles in (1, 5, 24, 100, 1000):
            ends = {
                n: cdiv(programs * n, 264) * (cdiv(tiles, n) + START) + (MERGE if n > 1 else 0)
                for n in KEYS
                if n <= min(tiles, 128)
            }
            found = splits(programs, 264, tiles)
            assert ends[found] <= WORTH * min(ends.values())
            assert all(ends[n] > WORTH * min(ends.values()) for n in ends if n < found)


@pytest.mark.parametrize(
    ("programs", "keys", "found"),
    [(8, 65536, 32), (8, 8192, 8), (100, 8192, 2), (300, 8192, 1), (0, 8192, 8), (8, 9, 1), (17, 65536, 14)],
)
def test_filling_makes_one_wave_of_segments_that_are_long_enough(programs, keys, found):
    segments = filling(programs, 264, keys, 1024, 32)
    assert segments == found and (segments == 1 or (segments * programs <= 264 and segments * 1024 <= keys))


def test_capabilities_are_the_gpus():
    has = {name: {gpu for gpu in gpus.TABLE if getattr(gpus.TABLE[gpu], name)} for name in ("wgmma", "tma", "mfma")}
    assert has["wgmma"] == {"h100", "h200", "gh200", "h800", "h20"}
    assert has["tma"] == has["wgmma"] | {"b200", "rtx5090"}
    assert has["mfma"] == {name for name, gpu in gpus.TABLE.items() if gpu.arch.startswith("gfx9")}
    assert not gpus.resolve("a100").fp8_products and gpus.resolve("l40s").fp8_products
    assert not gpus.resolve("mi250").fp8_products and gpus.resolve("mi300").fp8_products
    assert gpus.resolve("mi350").turns_on_read and not gpus.resolve("mi300").turns_on_read


def test_no_rule_asks_for_the_name_of_a_gpu_or_of_an_arch():
    from pathlib import Path

    for file in Path(__file__).parents[3].glob("dsl_*/heuristics/generic/*.py"):
        code = "\n".join(line.partition("#")[0] for line in file.read_text().splitlines())
        assert ".arch" not in code and "gpu.name" not in code, file


@pytest.mark.parametrize("dsl", ["triton", "helion"])
@pytest.mark.parametrize("ratio", [5, 8])
@pytest.mark.parametrize("gpu", ["h200", "h100", "b200"])
def test_few_segments_never_become_q_block_while_programs_are_fewer_than_the_units(dsl, ratio, gpu):
    """4 to 16 sequences of 4 tokens over 3,000 keys, 8 KV heads: q_block ran at 0.46 to 0.50 of FlashAttention 3."""
    import importlib

    gpu, default = gpus.resolve(gpu), importlib.import_module(f"dsl_{dsl}.heuristics.generic.default")
    shape = AttentionShape(8 * ratio, 8, 128, 16, torch.bfloat16)
    for count in range(1, gpu.units // 8 + 1):
        name, config = default.auto(shape, situation([(4, 3000)] * count, shape, gpu).stats, gpu)
        assert name == "parallel_softmax" and config.num_segments > 1, count


def _facts(line: str) -> list[str]:
    return [word.removeprefix("!") for word in line.split()]


@pytest.mark.parametrize("part", untuned.TABLES)
def test_tiles_ask_for_facts_of_a_situation_and_end_with_a_line_for_all(part):
    lines = untuned.TABLES[part]
    assert lines[-1][0] == "" and all(len(line) == 6 for line in lines)
    for word in {word for line in lines for word in _facts(line[0])}:
        assert isinstance(getattr(situation([(1, 9)]), word), bool), word


@pytest.mark.parametrize("part", untuned.TABLES)
def test_every_line_of_tiles_is_met_by_some_gpu_and_shape(part):
    met = set()
    for gpu in gpus.TABLE.values():
        for head in (32, 128, 256, 512):
            for dtype, cache in ((torch.bfloat16, None), (torch.float32, None), (torch.bfloat16, torch.int8)):
                s = situation([(1, 9)], AttentionShape(32, 8, head, 16, dtype, None, cache), gpu)
                held = [
                    all(getattr(s, w.strip("!")) != w.startswith("!") for w in line[0].split())
                    for line in untuned.TABLES[part]
                ]
                first = held.index(True)
                met.add(first)
                sizes = untuned.tile(s, part)
                assert (
                    sizes.num_warps == untuned.TABLES[part][first][3]
                    and sizes.tile_size <= untuned.TABLES[part][first][2]
                )
    assert met == set(range(len(untuned.TABLES[part])))


def test_a_dsls_own_line_comes_before_the_shared_ones():
    own = (("wgmma", 16, 16, 1, 1, ""),)
    assert untuned.tile(situation([(1, 9)]), "rows", own) == (16, 16, 1, 1)
    assert untuned.tile(situation([(1, 9)], gpu=gpus.resolve("a100")), "rows", own) == (64, 64, 4, 2)
