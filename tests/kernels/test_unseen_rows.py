"""Rows of the suite unseen that rules quote as evidence get what was timed there (docs/results/h200/regret_*)."""

import pytest

from common.gpus import resolve
from common.spec.metadata import EVERY_KEY
from compare.competitors import registry
from compare.workloads import suites

QUOTED = [
    (44, 3, "q_block", {"block_m": 64, "tile_size": 32, "num_stages": 1}),
    (44, 4, "parallel_softmax", {"tile_size": 64, "num_segments": 1}),
    (44, 15, "parallel_softmax", {"block_m": 64, "gather": "run"}),
    (45, 4, "parallel_softmax", {"num_segments": 7, "num_stages": 1}),
    (45, 9, "parallel_softmax", {"tile_size": 16, "num_stages": 1}),
    (46, 4, "parallel_softmax", {"tile_size": 64, "num_segments": 3}),
    (46, 15, "q_block", {"tile_size": 64}),
    (46, 22, "unpaged", {"prefill.tile_size": 32}),
    (47, 1, "parallel_softmax", {"gather": "key", "num_stages": 5}),
    (47, 3, "parallel_softmax", {"block_m": 16, "num_warps": 1, "num_segments": 3}),
    (47, 19, "q_block", {"block_m": 16, "tile_size": 64, "num_stages": 1}),
    (47, 33, "parallel_softmax", {"tile_size": 16}),
    (48, 17, "q_block", {"block_m": 16, "tile_size": 64, "num_stages": 1}),
    (49, 12, "q_block", {"tile_size": 32, "num_stages": 1}),
    (49, 25, "q_block", {"tile_size": 32, "num_stages": 2}),
    (50, 5, "parallel_softmax", {"tile_size": 32, "gather": "key"}),
    (50, 12, "parallel_softmax", {"tile_size": 128, "num_segments": 96}),
    (50, 16, "parallel_softmax", {"num_segments": 3, "num_stages": 2}),
    (50, 24, "parallel_softmax", {"num_segments": 2}),
    (51, 16, "q_block", {"tile_size": 64}),
    (51, 19, "q_block", {"block_m": 64}),
    (52, 17, "parallel_softmax", {"tile_size": 64, "gather": "run"}),
    (52, 26, "parallel_softmax", {"tile_size": 64, "gather": "run"}),
    (52, 29, "parallel_softmax", {"gather": "run", "num_stages": 5}),
    (53, 2, "parallel_softmax", {"tile_size": 32, "gather": "run"}),
    (53, 9, "adjustable_tile", {}),
    (53, 10, "parallel_softmax", {"block_m": 64, "gather": "run"}),
    (53, 15, "parallel_softmax", {"block_m": 32, "tile_size": 128, "num_segments": 1}),
    (53, 17, "parallel_softmax", {"block_m": 64, "num_stages": 5}),
    (53, 22, "parallel_softmax", {"tile_size": 64, "gather": "run"}),
    (54, 18, "adjustable_tile", {}),
    (54, 21, "parallel_softmax", {"tile_size": 64, "gather": "run"}),
    (54, 26, "adjustable_tile", {}),
    (54, 30, "unpaged", {"prefill.tile_size": 32}),
    (55, 10, "parallel_softmax", {"num_segments": 3}),
    (55, 18, "unpaged", {"prefill.block_m": 64}),
    (55, 22, "q_block", {"tile_size": 32, "num_stages": 1}),
    (55, 26, "adjustable_tile", {}),
    (55, 29, "q_block", {"tile_size": 64}),
    (56, 9, "parallel_softmax", {"tile_size": 32, "gather": "run", "num_stages": 2}),
    (56, 30, "parallel_softmax", {"gather": "key", "num_stages": 5}),
    (56, 31, "parallel_softmax", {"tile_size": 128, "num_segments": 8, "num_stages": 5}),
]


@pytest.mark.parametrize(("seed", "number", "kernel", "config"), QUOTED, ids=lambda value: str(value)[:20])
def test_a_quoted_row_gets_what_was_timed(seed, number, kernel, config):
    row, h200 = suites.unseen(seed, number + 1)[number], resolve("h200")
    auto, sees = registry.load("triton/auto"), row.ask.sliding_window or EVERY_KEY
    choice = auto.choose(row.shape, row.stats, h200, frozenset(), "default", sees)
    plain = registry.config_dict(choice)["config"]
    flat = {f"{part}.{name}": one for part, of in plain.items() if isinstance(of, dict) for name, one in of.items()}
    assert (choice.kernel, {name: (plain | flat)[name] for name in config}) == (kernel, config)
