"""The cost model: it fits what it is made of, knows each kernel's launches, and ranks the tuner's candidates."""

import dataclasses
import json

import numpy as np
import pytest

from common.gpus import resolve
from common.spec import AttentionShape
from compare.competitors import registry
from compare.static.estimate_work import Work
from compare.studies import deciders
from compare.tune import cost
from compare.workloads import Workload, parse_lens, suites

H200 = resolve("h200")
ROWS = [Workload(text, parse_lens(text)) for text in ("q1s8k", "32q1s2k", "8q4s4k", "q2k", "4q1s2k_4q512s1536")]


@pytest.mark.parametrize("kernel", cost.KERNELS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_every_kernels_launches_are_known(kernel, row):
    config, _ = registry.default_config(f"triton/{kernel}", None, row.shape, row.stats, H200, "default")
    calls = cost.launches(kernel, registry.config_dict(config), row, H200)
    assert calls and all(one.bytes_us > 0 for one in calls)
    us = cost.Points([calls]).us(cost.PRIOR)
    assert np.isfinite(us).all() and 1 < us[0] < 2000


def test_the_sums_of_a_program_have_the_lanes_of_v():
    """Of 128 rows 112 registers a thread fewer with 16 lanes for 128, so that four programs fit for two; and 224
    instructions of a warp a tile fewer."""
    few, many = AttentionShape(value_size=16), AttentionShape()
    work = Work((1,), rows=128, keys=32, tile_bytes=32 * 256 * 2, read_bytes=0, write_bytes=0)
    assert [cost.residents(work, 4, 2, shape, H200) for shape in (few, many)] == [4, 2]
    config = {"block_m": 128, "tile_size": 32, "num_warps": 4, "num_stages": 2}
    one, other = (
        cost.launches("q_block", config, dataclasses.replace(ROWS[3], shape=shape), H200)[0] for shape in (few, many)
    )
    loads = 32 * (128 - 16) * 2 / 16 / 128 * 4
    assert other.instructions - one.instructions == pytest.approx(2 * 128 * (128 - 16) / 128 + loads)


def test_the_fit_finds_constants_that_made_the_times():
    configs = [(row, rows, keys) for row in ROWS[:3] for rows in (16, 64) for keys in (32, 64, 128)]
    calls = [
        cost.launches("q_block", {"block_m": m, "tile_size": n, "num_warps": 4, "num_stages": 2}, row, H200)
        for row, m, n in configs
    ]
    points, made = cost.Points(calls), cost.PRIOR * np.array([1.3, 0.8, 1.2, 1.1, 0.9, 0.9, 1.0])
    us = points.us(made)
    found = points.us(cost.fit_constants(points, us, np.ones(len(us))))
    assert np.abs(np.log(found / us)).max() < 0.05


def test_fewer_segments_than_units_are_ranked_behind_those_that_fill_them():
    row = ROWS[0]
    kernel = registry.load("triton/parallel_softmax")
    configs = [[registry.config_dict(kernel.Config(16, 64, n))] for n in (1, 2, 48)]
    assert cost.ranked("triton/parallel_softmax", configs, [row], H200) == [2, 1, 0]
    assert cost.ranked("helion/parallel_softmax", configs, [row], H200) == [0, 1, 2]
    assert cost.ranked("triton/naive", configs, [row], H200) == [0, 1, 2]


def test_a_candidate_is_ranked_in_less_than_a_millisecond_of_arithmetic_and_never_for_an_unknown_peak():
    unknown = resolve("h200").__class__(**vars(H200) | {"bf16_tflops": None})
    assert cost.ranked("triton/q_block", [[{}], [{}]], [ROWS[0]], unknown) == [0, 1]
    assert set(cost.fitted().constants) == set(cost.fitted().residual) == set(cost.KERNELS)


def test_a_residual_that_was_written_down_predicts_as_before_and_nothing_out_of_range():
    draw = np.random.default_rng(0)
    seen = draw.uniform(0, 10, (200, 3))
    left = np.where(seen[:, 0] > 5, 0.5, -0.5) + np.where(seen[:, 1] > 3, 0.25, 0.0)
    found = cost.boosted(seen, left, np.ones(200))
    assert np.abs(found.predict(seen) - left).mean() < 0.05
    again = cost.Residual.of(json.loads(json.dumps(found.plain())))
    assert np.abs(again.predict(seen[5:-5]) - found.predict(seen[5:-5])).max() < 0.02
    assert (again.predict(np.array([[20.0, 5.0, 5.0], [5.0, -1.0, 5.0]])) == 0).all()


def test_the_committed_residual_corrects_and_never_by_more_than_what_was_seen():
    found = cost.fitted().residual
    for name, one in found.items():
        middle = ((one.least + one.most) / 2)[None, :]
        assert abs(one.predict(middle)[0]) < 2.5 and len(one.roots) == cost.TREES, name


def test_a_row_of_committed_times_has_several_kernels_and_the_rules_take_one_of_them():
    points = deciders.committed(deciders.TUNED)
    known = deciders.groups(points)
    assert len(points) > 500 and len(known) > 20
    group = next(group for group in known if deciders.taken(group, group[0].row.stats, H200) is not None)
    rule = deciders.taken(group, group[0].row.stats, H200)
    assert deciders._regret(group, rule) >= 0
    us = [1.0 if i == rule else 0.5 for i in range(len(group))]
    assert deciders._over(group, rule, us, 1.1) != rule and deciders._over(group, rule, us, 2.1) == rule
    assert len(set(deciders._by_shape(points))) > deciders.FOLDS


def test_an_unseen_shape_is_priced_too():
    for row in suites.unseen(0, 12):
        config, _ = registry.default_config("triton/q_block", None, row.shape, row.stats, H200, "default")
        assert cost.launches("q_block", registry.config_dict(config), row, H200)


def test_what_a_choice_takes_the_host_is_told_of_every_kind():
    lines = deciders.host(H200, repeat=1)
    for what in ("triton/auto, a miss", "helion/auto, a hit", "a launch of a candidate", "the residual too"):
        assert any(what in line for line in lines), what
