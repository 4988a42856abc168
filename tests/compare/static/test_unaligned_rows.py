"""Rows of a cache that begin between multiples of 16 bytes are read in words that may begin there.

Rows of 392 bytes, K of 192 and V of 200 behind it, stopped an H200 with "misaligned address": triton 3.6.0 read K 16
bytes at a time. Later releases do not, whatever the gather form; that it is not `flat` tests/kernels says.
"""

import pytest
import torch

from common.gpus import resolve
from common.spec import AttentionShape
from compare.static.compile import compile_in_child
from compilations import compilation
from dsls import HELION_SLOWLY

LENS = ((1, 40), (3, 70))
CONFIG = {"block_m": 16, "tile_size": 32, "num_warps": 4, "num_stages": 2}
FLAT = {"helion": {"gather": "flat"}, "triton": {}}


def _widest(dsl, value_size):
    """Bits of the widest load in the loops over keys, for K of 192 bytes with V of `value_size` behind it."""
    shape = AttentionShape(2, 1, 192, 16, torch.bfloat16, value_size, torch.float8_e4m3fn)
    job = compilation(f"{dsl}/q_block", LENS, shape, CONFIG | FLAT[dsl], style="interleaved")
    (outcome,) = compile_in_child([job], resolve("h200"))
    assert outcome.status == "ok", (outcome.reason, outcome.log_tail)
    loops = [loop["loads"] for facts in outcome.facts for loop in facts["loops"] if loop["matrix"]]
    assert loops
    return max(int(bits) for loads in loops for bits in loads)


@pytest.mark.parametrize("dsl", HELION_SLOWLY)
def test_rows_of_392_bytes_are_read_in_words_of_8_at_most(dsl):
    assert _widest(dsl, 200) <= 64


@pytest.mark.slow
@pytest.mark.parametrize("dsl", ["triton", "helion"])
def test_rows_of_384_bytes_are_read_in_words_of_16(dsl):
    """Else the test above would pass whatever was claimed."""
    assert _widest(dsl, 192) == 128
