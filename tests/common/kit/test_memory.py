"""Memory for a child has one size, what is given cannot be written, and what comes back is read once."""

import os

import pytest
import torch

from common.cases.case import build, outputs
from common.kit import memory
from common.kit.levels import read
from common.kit.wire import Image
from common.oracle.integrity import Guards

sealed = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="of Linux")


@pytest.fixture(params=["memfd", "file"])
def kind(request, monkeypatch):
    if request.param == "file":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("of Linux")
    return request.param


def test_bytes_come_back_as_they_were_written(kind, monkeypatch):
    monkeypatch.setattr(memory, "CHUNK", 3)
    with memory.holding([memoryview(b"one, "), memoryview(b""), memoryview(b"two")]) as given:
        assert given.read() == b"one, two"
    with memory.empty(8) as room:
        os.pwrite(room.descriptor, b"two", 5)
        assert room.read() == b"\0" * 5 + b"two"


@sealed
def test_a_child_can_neither_grow_nor_cut_nor_write_what_is_sealed():
    with memory.holding([memoryview(b"12345678")]) as given, memory.empty(8) as room:
        for one in (given, room):
            for size in (0, 7, 9, 2**50):
                with pytest.raises(PermissionError):
                    os.ftruncate(one.descriptor, size)
        again = os.open(f"/proc/self/fd/{given.descriptor}", os.O_RDWR)
        with pytest.raises(PermissionError):
            os.pwrite(again, b"0", 0)
        os.close(again)


def test_a_file_of_another_size_is_read_no_further(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with memory.empty(8) as room:
        os.ftruncate(room.descriptor, 2**40)
        assert room.read() == bytes(8)
        os.ftruncate(room.descriptor, 3)
        assert room.read() == bytes(3)


def test_what_a_child_writes_while_it_is_judged_is_not_judged():
    """Each byte is read once: what is found of a tensor is what is compared with the inputs."""
    batch, features = build(read("batch-1"), "cpu", Guards("cpu"))
    out, _ = outputs(read("batch-1"), batch, Guards("cpu"), torch.nan)
    image = Image.of(batch, features, {"out": out})

    class Once:
        reads = 0

        def read(self):
            self.reads += 1
            return bytearray(b"".join(storage.numpy().tobytes() for storage in image.storages))

    room = Once()
    found, damaged = image.returned(room, int(batch.query_start_loc[-1]))
    assert (room.reads, damaged, found["out"].shape) == (1, [], out.shape)
