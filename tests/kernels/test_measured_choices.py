"""What choices have to be whatever was learned: one wave of few decodes, and one for a machine without a GPU."""

import dataclasses

import pytest
import torch

from common.choice import columns
from common.gpus import resolve
from common.serving.choice import NO_GPU
from common.serving.grid import decided_by
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from dsl_helion import auto as helion_auto
from dsl_triton import auto

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


@pytest.mark.parametrize(("seqs", "kv_heads", "keys"), [(17, 4, 4582), (13, 1, 2299), (11, 8, 3000), (5, 4, 9000)])
def test_segments_of_few_decodes_never_begin_a_second_wave(seqs, kv_heads, keys):
    """17 decodes of 4 KV heads in 16 segments were 1,088 programs on 1,056 slots: 37.3 us, in 15 34.2."""
    shape = AttentionShape(4 * kv_heads, kv_heads, 128, 16, BF16, kv_dtype=FP8)
    stats = decided_by(BatchStats.of([(1, keys)] * seqs))
    choice = auto.FAMILY.choose(shape, stats, resolve("h200"), frozenset())
    batch = columns.batches([(shape, stats, resolve("h200"))])
    made = columns.configs([(choice.kernel, dataclasses.asdict(choice.config))], "triton")
    _, short = columns.launches(batch, made)
    assert choice.config.num_segments > 1 and short.waves[0] == 1


@pytest.mark.parametrize("lanes", [16, 64, 80, 96, 128, 192, 256, 512])
@pytest.mark.parametrize("lens", [[(1, 9)], [(1, 900)] * 3, [(4, 3000)], [(20, 600)], [(600, 600), (1, 5)], [(40, 40)]])
def test_a_machine_without_a_gpu_gets_a_choice_for_every_size_of_head(lanes, lens):
    shape, stats = AttentionShape(2, 1, lanes, 16, BF16), decided_by(BatchStats.of(lens))
    assert auto.FAMILY.choose(shape, stats, None, frozenset()).provenance == NO_GPU


@pytest.mark.parametrize("lens", [[(40, 4000)] * 300, [(186, 186)] * 300, [(20, 900), (1, 9000)]])
@pytest.mark.parametrize("family", [auto.FAMILY, helion_auto.FAMILY], ids=["triton", "helion"])
def test_a_machine_without_a_gpu_gets_a_choice_for_many_chunks_in_large_pages(family, lens):
    shape = AttentionShape(8, 1, 80, 64, BF16)
    assert family.choose(shape, decided_by(BatchStats.of(lens)), None, frozenset()).provenance == NO_GPU
