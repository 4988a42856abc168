"""What Gluon calls by another name from triton 3.6 to 3.9: taken from here and nowhere else.

In: Gluon, whichever release is installed. Out: its functions by their newest names. Two of them are called async_load:
ampere's, which takes pointers, is `async_copy` here. tests/kernels/native says when one of them may go.
"""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import ampere
from triton.experimental.gluon.language.nvidia.hopper import tma

_memory = gl.shared_memory_descriptor

barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
async_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
async_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
_copies = ampere.async_copy  # by pointers; tma's takes boxes
async_copy = _copies.async_load if hasattr(_copies, "async_load") else _copies.async_copy_global_to_shared
reinterpret = _memory.reinterpret if hasattr(_memory, "reinterpret") else _memory._reinterpret
