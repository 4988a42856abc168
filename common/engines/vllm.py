"""vLLM's plugin: entry point `vllm.general_plugins`. Imports nothing of vLLM but its registry, and no kernel."""

import warnings
from importlib import metadata

from common.versions import series

TRIED = ("0.25.1", "0.33.0")  # the first on an H200, the other on a CPU; docs/engines.md has the table
BACKEND = f"{__name__}_backend.DiptychBackend"


def register() -> None:
    """Make `--attention-backend CUSTOM` ours. May be called again, as vLLM does in each process. Raises SpecError where
    there is no vLLM."""
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ModuleNotFoundError as error:
        from common.spec import SpecError

        raise SpecError("vllm", f"no module {error.name}", f"vLLM of {' or '.join(TRIED)}: pip install vllm") from error

    version = metadata.version("vllm")
    if series(version) not in map(series, TRIED):
        tried = ", ".join(TRIED)
        warnings.warn(f"diptych: vLLM {version} was never tried ({tried} were); it goes on", stacklevel=2)
    register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
