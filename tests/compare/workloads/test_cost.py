import random

import pytest
import torch

from common.gpus import resolve
from common.spec import AttentionShape
from compare.workloads import Ask, Workload
from compare.workloads.cost import cost, floor_us, touched_keys, visible_keys
from compare.workloads.suites import pick, suite


def seen(query_len, seq_len, ask):
    """[query, key] visibility, written out."""
    row = torch.arange(seq_len - query_len, seq_len)[:, None]
    key = torch.arange(seq_len)[None, :]
    visible = key <= row if ask.causal else torch.ones(query_len, seq_len, dtype=torch.bool)
    if ask.sliding_window is not None:
        visible = visible & (key > row - ask.sliding_window) & (key < row + ask.sliding_window)
    return visible


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("window", [None, 1, 2, 7, 1000], ids=lambda w: f"window-{w}")
def test_counts_match_the_mask(causal, window):
    draw = random.Random(7)
    for _ in range(60):
        query_len = draw.randint(0, 12)
        seq_len = query_len + draw.choice([0, 0, 1, 5, 30])
        ask = Ask(causal=causal, sliding_window=window)
        visible = seen(query_len, seq_len, ask)
        assert visible_keys(query_len, seq_len, ask) == int(visible.sum()), (query_len, seq_len)
        assert touched_keys(query_len, seq_len, ask) == int(visible.any(0).sum()), (query_len, seq_len)


def test_a_shared_page_counts_once():
    shape = AttentionShape(2, 1, 64, 16, torch.bfloat16)
    lens = ((1, 40), (1, 50), (1, 10))
    alone, shared = Workload("a", lens, shape), Workload("b", lens, shape, shared_pages=2)
    saved = cost(alone).kv_bytes - cost(shared).kv_bytes
    assert saved == 32 * 2 * 64 * 2  # 32 tokens, K and V, one head of 64, two bytes


# microseconds at 4570 GB/s and 793 TFLOP/s, as published beside the rows
PUBLISHED = {"q1s512": 0.5, "8q1s2k~": 10.7, "128q1s8k~": 705.9, "q1s128k": 117.5, "32q4s4k": 117.9, "q2k": 43.4}
PUBLISHED |= {"q8k": 693, "8q1k~": 57.9, "q32k": 11093, "16q1s2k_16q512s1536": 217}


@pytest.mark.parametrize("label", PUBLISHED)
def test_floors_are_the_published_ones(label):
    from dataclasses import replace

    (row,) = pick(suite("peers"), label)
    measured = replace(resolve("h200"), hbm_gbps=4570.0, bf16_tflops=793.0)
    assert floor_us(row, measured) == pytest.approx(PUBLISHED[label], rel=0.004, abs=0.06)


def test_without_stated_peaks_there_is_no_floor():
    from dataclasses import replace

    nothing = replace(resolve("h200"), hbm_gbps=None, bf16_tflops=None)
    assert floor_us(suite("peers")[0], nothing) is None
