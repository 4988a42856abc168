"""One captured graph serves every batch of its capacity: 50 random ones, bitwise as eager launches, none wrong."""

import random

import pytest
import torch

from capacity import at_capacity, bits, random_lens, refill
from common.gpus import detect
from common.oracle.reference import reference
from common.oracle.tolerance import check
from common.spec import AttentionShape, Features, SpecError
from common.spec.kernel import Capacity
from compare.competitors import registry
from kernel_cases import here

SHAPE = AttentionShape(32, 8, 128, 16, torch.bfloat16)
TOKENS, SEQS, KEYS = 2048, 32, 4096
BATCHES = 50


def captured(kernel_id, tokens=TOKENS, shape=SHAPE):
    """The kernel, a batch that fills the capacity, its outputs, and the graph of one launch on them."""
    kernel = here(kernel_id)
    batch = at_capacity([(tokens // SEQS, KEYS)] * SEQS, shape, tokens, SEQS, KEYS, device="cuda")
    config, _ = registry.default_config(kernel_id, kernel, shape, batch.stats, detect())
    workspace = kernel.workspace(shape, Capacity.of(batch), config)
    out, lse = torch.empty_like(batch.query), torch.empty(batch.query.shape[:2], device="cuda")

    def launch():
        kernel.launch(batch, Features(), out, config, workspace, lse=lse)

    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return kernel, batch, (out, lse), workspace, launch, graph


def results(outputs, run):
    for tensor in outputs:
        tensor.fill_(7.0)
    run()
    torch.cuda.synchronize()
    return [tensor.clone() for tensor in outputs]


@pytest.mark.parametrize("kernel_id", ["triton/static_grid", "helion/static_grid"])
@pytest.mark.parametrize(
    ("tokens", "heads"),
    [(TOKENS, (32, 8, 128)), (TOKENS // 2, (32, 8, 128)), (TOKENS, (32, 8, 96)), (TOKENS, (16, 8, 256))],
    ids=["copied", "paged", "copied-96", "copied-256"],
)
def test_fifty_random_batches_replay_with_the_bits_of_eager_launches(kernel_id, tokens, heads):
    shape = AttentionShape(*heads, 16, torch.bfloat16)
    kernel, static, outputs, workspace, launch, graph = captured(kernel_id, tokens, shape)
    generator = random.Random(11)
    for seed in range(BATCHES):
        lens = random_lens(generator, tokens, SEQS, KEYS) if seed else []
        batch = at_capacity(lens, shape, tokens, SEQS, KEYS, device="cuda", seed=seed)
        refill(static, batch)
        eager, replayed = results(outputs, launch), results(outputs, graph.replay)
        for mine, theirs in zip(replayed, eager, strict=True):
            assert torch.equal(bits(mine), bits(theirs)), lens
        verdict = check(*replayed, batch, Features(), kernel.CONTRACT, reference(batch, Features()))
        assert verdict.ok, (lens, verdict.reason)
        kernel.check(workspace)


@pytest.mark.parametrize("kernel_id", ["triton/static_grid", "helion/static_grid"])
def test_a_replay_beyond_the_capacity_writes_nan_and_raises_the_flag(kernel_id):
    kernel, static, outputs, workspace, _, graph = captured(kernel_id)
    static.seq_lens[3] = KEYS + 1
    static.query_start_loc[SEQS] += 1
    out, lse = results(outputs, graph.replay)
    rows = TOKENS // SEQS
    unserved = torch.zeros(TOKENS, dtype=torch.bool, device="cuda")
    unserved[3 * rows : 4 * rows] = unserved[-rows:] = True
    assert torch.equal(out.isnan().flatten(1).all(1), unserved) and torch.equal(lse.isnan().all(1), unserved)
    with pytest.raises(SpecError, match="rows of such a sequence are NaN"):
        kernel.check(workspace)
