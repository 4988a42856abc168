"""The kernel family in Triton. Each file has a twin of the same name in dsl_helion."""

from typing import Any

from common import interpreter
from common.versions import ensure

__all__ = [
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "paged_attention",
    "plan_paged_attention",
    "workspace_bytes",
]


def __getattr__(name: str) -> Any:
    """The public calls, imported with Triton when one is asked for; without a GPU they are interpreted."""
    if name in __all__:
        ensure("triton")
        if interpreter.begin():
            ensure("triton")  # the interpreter needs a newer Triton
        from dsl_triton.native import auto

        return getattr(auto, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
