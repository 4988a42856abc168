"""A plain function as a kernel of the Protocol: what `diptych-check` takes can be timed as it is.

The function is called through the adapters of the kit, with the batch's own tensors. What it returns in place of
writing to `out` is copied there, inside of the timed call: a kernel that writes to `out` has no such copy.
"""

from typing import Any

import torch

from common.kit import isolated
from common.kit.declared import Declared
from common.kit.wire import arguments
from common.spec import AttentionShape, Features, PagedBatch, UnsupportedFeature


class Function:
    """`target` under its id, as `package.module:function`. Raises SpecError for a declaration that means nothing."""

    DEFAULT = None

    def __init__(self, name: str, target: Any) -> None:
        self._name, self._target = name, target
        self._declared = Declared.of(isolated.described(name, target, "auto"))
        self.SUPPORTS, self.CONTRACT = self._declared.supports, self._declared.contract
        self._call = isolated.ADAPTERS[self._declared.adapter]
        self.__module__ = target.__module__ if hasattr(target, "__module__") else type(target).__module__

    def workspace(self, shape: AttentionShape, capacity: Any, config: None) -> None:
        """It allocates for itself."""

    def launch(
        self,
        batch: PagedBatch,
        features: Features,
        out: torch.Tensor,
        config: None,
        workspace: None,
        *,
        lse: torch.Tensor | None = None,
    ) -> None:
        """One call. Raises UnsupportedFeature for a batch beyond its LIMITS, and what the function raises."""
        if why := self._declared.beyond(batch.shape, batch.stats.max_query_len):
            raise UnsupportedFeature(self._name, why, "what its LIMITS have")
        written = {"out": out} | ({} if lse is None else {"lse": lse})
        tensors, call = arguments(batch, features, written)
        found = isolated.returned(self._call(self._target, tensors, call), self._target)
        for (name, into), given in zip(written.items(), found, strict=False):
            if given is not None:
                isolated.keep(name, given, into, batch.stats.num_tokens)
