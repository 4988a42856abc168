"""SGLang's plugin: entry point `sglang.srt.plugins`. Imports SGLang's registry, and no kernel."""

from __future__ import annotations

import warnings
from importlib import metadata
from typing import Any

from common.spec import SpecError

TRIED = ("0.5.23",)  # on a CPU; docs/engines.md has the table
NAME = "diptych"


def register() -> None:
    """Make `--attention-backend diptych` known. May be called again, as SGLang does in each process.

    Raises SpecError where SGLang prepares the steps of its graphs by other methods than this adapter has.
    """
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices

    version = metadata.version("sglang")
    if not hasattr(AttentionBackend, "init_forward_metadata_out_graph"):
        found = f"{version}, whose AttentionBackend has no init_forward_metadata_out_graph"
        raise SpecError("sglang", found, f"{', '.join(TRIED)} or newer")
    if version not in TRIED:
        tried = ", ".join(TRIED)
        warnings.warn(f"diptych: SGLang {version} was never tried ({tried} was); it goes on", stacklevel=2)
    register_attention_backend(NAME)(_made)
    if NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([NAME])


def _made(runner: Any) -> Any:
    from common.engines.sglang_backend import DiptychBackend

    return DiptychBackend(runner)
