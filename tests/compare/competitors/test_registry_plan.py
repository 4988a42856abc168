import dataclasses
import json
import sys

import pytest

from common.gpus import resolve
from common.serving import winners
from common.serving.winners import Winner
from common.spec import AttentionShape, UnsupportedFeature
from common.spec.metadata import BatchStats
from compare.competitors import registry, sources
from compare.competitors.registry import KERNELS, OWN, RUNGS, Unavailable, UnknownKernel, load, select
from compare.plan.job import interpreter_seconds, interpreter_steps, jobs, plan_hash
from compare.workloads.suites import pick, suite


def test_the_registry_imports_no_kernel():
    import subprocess

    code = "import sys, compare.run.command; sys.exit('triton' in sys.modules or 'helion' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        ("triton/*", tuple(f"triton/{rung}" for rung in RUNGS)),
        ("*/naive", ("triton/naive", "helion/naive")),
        ("helion/q_block, triton/naive,helion/p*", ("helion/q_block", "triton/naive", "helion/parallel_softmax")),
        ("my.kernels:fast", ("my.kernels:fast",)),
        ("my.kernels", ("my.kernels",)),
        ("*/auto@paper,triton/naive", ("triton/auto@paper", "helion/auto@paper", "triton/naive")),
        ("", ()),
    ],
)
def test_selection(patterns, chosen):
    assert select(patterns) == chosen


@pytest.mark.parametrize(("name", "nearest"), [("triton/qblock", "triton/q_block"), ("helion/nave", "helion/naive")])
def test_an_unknown_kernel_comes_with_the_nearest_id(name, nearest):
    with pytest.raises(UnknownKernel, match=f"nearest: .*{nearest}"):
        select(name)


@pytest.mark.parametrize("name", ["triton/auto@papers", "baseline/sdpa@paper", "my.kernels@paper", "triton/auto@"])
def test_a_variant_of_configs_is_a_known_one_and_of_an_own_kernel(name):
    with pytest.raises(UnknownKernel, match=r"allowed .*@tree, @default, @paper, @learned, @fixed, @page"):
        select(name)


def test_generated_code_is_kept_of_helion_alone():
    kept = [name for name in (*registry.KERNELS, "helion/q_block@paper", "os.path:join") if registry.keeps_code(name)]
    assert kept == [*(name for name in registry.OWN if name.startswith("helion/")), "helion/q_block@paper"]


def _chosen(kernel_id, row, heuristics="tree"):
    return registry.default_config(
        kernel_id, load(kernel_id), row.shape, row.stats, resolve("h200"), heuristics=heuristics
    )


def test_variants_of_one_kernel_take_their_own_configs_in_one_run():
    (row,) = pick(suite("fig8"), "1x8192-0%decode")
    found = {name: _chosen(f"triton/q_block@{name}", row)[0] for name in ("fixed", "paper", "learned")}
    assert found["fixed"] == load("triton/q_block").DEFAULT
    assert (found["paper"].block_m, found["paper"].tile_size) == (64, 64), "Listing 2 from 4096 tokens on average"
    assert found["learned"] == _chosen("triton/q_block", row, "learned")[0]
    assert len(set(found.values())) >= 2


def test_the_variant_of_an_id_wins_over_the_runs_heuristics():
    (row,) = pick(suite("fig8"), "1x8192-0%decode")
    assert _chosen("triton/q_block@paper", row, "default") == _chosen("triton/q_block", row, "paper")
    assert _chosen("triton/auto@paper", row)[0] == _chosen("triton/auto", row, "paper")[0]


def test_tiles_of_a_page_follow_the_page_and_refuse_one_that_is_no_power_of_two():
    rows = {row.shape.block_size: row for row in suite("fig7")}
    assert [_chosen("helion/q_block@page", rows[page])[0].tile_size for page in (16, 64)] == [16, 64]
    with pytest.raises(UnsupportedFeature, match="544"):
        _chosen("triton/q_block@page", rows[544])
    with pytest.raises(UnsupportedFeature, match="kernels with one tile_size"):
        _chosen("triton/adjustable_tile@page", rows[16])


