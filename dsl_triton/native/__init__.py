"""Kernels for one vendor's machine alone, in columns of their own; nothing portable imports them.

sm90_prefill.py has the config, the launch and the kernel that sets up shared memory; what its warps do then stands in
sm90_load.py (items, Q, K, V) and sm90_compute.py (products, softmax, the output). auto.py has the public calls that may
choose it: those of dsl_triton.
"""

from typing import Any

import dsl_triton

__all__ = [
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "paged_attention",
    "plan_paged_attention",
    "workspace_bytes",
]


def __getattr__(name: str) -> Any:
    """The public calls are dsl_triton's."""
    if name in __all__:
        return getattr(dsl_triton, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
