"""A kernel on a case, as whoever tries one does it."""

from __future__ import annotations

from typing import Any

from common.spec import Features, PagedBatch
from common.spec.kernel import Capacity


def ready(kernel: Any, batch: PagedBatch, features: Features, config: Any, workspace: Any = None) -> Any:
    """The workspace with which `kernel.launch` serves this batch: made for its sizes where none is given, and planned
    where the kernel has the host's part of a step, `prepare(batch, features, config, workspace) -> workspace`.

    A launch without its plan may do nothing, and do so without an error. Raises what the kernel's own two raise.
    """
    if workspace is None:
        workspace = kernel.workspace(batch.shape, Capacity.of(batch), config)
    prepare = getattr(kernel, "prepare", None)
    return prepare(batch, features, config, workspace) if prepare else workspace
