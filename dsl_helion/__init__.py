"""The kernel family in Helion. Each file has a twin of the same name in dsl_triton."""

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
KEEPS_CODE = "dsl_helion.kept"  # what Helion generated, on the disk, for the GPU that is here or for an absent one


def __getattr__(name: str) -> Any:
    """The public calls, imported with Helion when one is asked for; without a GPU they are interpreted."""
    if name in __all__:
        ensure("helion")
        if interpreter.begin():
            ensure("helion")  # the interpreter needs a newer Triton
        from dsl_helion import auto

        return getattr(auto, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
