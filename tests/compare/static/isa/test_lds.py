"""LDS: values, its end, tiles that are transposed or loaded straight into it, and races between two waves."""

import numpy as np
import pytest
from asm import LANE, landed, run, waves, words

from compare.static.isa.errors import Fault
from compare.static.isa.state import M0


@pytest.mark.parametrize("size", ["b32", "b64", "b96", "b128"])
def test_words_in_lds(size):
    count = int(size[1:]) // 32
    w = waves(lds_bytes=4096)
    w.v[1, 0] = np.random.default_rng(2).permutation(64) * 32
    w.v[20:24, 0] = words(256).reshape(4, 64)
    last, back = ("20", "30") if count == 1 else (f"[20:{19 + count}]", f"[30:{29 + count}]")
    landed(w, f"ds_write_{size} v1, v{last} offset:16", f"ds_read_{size} v{back}, v1 offset:16")
    assert np.array_equal(w.v[30 : 30 + count], w.v[20 : 20 + count])


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize(("form", "unit"), [("", 1), ("st64", 64)])
def test_two_spots_of_lds(size, form, unit):
    """offset0 and offset1 count elements, or 64 of them."""
    w = waves(lds_bytes=65536)
    w.v[1, 0], w.v[20:24, 0] = LANE * size, words(256).reshape(4, 64)
    pairs = ("v20, v21", "v[30:31]") if size == 4 else ("v[20:21], v[22:23]", "v[30:33]")
    count, offsets = size // 4, (2 * size * unit, 66 * size * unit)
    landed(w, f"ds_write2{form}_b{8 * size} v1, {pairs[0]} offset0:2 offset1:66")
    lds = w.lds.views[4]
    for k, offset in enumerate(offsets):
        at = (offset + LANE * size) // 4
        assert np.array_equal(lds[at[:, None] + np.arange(count)].T, w.v[20 + k * count : 20 + (k + 1) * count, 0])
    landed(w, f"ds_read2{form}_b{8 * size} {pairs[1]}, v1 offset0:2 offset1:66")
    assert np.array_equal(w.v[30 : 30 + 2 * count], w.v[20 : 20 + 2 * count])


def test_halves_in_lds():
    w = waves()
    w.v[1, 0], w.v[20, 0], w.v[30:33, 0] = LANE * 4, words(64), 0x11112222
    landed(
        w, "ds_write_b16 v1, v20", "ds_write_b16_d16_hi v1, v20 offset:2", "ds_read_u16 v30, v1 offset:2",
        "ds_read_u16_d16 v31, v1", "ds_read_u16_d16_hi v32, v1", "ds_read_i16 v33, v1", "ds_read_u8 v34, v1",
        "ds_read_b32 v35, v1",
    )  # fmt: skip
    low = w.v[20, 0] & 0xFFFF
    assert np.array_equal(w.v[30, 0], w.v[20, 0] >> 16) and np.array_equal(w.v[31, 0], low | 0x11110000)
    assert np.array_equal(w.v[32, 0], low << 16 | 0x2222) and np.array_equal(w.v[34, 0], low & 0xFF)
    assert np.array_equal(w.v[33, 0].view(np.int32), low.astype(np.uint16).view(np.int16))
    assert np.array_equal(w.v[35], w.v[20])


def test_bytes_in_lds():
    w = waves()
    w.v[1, 0], w.v[20, 0], w.v[30:32, 0] = LANE * 4, words(64), 0x11112222
    landed(
        w, "ds_write_b8 v1, v20 offset:1", "ds_write_b8_d16_hi v1, v20", "ds_read_u8_d16 v30, v1 offset:1",
        "ds_read_u8_d16_hi v31, v1", "ds_read_i8 v32, v1 offset:1", "ds_read_u8 v33, v1",
    )  # fmt: skip
    low, third = w.v[20, 0] & 0xFF, w.v[20, 0] >> 16 & 0xFF
    assert np.array_equal(w.v[30, 0], 0x11110000 | low) and np.array_equal(w.v[31, 0], 0x2222 | third << 16)
    assert np.array_equal(w.v[32, 0].view(np.int32), low.astype(np.int8)) and np.array_equal(w.v[33, 0], third)


