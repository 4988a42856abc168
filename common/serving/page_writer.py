"""Writing a step's new K and V into pages, kept by signature as the attention of a plan is."""

from __future__ import annotations

from typing import Any

import torch

from common.serving import tape
from common.serving.arguments import aligned, beyond, signature
from common.serving.call import MOST_SIGNATURES, likeness, never
from common.serving.choice import Family
from common.serving.tape import Tape
from common.spec.cache import CacheWrite

_address = torch.Tensor.data_ptr
_NOTHING = never, None


class PageWriter:
    """`cache.launch` of one DSL without its dispatch from the second call of a signature on."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._known: dict[tuple, Tape | None] = {}
        self._recent: dict[tuple, tuple[Any, Tape | None]] = {}

    @property
    def kept(self) -> tuple[int, int]:
        """Signatures whose launch is repeated as it was kept, and all that are known."""
        return sum(one is not None for one in self._known.values()), len(self._known)

    def __call__(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        key_scale: torch.Tensor | None = None,
        value_scale: torch.Tensor | None = None,
    ) -> None:
        """As common.spec.cache.CacheWrite says. Raises SpecError before any launch."""
        tensors = (key, value, key_cache, value_cache, slot_mapping, key_scale, value_scale)
        known = None
        try:
            given = [tensor for tensor in tensors if tensor is not None]
            pointers = [*map(_address, given)]
            others = (key_scale is None, value_scale is None, beyond(given))
            alike, kept = self._recent.get(others, _NOTHING)
            if not (alike(*given) and aligned(pointers)):
                known = signature(given, pointers, others)
                kept = self._known.get(known)
                if kept is not None and aligned(pointers):
                    self._recent[others] = likeness(given), kept
            if kept is not None and self._again(kept, pointers, key.get_device()):
                return
        except (AttributeError, RuntimeError, TypeError):  # no such tensors: the checks say which
            known = None
        self._launch(CacheWrite(*tensors), known, given if known is not None else [])

    def _again(self, kept: Tape, pointers: list[int], device: int) -> bool:
        if tape.current_device() != device or tape.observed() or len({*pointers[:4]}) < 4:
            return False
        kept.replay([*pointers, 0], tape.current_stream(device))
        return True

    def _launch(self, write: CacheWrite, known: tuple | None, given: list[torch.Tensor]) -> None:
        kernel = self.family.kernel("cache")
        device = write.key.device
        with tape.on(device):
            if known is None or known in self._known:
                kernel.launch(write)
                return
            with self.family.recorded(device) as launches:
                kernel.launch(write)
            if len(self._known) == MOST_SIGNATURES:
                self._known.clear()
                self._recent.clear()
            kept = None
            if launches:
                kept = Tape.of(launches, [*given, None], tape.current_stream(device.index))
            self._known[known] = kept
