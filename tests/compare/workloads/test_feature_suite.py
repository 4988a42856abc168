"""The suite `features`: what it asks, and what its figure shows of invented times."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import synthetic_figures
from common.gpus import resolve
from common.oracle.integrity import bits
from common.spec import SpecError
from common.spec.kernel import asked_of
from common.spec.validation import validate, validate_output
from compare.bench import gate
from compare.bench.arena import Arena
from compare.bench.subject import Subject
from compare.competitors import registry
from compare.report import printed
from compare.workloads import Workload, suites
from compare.workloads.cost import cost
from compare.workloads.suites import suite

ROWS = {row.label: row for row in suite("features")}


def small(row):
    """The same row with four short sequences."""
    lens = tuple((min(query_len, 40), min(seq_len, 90 + 8 * i)) for i, (query_len, seq_len) in enumerate(row.lens[:4]))
    return Workload.from_dict(row.to_dict() | {"lens": [list(pair) for pair in lens]})


@pytest.mark.parametrize("label", ROWS)
def test_a_row_is_well_formed_and_survives_the_pipe(label):
    row = small(ROWS[label])
    batch = row.batches(1, "cpu")[0]
    validate(batch, row.features(batch))
    assert Workload.from_dict(row.to_dict()).id == row.id


@pytest.mark.parametrize("label", ROWS)
def test_what_a_row_brings_may_be_written_and_comes_back(label):
    """Outputs that every kernel accepts; and each input, a feature's tensors too, is watched and can be restored."""
    arena = Arena(small(ROWS[label]), 2, "cpu", pad_tokens=3)
    for batch, out in zip(arena.batches, arena.outs, strict=True):
        validate_output(batch, out, arena.lse, arena.features)
    before, inputs = arena.intact_inputs(), dict(arena.inputs())
    asked = {name for name, value in vars(arena.features).items() if isinstance(value, torch.Tensor)}
    assert asked <= set(inputs)
    for name, tensor in inputs.items():
        bits(tensor)[(0,) * tensor.dim()] ^= 1
        assert arena.fingerprint() != before, name
        arena.refill()
        assert arena.fingerprint() == before, name


@pytest.mark.parametrize("dsl", ["triton", "helion"])
@pytest.mark.parametrize("label", ROWS)
def test_a_tree_is_asked_with_what_the_row_needs(label, dsl):
    """auto's choice has scratch of its own: another kernel at the launch would be handed what is not its own."""
    arena = Arena(small(ROWS[label]), 1, "cpu")
    for gpu in (resolve("h200"), resolve("mi300"), None):
        subject = Subject(f"{dsl}/auto", arena, gpu)
        chosen = registry.load(f"{dsl}/{subject.config.kernel}")
        assert asked_of(arena.batches[0], arena.features) <= chosen.SUPPORTS


@pytest.mark.parametrize("label", [pytest.param("4q2k+batch-invariant", marks=pytest.mark.slow), "4q2k+fp8-kv-tokens"])
def test_auto_computes_what_the_trees_first_choice_lacks(label):
    arena = Arena(small(ROWS[label]), 1, "cpu")
    subject = Subject("triton/auto", arena, resolve("h200"))
    assert gate.before(arena, lambda: subject.launch(0), [0], subject.kernel.CONTRACT).bit_equal


def test_every_feature_has_a_row():
    asked = set().union(*(row.ask.members(row.shape) for row in ROWS.values()))
    missing = {"non_causal", "sliding_window", "softcap", "sinks", "alibi", "alibi_sqrt", "chunked_local", "prefix_lm"}
    missing |= {"causal_per_sequence", "cross", "tree_bias", "fp8_kv", "int8_kv", "fp8_query", "fp8_out", "value_size"}
    assert missing - {"non_causal"} <= asked and "batch_invariant" in asked


@pytest.mark.parametrize("label", ["32q1s4k~+window-1024", "4q2k+chunk-1024", "32q1s4k~+fp8-kv"])
def test_what_leaves_out_keys_or_bytes_needs_fewer(label):
    plain = ROWS[label.split(suites.MARK)[0]]
    assert cost(ROWS[label]).bytes < cost(plain).bytes or cost(ROWS[label]).flops < cost(plain).flops


def test_a_contradiction_reaches_nobody():
    row = small(ROWS["4q2k+chunk-1024"])
    batch = row.batches(1, "cpu")[0]
    asked = replace(row.ask, sliding_window=9)
    with pytest.raises(SpecError, match="sliding_window"):
        validate(batch, asked.features(batch, 0))


def test_a_features_cost_is_over_the_same_kernels_plain_row():
    records = synthetic_figures.records("features", ["triton/auto"])
    us = {record.workload.label: record.timing.median_us for record in records}
    found = printed.costs([SimpleNamespace(records=records)])
    assert found["decode", "triton/auto", "alibi"] == us["32q1s4k~+alibi"] / us["32q1s4k~"]
    alone = [record for record in records if suites.MARK in record.workload.label]
    assert printed.costs([SimpleNamespace(records=alone)]) == {}
