"""The formula: what limits a batch, and times that grow with what has to be done."""

import numpy as np
import pytest

from common.choice import columns, cost
from common.gpus import resolve
from common.spec import AttentionShape
from common.spec.metadata import BatchStats

H200 = resolve("h200")
CONSTANTS = np.array([1.0, 1.2, 0.8, 0.8, 5.0, 2.0, 1.2])
PART = {"block_m": 64, "tile_size": 64, "num_segments": 1, "num_warps": 4, "num_stages": 2}
CANDIDATES = [
    ("q_block", PART | {"block_m": 16}),
    ("parallel_softmax", PART | {"block_m": 16, "num_segments": 8}),
    ("unpaged", {"prefill": PART, "decode": PART | {"block_m": 16, "num_segments": 4}}),
]


def parts(stats, candidates=CANDIDATES):
    batch = columns.batches([(AttentionShape(), stats, H200)])
    return cost.parted(CONSTANTS, cost.terms(batch, columns.configs(candidates, "triton")))


@pytest.mark.parametrize("query", [1, 5, 512])
@pytest.mark.parametrize("seqs", [1, 9, 200])
def test_twice_the_keys_never_take_less(seqs, query):
    lengths = [2**i for i in range(9, 17)]
    us = np.array([parts(BatchStats.of([(query, keys)] * seqs)).sum(axis=1) for keys in lengths])
    assert (np.diff(us, axis=0) >= -1e-6).all()


def test_twice_the_sequences_never_take_less():
    us = np.array([parts(BatchStats.of([(1, 4096)] * 2**i)).sum(axis=1) for i in range(9)])
    assert (np.diff(us, axis=0) >= -1e-6).all()


@pytest.mark.parametrize(("lens", "limit"), [
    ([(1, 8192)] * 128, "bytes"), ([(8192, 8192)] * 2, "matrix"), ([(1, 100_000)], "tiles"),
], ids=["decodes", "prompts", "one-program"])  # fmt: skip
def test_what_limits_is_named(lens, limit):
    found = parts(BatchStats.of(lens), CANDIDATES[:1] if limit != "matrix" else [("q_block", PART | {"block_m": 128})])
    named = cost.TERMS[int(found[0].argmax())]
    assert named == limit or (limit == "matrix" and named == "tiles")


def test_bytes_and_tiles_overlap():
    found = parts(BatchStats.of([(1, 4096)] * 8))
    assert ((found[:, 1] == 0) | (found[:, 2:4].sum(axis=1) == 0)).all()