def test_a_missing_module_is_unavailable_and_says_why():
    with pytest.raises(Unavailable, match="No module named 'nowhere'"):
        load("nowhere.at_all:kernel")
    with pytest.raises(Unavailable, match="has no absent"):
        load("fake_kernels:absent")


def test_what_is_no_kernel_is_refused_by_what_it_lacks():
    with pytest.raises(TypeError, match="SUPPORTS, CONTRACT"):
        load("fake_kernels:Config")


def test_a_config_without_heuristics_is_the_kernels_own():
    kernel, row = load("fake_kernels:honest"), suite("smoke")[0]
    config, origin = registry.default_config("fake_kernels:honest", kernel, row.shape, row.stats, resolve("h200"))
    assert (config, origin) == (kernel.DEFAULT, "DEFAULT")
    assert registry.config_dict(config) == {"size": 16}


@pytest.mark.parametrize("kernel_id", [kernel for kernel in OWN if kernel.startswith("triton/")])
def test_a_config_survives_being_plain_with_all_its_parts(kernel_id):
    default = load(kernel_id).DEFAULT
    plain = registry.config_dict(default)
    assert plain is None or registry.config_from(default, json.loads(json.dumps(plain))) == default


def test_a_source_has_a_hash():
    assert len(sources.sha(load("fake_kernels:honest"))) == 16


def test_a_plan_is_every_kernel_on_every_row_and_its_hash_follows():
    rows = suite("smoke")
    planned = jobs(rows, OWN, None)
    assert len({cell.id for job in planned for cell in job.cells}) == 8 * len(OWN)
    assert plan_hash(planned) == plan_hash(jobs(rows, OWN, None))
    for other in (
        jobs(rows, OWN, "h200"),
        jobs(rows, OWN[:2], None),
        jobs(suite("smoke", 1), OWN, None),
    ):
        assert plan_hash(other) != plan_hash(planned)


def test_smoke_fits_the_interpreter_and_peers_does_not():
    assert all(interpreter_steps(kernel, row) <= 500 for kernel in KERNELS for row in suite("smoke"))
    assert all(interpreter_seconds(kernel, row) <= 30 for kernel in KERNELS for row in suite("smoke"))
    (long,) = pick(suite("peers"), "q1s128k")
    assert interpreter_seconds("helion/naive", long) > 30


@pytest.mark.parametrize("kernel_id", ["triton/parallel_softmax", "helion/parallel_softmax", "triton/auto"])
def test_a_config_is_for_the_keys_that_a_decode_sees(kernel_id):
    kernel, gpu = load(kernel_id), resolve("h200")
    stats, short = (BatchStats.of([(1, keys)] * 8) for keys in (32768, 384))
    config, _ = registry.default_config(kernel_id, kernel, AttentionShape(), stats, gpu, sees=256)
    assert config == registry.default_config(kernel_id, kernel, AttentionShape(), short, gpu)[0]
    assert config != registry.default_config(kernel_id, kernel, AttentionShape(), stats, gpu)[0]


def _winners(config, stats):
    """Of an H200 for heads of 128."""
    one = Winner(winners.key(AttentionShape(), stats), "q_block", "q_block", config, 1.0, 2.0, "", "w0")
    return winners.Winners(None, [dataclasses.asdict(one)], lambda kernel: "")


@pytest.mark.parametrize(
    ("heuristics", "shape", "origin"),
    [
        ("tree", AttentionShape(), "tree"),
        ("tree", AttentionShape(head_size=64), "heuristics"),  # nothing is called tuned outside what was measured
        ("learned", AttentionShape(), "heuristics"),
        ("default", AttentionShape(), "DEFAULT"),
        ("paper", AttentionShape(), "paper"),
    ],
)
def test_who_is_asked_for_a_config(monkeypatch, heuristics, shape, origin):
    kernel_id = "triton/q_block"
    tuned = dataclasses.replace(load("triton/q_block").DEFAULT, num_warps=2, num_stages=5)
    kernel, stats = load(kernel_id), suite("peers")[0].stats
    known = _winners(registry.config_dict(tuned), stats)
    monkeypatch.setattr(load("triton/auto").FAMILY, "_winners", {"h200": known})
    config, found = registry.default_config(kernel_id, kernel, shape, stats, resolve("h200"), heuristics)
    assert found == origin and (config == tuned) == (origin == "tree")
