"""The public call runs what `auto` chooses for a GPU that is not here, and is right."""

import dataclasses
import os

import pytest
import torch

from calls import assert_right, exact, tensors
from common.cases.batch import make_batch
from common.gpus import resolve
from common.serving.call import PagedAttention
from common.spec import AttentionShape, Features
from common.spec.metadata import EVERY_KEY
from compare.competitors import registry


def interpretable(config):
    """A config without what no CPU does, launches that overlap, and with a grid of few programs."""
    if not dataclasses.is_dataclass(config):
        return config
    plain = {field.name: interpretable(getattr(config, field.name)) for field in dataclasses.fields(config)}
    few = {"overlap": False, "copy_programs": 4}
    return dataclasses.replace(config, **plain | {field: few[field] for field in few if field in plain})


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="compiled kernels: tests/gpu")
def test_the_public_call_runs_what_is_chosen(monkeypatch):
    """As if the H200 were here: decodes, drafts and many short prompts, of few heads."""
    gpu, auto, met = resolve("h200"), registry.load("triton/auto"), set()
    choose = auto.FAMILY.choose

    def chosen(shape, stats, _, needs=frozenset(), heuristics="tree", sees=EVERY_KEY):
        choice = choose(shape, stats, gpu, needs, heuristics, sees)
        met.add(choice.kernel)
        return dataclasses.replace(choice, config=interpretable(choice.config))

    monkeypatch.setattr(auto.FAMILY, "choose", chosen)
    call, shape = PagedAttention(auto.FAMILY), AttentionShape(2, 1, 128, 16, torch.bfloat16)
    many = [(20, 20)] * 33
    for lens in ([(1, 300)] * 9, [(20, 20)] * 2 + [(1, 40)], [(60, 60), (33, 90)], [(17, 40)] * 3, many):
        batch = make_batch(lens, shape)
        out = call(**tensors(batch), **exact(batch))
        assert_right(out, None, batch, Features(), auto.CONTRACT)
    assert met
