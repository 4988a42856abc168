"""Check what a kernel must not change: its inputs, unowned rows of `out`, and guard bands around every tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from common.spec import Features, PagedBatch, validation

# Tensors lie inside larger buffers, so that a write past an edge is seen after the call.


GUARD_BYTES = 4096  # bytes a side, and at least one page of the largest row that a kernel could step by
_PATTERN = 0x7F


class Guards:
    """Allocates tensors between two bands of a byte pattern and tells which bands changed.

    The pattern 0x7F7F... is NaN in fp16 and huge in bf16, fp32 and int32, so a read past an edge changes the result.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._buffers: dict[str, tuple[torch.Tensor, int]] = {}

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised contiguous tensor called `name`. It replaces an earlier tensor of that name."""
        size = math.prod(shape) * dtype.itemsize
        whole = torch.empty(size + 2 * GUARD_BYTES, dtype=torch.uint8, device=self.device)
        whole[:GUARD_BYTES] = _PATTERN
        whole[GUARD_BYTES + size :] = _PATTERN
        self._buffers[name] = (whole, size)
        return whole[GUARD_BYTES : GUARD_BYTES + size].view(dtype).view(shape)

    def full(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, value: float) -> torch.Tensor:
        return self.empty(name, shape, dtype).fill_(value)

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous copy of `tensor` between guards."""
        return self.empty(name, tuple(tensor.shape), tensor.dtype).copy_(tensor)

    def _bands(self) -> list[torch.Tensor]:
        """The two bands of each buffer."""
        return [b for whole, size in self._buffers.values() for b in (whole[:GUARD_BYTES], whole[GUARD_BYTES + size :])]

    def mend(self) -> None:
        """Restore the pattern, so that one kernel's write does not count against the next."""
        for band in self._bands():
            band.fill_(_PATTERN)

    def violated(self) -> list[str]:
        """Names of the tensors whose bands changed: something wrote outside them. Synchronises with the device."""
        if not (bands := self._bands()):
            return []
        changed = (torch.stack(bands) != _PATTERN).view(len(self._buffers), -1).any(dim=1)  # one wait, not one a band
        return [name for name, bad in zip(self._buffers, changed.tolist(), strict=True) if bad]


CHUNK_ELEMENTS = 1 << 24  # 128 MB per int64 temporary
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MIX = (0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64))  # odd constants of SplitMix64, as int64


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bits as integers, a view: NaN compares equal to the same NaN, and -0.0 differs from +0.0."""
    return tensor.view(_BITS[tensor.element_size()])


def words(tensor: Tensor) -> Tensor:
    """The tensor's bits as the widest integers that its layout allows, a view: for bf16 a quarter of the elements."""
    for size in (8, 4, 2):
        ratio = size // tensor.element_size()
        apart = (tensor.storage_offset(), *tensor.stride()[:-1])
        if ratio > 1 and tensor.stride(-1) == 1 and not any(n % ratio for n in (tensor.shape[-1], *apart)):
            return tensor.view(_BITS[size])
    return bits(tensor)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(bits(a), bits(b))


def differing(first: dict[str, Tensor], second: dict[str, Tensor]) -> list[str]:
    """Names of the outputs whose bits differ between two calls."""
    return [name for name, tensor in first.items() if not same_bits(tensor, second[name])]


def fingerprint(tensor: Tensor) -> Tensor:
    """int64 []: a hash of the tensor's bits and their positions. One changed element always changes it.

    Invertible steps mix each word with its index; the results are added modulo 2^64, so exchanged elements change the
    sum too. The computation stays on the device, copies nothing and takes any strides.
    """
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    if not tensor.numel():
        return total
    if tensor.dim() > 2 and tensor.stride(0) == tensor.stride(1):  # pages that overlap, each token once
        tensor = tensor.as_strided((tensor.shape[0] + tensor.shape[1] - 1, *tensor.shape[2:]), tensor.stride()[1:])
    rows = tensor[None] if tensor.dim() == 1 else tensor
    step = max(1, CHUNK_ELEMENTS // max(1, rows[0].numel()))
    for first in range(0, rows.shape[0], step):
        part = words(rows[first : first + step])
        offset, chunk = first * part[0].numel(), part.to(torch.int64).flatten()
        x = chunk * _MIX[0] + torch.arange(offset, offset + chunk.numel(), device=tensor.device) * _MIX[1]
        x = (x ^ ((x >> 31) & 0x1FFFFFFFF)) * _MIX[1]
        total += (x ^ ((x >> 29) & 0x7FFFFFFFF)).sum()
    return total


def inputs_of(batch: PagedBatch, features: Features) -> dict[str, Tensor]:
    """Every tensor that a call reads, by name: those of the batch and of the active features."""
    return {name: value for name, value in validation.inputs_of(batch, features).items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class Snapshot:
    """Fingerprints of a call's inputs before the call."""

    prints: dict[str, Tensor]

    @classmethod
    def of(cls, batch: PagedBatch, features: Features) -> Snapshot:
        return cls({name: fingerprint(tensor) for name, tensor in inputs_of(batch, features).items()})

    def changed(self, batch: PagedBatch, features: Features) -> list[str]:
        """Names of the inputs whose bits changed. Synchronises with the device."""
        now = Snapshot.of(batch, features).prints
        return [name for name, value in self.prints.items() if int(value) != int(now[name])]


def padding_written(out: Tensor, num_tokens: int, poison: float) -> bool:
    """Whether rows of `out` (or `lse`) past `num_tokens` hold anything but the `poison` that filled them."""
    padding = out[num_tokens:]
    return not same_bits(padding, torch.full_like(padding, poison))


def damage(
    snapshot: Snapshot, batch: PagedBatch, features: Features, outputs: dict[str, Tensor], poison: float, guards: Guards
) -> list[str]:
    """One sentence for each thing that a call must not change but did. `outputs` were poisoned before the call."""
    found = [f"changed its input {name}" for name in snapshot.changed(batch, features)]
    num_tokens = int(batch.query_start_loc[-1])
    for name, tensor in outputs.items():
        if padding_written(tensor, num_tokens, poison):
            found.append(f"wrote rows of {name} past query_start_loc[-1] = {num_tokens}")
    return found + [f"wrote outside {name}" for name in guards.violated()]
