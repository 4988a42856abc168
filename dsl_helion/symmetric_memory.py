"""Tell Helion that no tensor of ours lies in symmetric memory, where it cannot see that itself.

torch 2.11 cannot say whether other processes write to a tensor; 2.13 can. Where it cannot and torch.distributed runs,
as in vLLM even on one GPU, Helion 1.5 takes every tensor for symmetric memory. It then gives each kernel a persistent
grid of one program per SM, so that the programs of all processes are resident: inside vLLM on an H200 decodes took 2.9
times as long.

The private hook, the name `symm_mem` in Helion's `_dist_utils`, is used here alone.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from helion import _dist_utils

_one_thread = threading.RLock()


@contextmanager
def ruled_out() -> Iterator[None]:
    """A context for Helion's look at a kernel's arguments: its keys, its tracing, its choice of a grid."""
    with _one_thread:
        theirs = getattr(_dist_utils, "symm_mem", None)
        if theirs is not None and not hasattr(theirs, "is_symm_mem_tensor"):
            _dist_utils.symm_mem = SimpleNamespace(**vars(theirs), is_symm_mem_tensor=lambda tensor: False)
        try:
            yield
        finally:
            if theirs is not None:
                _dist_utils.symm_mem = theirs
