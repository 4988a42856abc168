"""What Helion is told of symmetric memory, and that its own module has its place back after it."""

from types import SimpleNamespace

import pytest
from helion import _dist_utils

from dsl_helion import symmetric_memory

OLD = SimpleNamespace(rendezvous=lambda tensor: tensor)  # of a torch that cannot tell


def test_a_torch_that_cannot_tell_is_answered_for(monkeypatch):
    monkeypatch.setattr(_dist_utils, "symm_mem", OLD)
    with symmetric_memory.ruled_out(), symmetric_memory.ruled_out():
        assert _dist_utils.symm_mem.is_symm_mem_tensor(None) is False
        assert _dist_utils.symm_mem.rendezvous is OLD.rendezvous
    assert _dist_utils.symm_mem is OLD


def test_a_fault_while_tracing_leaves_helion_as_it_was(monkeypatch):
    monkeypatch.setattr(_dist_utils, "symm_mem", OLD)
    with pytest.raises(ZeroDivisionError), symmetric_memory.ruled_out():
        raise ZeroDivisionError
    assert _dist_utils.symm_mem is OLD


def test_a_torch_that_can_tell_is_asked(monkeypatch):
    told = SimpleNamespace(is_symm_mem_tensor=lambda tensor: True)
    monkeypatch.setattr(_dist_utils, "symm_mem", told)
    with symmetric_memory.ruled_out():
        assert _dist_utils.symm_mem is told
