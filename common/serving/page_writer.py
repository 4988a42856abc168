"""Write a step's new K and V into pages; launches are kept by signature, as a plan's attention is."""

from typing import NamedTuple

import torch

from common.serving import tape
from common.serving.arguments import beyond
from common.serving.choice import Family
from common.serving.signatures import NOT_A_CALL, Signatures
from common.serving.tape import Tape
from common.spec import is_per_token
from common.spec.cache import CacheWrite
from common.spec.overlap import Places
from common.spec.refusals import expect_stored

_address = torch.Tensor.data_ptr


class Kept(NamedTuple):
    tape: Tape
    places: Places


class PageWriter:
    """`cache.launch` of one DSL, without Triton's dispatch from the second call of a signature on."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._signatures: Signatures[Kept] = Signatures()

    @property
    def kept(self) -> tuple[int, int]:
        """(signatures whose launch is repeated, all known signatures)."""
        return self._signatures.counts

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
            others = (key_scale is None, value_scale is None, beyond(given), torch.is_grad_enabled())
            known, kept = self._signatures.find(given, pointers, others)
            if kept is not None and self._again(kept, pointers, key.get_device()):
                return
        except NOT_A_CALL:  # not such tensors: the checks say which
            known = None
        self._launch(CacheWrite(*tensors), known, given if known is not None else [])

    def _again(self, kept: Kept, pointers: list[int], device: int) -> bool:
        if tape.current_device() != device or tape.observed() or kept.places.clash(pointers):
            return False
        kept.tape.replay([*pointers, 0], tape.current_stream(device))
        return True

    def _launch(self, write: CacheWrite, known: tuple | None, given: list[torch.Tensor]) -> None:
        kernel = self.family.kernel("cache")
        expect_stored(write.key, "key")
        device = write.key.device
        with tape.on(device):
            if known is None or known in self._signatures:
                kernel.launch(write)
                return
            with tape.recorded(device) as launches:
                kernel.launch(write)
            kept = None
            if launches:
                made = Tape.of(launches, [*given, None], tape.current_stream(device.index))
                scales = (write.key_scale, write.value_scale)
                written = [write.key_cache, write.value_cache, *(scale for scale in scales if is_per_token(scale))]
                at = [i for i, tensor in enumerate(given) if any(tensor is one for one in written)]
                kept = made and Kept(made, Places(given, at))
            self._signatures.keep(known, kept)