def test_lds_begins_as_no_zeros_and_ends_where_it_ends():
    w = waves(lds_bytes=256)
    w.v[1, 0] = LANE * 4
    landed(w, "ds_read_b32 v20, v1")
    assert (w.v[20, 0] == 0xA5A5A5A5).all()
    for line in ("ds_read_b32 v20, v1 offset:4", "ds_write_b64 v1, v[20:21]"):
        with pytest.raises(Fault, match="outside the 256 bytes"):
            run(w, line)


@pytest.mark.parametrize(("bits", "dtype"), [(16, np.uint16), (8, np.uint8)])
def test_a_transposed_tile(bits, dtype):
    """Of n elements in 8 bytes, each 16 lanes: lane s holds row s * n / 16 of n x 16; they get columns of it."""
    w, n = waves(lds_bytes=4096), 64 // bits
    tile = np.random.default_rng(1).integers(0, 1 << bits, (4, n, 16), dtype)  # group of lanes, k, m
    w.lds.views[bits // 8][: tile.size] = tile.reshape(-1)
    w.v[1, 0] = LANE * 8
    landed(w, f"ds_read_b64_tr_b{bits} v[20:21], v1")
    got = np.ascontiguousarray(w.v[20:22, 0].T).view(dtype).reshape(4, 16, n)
    assert np.array_equal(got, tile.transpose(0, 2, 1))


def test_a_load_straight_to_lds():
    tensor = words(1024)
    w = waves(lds_bytes=2048, tensors=(tensor,))
    w.set_pair(8, np.array([tensor.ctypes.data], np.uint64))
    w.s[10], w.s[11] = tensor.nbytes, 0x27000
    w.v[1, 0], w.s[M0] = LANE[::-1] * 16, 1024
    run(w, "buffer_load_dwordx4 v1, s[8:11], 0 offen lds")
    assert (w.lds.bytes == 0xA5).all(), "it has not landed"
    run(w, "s_waitcnt vmcnt(0)")
    landed_words = w.lds.views[4][256:512].reshape(64, 4)
    assert np.array_equal(landed_words, tensor[:256].reshape(64, 4)[::-1])


def two_waves(lds_bytes=1024):
    w = waves(2, per_group=2, lds_bytes=lds_bytes)
    w.v[1] = LANE * 4
    return w


def one(w, wave, line):
    w.select(np.array([wave]))
    landed(w, line)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ds_write_b32 v1, v20", "ds_read_b32 v21, v1"),
        ("ds_read_b32 v21, v1", "ds_write_b32 v1, v20"),
        ("ds_write_b32 v1, v20", "ds_write_b32 v1, v22"),
    ],
)
def test_what_two_waves_may_not_do_between_barriers(first, second):
    w = two_waves()
    w.v[20], w.v[22] = 1, 2
    one(w, 0, first)
    with pytest.raises(Fault, match="race in LDS: wave 1"):
        one(w, 1, second)
    w = two_waves()
    w.v[20], w.v[22] = 1, 2
    one(w, 0, first)
    w.lds.epoch += 1  # a barrier
    one(w, 1, second)


def test_what_two_waves_may_do():
    w = two_waves()
    w.v[20] = 5
    one(w, 0, "ds_write_b32 v1, v20")
    one(w, 1, "ds_write_b32 v1, v20")  # the same value
    one(w, 0, "ds_read_b32 v21, v1 offset:256")
    one(w, 1, "ds_read_b32 v21, v1 offset:256")
    w.v[1, 1] += 2
    one(w, 0, "ds_write_b16 v1, v20 offset:512")
    one(w, 1, "ds_write_b16 v1, v20 offset:512")  # the other half of the word
