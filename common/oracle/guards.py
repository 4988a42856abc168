"""Tensors inside larger buffers, so that a write past an edge is seen after the call."""

from __future__ import annotations

import math

import torch

GUARD_BYTES = 4096  # per side; at least one page of the largest row that a kernel could step by
_PATTERN = 0x7F


class Guards:
    """Allocates tensors between two bands of a byte pattern and tells which bands changed.

    0x7F7F... is NaN in fp16, 3.39e38 in bf16 and fp32, and 0x7F7F7F7F in int32: a read past an edge that reaches a
    result shows too.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._buffers: dict[str, tuple[torch.Tensor, int]] = {}

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised contiguous tensor called `name`; an earlier one of that name is forgotten."""
        size = math.prod(shape) * dtype.itemsize
        whole = torch.empty(size + 2 * GUARD_BYTES, dtype=torch.uint8, device=self.device)
        whole[:GUARD_BYTES] = _PATTERN
        whole[GUARD_BYTES + size :] = _PATTERN
        self._buffers[name] = (whole, size)
        return whole[GUARD_BYTES : GUARD_BYTES + size].view(dtype).view(shape)

    def full(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, value: float) -> torch.Tensor:
        return self.empty(name, shape, dtype).fill_(value)

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` with its values and shape, contiguous, between guards."""
        return self.empty(name, tuple(tensor.shape), tensor.dtype).copy_(tensor)

    def _bands(self) -> list[torch.Tensor]:
        """Two a buffer."""
        return [b for whole, size in self._buffers.values() for b in (whole[:GUARD_BYTES], whole[GUARD_BYTES + size :])]

    def mend(self) -> None:
        """Write the pattern again: what one did to a band is not the next one's fault."""
        for band in self._bands():
            band.fill_(_PATTERN)

    def violated(self) -> list[str]:
        """Names of the tensors whose bands changed: somebody wrote outside them. Waits for the device."""
        if not (bands := self._bands()):
            return []
        changed = (torch.stack(bands) != _PATTERN).view(len(self._buffers), -1).any(dim=1)  # one wait, not one a band
        return [name for name, bad in zip(self._buffers, changed.tolist(), strict=True) if bad]
