"""MFMA against the layouts that AMD publishes: AMD Instinct MI300 CDNA3 ISA guide, 7.1.4 "Dense matrix layouts".

The guide maps an element to (item, lane) with K_L = K / (64 / (M B)), H = 4, B_I = ceil(64 / (N M / H)),
M_I = (64 / B_I) / N and G = M / (H M_I); the model maps (item, lane) to an element. CDNA4's shapes follow suit.
"""

import math

import numpy as np
import pytest
import torch
from asm import AGPRS, run, waves

from compare.static.isa import matrix

FP8 = {"fp8": torch.float8_e4m3fnuz, "bf8": torch.float8_e5m2fnuz}  # of gfx942


def a_item_lane(side, depth, blocks, block, row, k):
    """A[b, i, k], and B[b, k, j] with j for i."""
    per_lane = depth // (64 // (side * blocks))
    return k % per_lane, row + side * (block + blocks * (k // per_lane))


def d_item_lane(side, blocks, block, i, j):
    high = 4
    per_item = math.ceil(64 / (side * side // high))
    rows = 64 // per_item // side
    groups = side // (high * rows)
    item = i % high + high * (i // (high * rows) + groups * (block // per_item))
    return item, j + side * ((i // high) % rows + rows * (block % per_item))


def pack(w, first, kind, items):
    """items: {(item, lane): float} into registers from `first` on."""
    codes = {}
    if kind in FP8:
        codes = {float(n): int(torch.tensor(float(n)).to(FP8[kind]).view(torch.uint8)) for n in range(-8, 9)}
    for (item, lane), value in items.items():
        if kind == "f32":
            w.v[first + item, 0, lane] = np.float32(value).view(np.uint32)
            continue
        if kind in FP8:
            w.v[first + item // 4, 0, lane] |= np.uint32(codes[value] << 8 * (item % 4))
            continue
        raw = int(np.float16(value).view(np.uint16)) if kind == "f16" else int(np.float32(value).view(np.uint32)) >> 16
        w.v[first + item // 2, 0, lane] |= np.uint32(raw << 16 * (item % 2))


def operands(mnemonic, rng):
    """Small whole numbers, exact in every type and sum: A [b, i, k], B [b, k, j], C [b, i, j]."""
    side, depth, blocks, _ = matrix.shape_of(mnemonic)
    draw = lambda *shape: rng.integers(-8, 9, shape).astype(np.float64)  # noqa: E731
    return draw(blocks, side, depth), draw(blocks, depth, side), draw(blocks, side, side)


def load(w, mnemonic, a, b, c):
    side, depth, blocks, kind = matrix.shape_of(mnemonic)
    kind_a, kind_b = {"f8f6f4": ("fp8", "bf8")}.get(kind) or (kind.split("_") if "8_" in kind else (kind, kind))
    every = [(n, i, k) for n in range(blocks) for i in range(side) for k in range(depth)]
    pack(w, 0, kind_a, {a_item_lane(side, depth, blocks, n, i, k): a[n, i, k] for n, i, k in every})
    pack(w, 8, kind_b, {a_item_lane(side, depth, blocks, n, j, k): b[n, k, j] for n, j, k in every})
    square = [(n, i, j) for n in range(blocks) for i in range(side) for j in range(side)]
    pack(w, 16, "f32", {d_item_lane(side, blocks, n, i, j): c[n, i, j] for n, i, j in square})
    return square


@pytest.mark.parametrize("mnemonic", matrix.MNEMONICS)
def test_every_element_lies_where_the_guide_says(mnemonic):
    rng, w = np.random.default_rng(1), waves()
    a, b, c = operands(mnemonic, rng)
    square = load(w, mnemonic, a, b, c)
    side, _, blocks, _ = matrix.shape_of(mnemonic)
    run(w, f"{mnemonic} v[32:47], v[0:7], v[8:15], v[16:31]" + (" cbsz:0 blgp:1" if "f8f6f4" in mnemonic else ""))
    wanted = a @ b + c
    for n, i, j in square:
        item, lane = d_item_lane(side, blocks, n, i, j)
        assert w.v[32 + item, 0, lane].view(np.float32) == wanted[n, i, j], (n, i, j)


def test_one_block_of_a_goes_to_all():
    rng, w, name = np.random.default_rng(2), waves(), "v_mfma_f32_4x4x4_16b_bf16"
    a, b, c = operands(name, rng)
    square = load(w, name, a, b, c)
    run(w, f"{name} v[32:35], v[0:1], v[8:9], v[16:19] cbsz:4 abid:5")
    wanted = a[[5] * 16] @ b + c
    for n, i, j in square:
        item, lane = d_item_lane(4, 16, n, i, j)
        assert w.v[32 + item, 0, lane].view(np.float32) == wanted[n, i, j]


def test_accumulators_and_a_constant_start():
    rng, name = np.random.default_rng(3), "v_mfma_f32_16x16x16_f16"
    w = waves()
    a, b, c = operands(name, rng)
    load(w, name, a, b, 0 * c)
    run(w, f"{name} a[0:3], v[0:1], v[8:9], 0", f"{name} v[32:35], v[0:1], v[8:9], v[16:19]")
    assert np.array_equal(w.v[AGPRS : AGPRS + 4], w.v[32:36])


def test_lanes_that_are_switched_off_take_part():
    rng, name = np.random.default_rng(4), "v_mfma_f32_32x32x8_bf16"
    w, other = waves(), waves()
    for each in (w, other):
        load(each, name, *operands(name, np.random.default_rng(5)))
    other.set_exec(np.array([rng.integers(2**63)], np.uint64))
    for each in (w, other):
        run(each, f"{name} v[32:47], v[0:1], v[8:9], v[16:31]")
    assert np.array_equal(w.v[32:48], other.v[32:48])


def test_many_waves_at_once_are_as_one_by_one():
    name = "v_mfma_f32_16x16x32_bf16"
    rng = np.random.default_rng(6)
    each = [waves() for _ in range(3)]
    together = waves(3)
    for i, w in enumerate(each):
        load(w, name, *operands(name, rng))
        together.v[:, i] = w.v[:, 0]
        run(w, f"{name} v[32:35], v[0:3], v[8:11], v[16:19]")
    together.select(np.array([0, 2]))
    run(together, f"{name} v[32:35], v[0:3], v[8:11], v[16:19]")
    assert np.array_equal(together.v[32:36, 0], each[0].v[32:36, 0])
    assert np.array_equal(together.v[32:36, 2], each[2].v[32:36, 0])
    assert not together.v[32:36, 1].any()
