"""A kernel that makes the plan of a step in every call: what a call without a plan costs.

Serving engines plan a step once for all of its layers, so a kernel's `prepare` is outside the time, FlashAttention 3's
metadata as much as ours. `@planning` behind an id is the other column.
"""

from typing import Any

import torch

from common.spec import Features, PagedBatch
from common.spec.kernel import Kernel, planned


class Wrapped:
    """`kernel` with all that it has, but for the member `without`."""

    without = ""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        if name == self.without:
            raise AttributeError(name)
        return getattr(self._kernel, name)


class Planning(Wrapped):
    """`kernel` without its `prepare`, which every launch makes first."""

    without = "prepare"

    def launch(
        self,
        batch: PagedBatch,
        features: Features,
        out: torch.Tensor,
        config: Any,
        workspace: Any,
        *,
        lse: torch.Tensor | None = None,
    ) -> None:
        """One plan and one call. Raises what either does."""
        workspace = planned(self._kernel, batch, features, config, workspace)
        self._kernel.launch(batch, features, out, config, workspace, lse=lse)
