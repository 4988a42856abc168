"""Loads, stores and atomics of global memory and scratch: values, ranges, and what is refused or a fault."""

import numpy as np
import pytest
from asm import LANE, landed, run, waves, words

from compare.static.isa.errors import Fault, NotExecutable
from compare.static.isa.state import POISON


def point(w, register, address):
    w.set_pair(register, np.array([address], np.uint64))


def buffer(w, register, tensor, records=None):
    point(w, register, tensor.ctypes.data)
    w.s[register + 2], w.s[register + 3] = tensor.nbytes if records is None else records, 0x27000


def at_lanes(w, row, addresses):
    addresses = np.asarray(addresses, np.uint64)
    w.v[row, 0], w.v[row + 1, 0] = addresses.astype(np.uint32), (addresses >> np.uint64(32)).astype(np.uint32)


@pytest.mark.parametrize(("kind", "count"), [("dword", 1), ("dwordx2", 2), ("dwordx3", 3), ("dwordx4", 4)])
def test_words_through_every_way(kind, count):
    tensor, out = words(), np.zeros(4096, np.uint32)
    w = waves(tensors=(tensor, out))
    point(w, 4, tensor.ctypes.data)
    point(w, 6, out.ctypes.data)
    buffer(w, 8, tensor)
    buffer(w, 12, out)
    offsets = np.random.default_rng(1).permutation(64) * 16 + 32
    w.v[1, 0] = offsets
    at_lanes(w, 2, tensor.ctypes.data + offsets)
    last = f"[20:{19 + count}]" if count > 1 else "20"
    wanted = tensor[offsets[:, None] // 4 + np.arange(count)]
    for load in (
        f"global_load_{kind} v{last}, v1, s[4:5]",
        f"global_load_{kind} v{last}, v[2:3], off",
        f"buffer_load_{kind} v{last}, v1, s[8:11], 0 offen",
    ):
        w.v[20:24] = 0
        landed(w, load)
        assert np.array_equal(w.v[20 : 20 + count, 0].T, wanted)
    landed(w, f"global_store_{kind} v1, v{last}, s[6:7] offset:-16")
    assert np.array_equal(out[offsets[:, None] // 4 - 4 + np.arange(count)], wanted)
    out[:] = 0
    landed(w, f"buffer_store_{kind} v{last}, v1, s[12:15], 0 offen offset:8")
    assert np.array_equal(out[offsets[:, None] // 4 + 2 + np.arange(count)], wanted)


def test_less_than_a_word():
    tensor = words()
    w = waves(tensors=(tensor,))
    raw = tensor.view(np.uint8)
    point(w, 4, tensor.ctypes.data)
    w.v[1, 0] = LANE * 6 + 2
    halves = tensor.view(np.uint16)[(LANE * 6 + 2) // 2]
    w.v[20:26, 0] = 0xABCDEF01
    landed(
        w, "global_load_ushort v20, v1, s[4:5]", "global_load_sshort v21, v1, s[4:5]",
        "global_load_ubyte v22, v1, s[4:5]", "global_load_sbyte v23, v1, s[4:5]",
        "global_load_short_d16 v24, v1, s[4:5]",
        "global_load_short_d16_hi v25, v1, s[4:5]",
    )  # fmt: skip
    assert np.array_equal(w.v[20, 0], halves) and np.array_equal(w.v[21, 0].view(np.int32), halves.view(np.int16))
    assert np.array_equal(w.v[22, 0], raw[LANE * 6 + 2])
    assert np.array_equal(w.v[23, 0].view(np.int32), raw[LANE * 6 + 2].view(np.int8))
    assert np.array_equal(w.v[24, 0], halves | np.uint32(0xABCD0000))
    assert np.array_equal(w.v[25, 0], halves.astype(np.uint32) << 16 | 0xEF01)
    landed(w, "global_store_short v1, v25, s[4:5]", "global_store_byte v1, v25, s[4:5] offset:2")
    assert (tensor.view(np.uint16)[(LANE * 6 + 2) // 2] == 0xEF01).all() and (raw[LANE * 6 + 4] == 1).all()
    buffer(w, 8, tensor)
    landed(w, "buffer_load_ushort v20, v1, s[8:11], 0 offen")
    landed(w, "buffer_store_short v20, v1, s[8:11], 0 offen offset:4")
    assert (w.v[20] == 0xEF01).all() and (tensor.view(np.uint16)[(LANE * 6 + 6) // 2] == 0xEF01).all()
    landed(w, "global_store_short_d16_hi v1, v25, s[4:5]")
    assert np.array_equal(tensor.view(np.uint16)[(LANE * 6 + 2) // 2], halves)


def test_beyond_the_records_of_a_buffer():
    tensor = words(64)
    w = waves(tensors=(tensor,))
    buffer(w, 8, tensor, records=128)
    w.v[1, 0] = LANE * 4
    w.v[1, 0, 5] = 0x80000000  # what the compiler gives lanes that a mask switches off
    landed(w, "buffer_load_dword v20, v1, s[8:11], 0 offen")
    wanted = np.where((LANE < 32) & (LANE != 5), tensor, 0)
    assert np.array_equal(w.v[20, 0], wanted)
    w.v[21, 0] = 7
    landed(w, "buffer_store_dword v21, v1, s[8:11], 0 offen")
    assert ((tensor == 7) == ((LANE < 32) & (LANE != 5))).all()


@pytest.mark.parametrize("shift", [4, 1, -4])
def test_an_address_outside_the_tensors_is_a_fault(shift):
    tensor = words(64)
    w = waves(tensors=(tensor,))
    point(w, 4, tensor.ctypes.data)
    w.v[1, 0] = LANE * 4
    with pytest.raises(Fault, match="outside every tensor"):
        run(w, f"global_load_dword v20, v1, s[4:5] offset:{shift}")
    with pytest.raises(Fault, match="outside every tensor"):
        run(w, f"global_store_dword v1, v20, s[4:5] offset:{shift}")
    w.set_exec(np.array([0x7FFFFFFFFFFFFFFE], np.uint64))  # lanes that are off touch nothing
    landed(w, f"global_load_dword v20, v1, s[4:5] offset:{shift}")


def test_lanes_in_different_tensors():
    first, second = words(64, 1), words(64, 2)
    w = waves(tensors=(first, second))
    odd = LANE % 2 == 1
    at_lanes(w, 2, np.where(odd, first.ctypes.data, second.ctypes.data) + LANE * 4)
    landed(w, "global_load_dword v20, v[2:3], off")
    assert np.array_equal(w.v[20, 0], np.where(odd, first, second))


def test_scalar_loads():
    tensor = words(64)
    w = waves(tensors=(tensor,))
    point(w, 4, tensor.ctypes.data)
    w.s[6] = 8
    run(w, "s_load_dwordx4 s[8:11], s[4:5], 0x10")
    assert (w.s[8:12, 0] == POISON).all()
    run(w, "s_waitcnt lgkmcnt(1)")
    assert (w.s[8:12, 0] == POISON).all(), "scalar loads come back in any order: only a wait for none is proof"
    landed(w, "s_load_dwordx2 s[12:13], s[4:5], s6")
    assert np.array_equal(w.s[8:14, 0], [*tensor[4:8], *tensor[2:4]])
    landed(w, "s_load_dwordx8 s[16:23], s[4:5], 0x0", "s_load_dwordx16 s[24:39], s[4:5], 0x40")
    assert np.array_equal(w.s[16:40, 0], [*tensor[:8], *tensor[16:32]])


def test_a_load_is_there_when_its_wait_says_so():
    tensor = words(64)
    w = waves(tensors=(tensor,))
    point(w, 4, tensor.ctypes.data)
    w.v[1, 0] = LANE * 0
    run(w, *(f"global_load_dword v{20 + i}, v1, s[4:5] offset:{4 * i}" for i in range(3)))
    for left, there in ((3, 0), (2, 1), (1, 2), (0, 3)):
        run(w, f"s_waitcnt vmcnt({left})")
        values = [tensor[i] if i < there else POISON for i in range(3)]
        assert np.array_equal(w.v[20:23, 0, 0], values)


def test_waves_wait_for_their_own_loads():
    tensor = words(64)
    w = waves(2, tensors=(tensor,))
    w.set_pair(4, np.full(2, tensor.ctypes.data, np.uint64))
    run(w, "global_load_dword v20, v1, s[4:5]")
    w.select(np.array([1]))
    run(w, "s_waitcnt vmcnt(0)")
    assert (w.v[20, 0] == POISON).all() and (w.v[20, 1] == tensor[0]).all()


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("add", lambda old, x: old + x), ("sub", lambda old, x: old - x), ("swap", lambda old, x: x),
        ("or", lambda old, x: old | x), ("and", lambda old, x: old & x), ("xor", lambda old, x: old ^ x),
        ("umax", max), ("umin", min),
        ("smax", lambda a, b: max(a, b, key=lambda x: x - (x >> 31 << 32))),
        ("smin", lambda a, b: min(a, b, key=lambda x: x - (x >> 31 << 32))),
    ],
)  # fmt: skip
def test_atomics_lane_after_lane(name, function):
    tensor = words(4)
    value, olds = int(tensor[1]), []
    w = waves(tensors=(tensor,))
    point(w, 4, tensor.ctypes.data)
    w.v[1, 0], w.v[2, 0] = 4, words(64, 3)
    landed(w, f"global_atomic_{name} v20, v1, v2, s[4:5] sc0")
    for lane in range(64):
        olds.append(value)
        value = function(value, int(w.v[2, 0, lane])) & 0xFFFFFFFF
    assert np.array_equal(w.v[20, 0], np.array(olds, np.uint32)) and tensor[1] == value
    landed(w, f"global_atomic_{name} v1, v2, s[4:5]")


def test_scratch_belongs_to_a_lane():
    w = waves()
    w.v[20:24, 0] = words(256).reshape(4, 64)
    landed(w, "scratch_store_dwordx4 off, v[20:23], off offset:16", "scratch_load_dwordx2 v[24:25], off, off offset:24")
    assert np.array_equal(w.v[24:26], w.v[22:24])
    w.s[4] = 16
    landed(w, "scratch_load_dword v26, off, s4")
    assert np.array_equal(w.v[26], w.v[20])


def test_scratch_of_every_width_lands_where_it_was_stored():
    w = waves()
    w.v[20:23, 0] = words(192).reshape(3, 64)
    landed(w, "scratch_store_dword off, v20, off offset:32", "scratch_store_dwordx2 off, v[21:22], off offset:36")
    landed(w, "scratch_store_dword off, v20, off offset:44", "scratch_load_dwordx4 v[24:27], off, off offset:32")
    assert np.array_equal(w.v[24:27], w.v[20:23]) and np.array_equal(w.v[27], w.v[20])


def test_a_strided_buffer_is_refused():
    tensor = words(64)
    w = waves(tensors=(tensor,))
    buffer(w, 8, tensor)
    w.s[9] |= np.uint32(16 << 16)
    with pytest.raises(NotExecutable, match="stride"):
        run(w, "buffer_load_dword v20, v1, s[8:11], 0 offen")


@pytest.mark.parametrize(("load", "most"), [("global_load_dword v{}, v1, s[4:5]", 63), ("ds_read_b32 v{}, v1", 15)])
def test_more_accesses_than_a_counter_can_tell(load, most):
    """One more is issued when the first has landed: the compiler leaves out the wait for it."""
    tensor = words()
    w = waves(tensors=(tensor,))
    point(w, 4, tensor.ctypes.data)
    w.v[1, 0] = LANE * 4
    run(w, load.format(20), *[load.format(21)] * (most - 1))
    assert (w.v[20, 0] == POISON).all()
    run(w, load.format(21))
    assert (w.v[20, 0] == (tensor[:64] if most == 63 else 0xA5A5A5A5)).all() and (w.v[21, 0] == POISON).all()
