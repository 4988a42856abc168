"""A batch as bytes for the child and back: whole storages, with guard bands, in the case's layout.

The bytes lie in this process's memory (`common.kit.memory`): the child gets descriptors and no paths.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from common.kit import memory
from common.kit.isolated import HINTS
from common.oracle.integrity import same_bits
from common.spec import Features, PagedBatch

_INPUTS = ("query", "key_cache", "value_cache", "block_table", "query_start_loc", "seq_lens", "key", "value")


def _bytes(tensor: Tensor) -> Tensor:
    """uint8 [bytes]: the whole storage of a tensor, as a view."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def arguments(
    batch: PagedBatch, features: Features, written: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A call's tensors by name, and its other values: what the adapters of `common.kit.isolated` take."""
    tensors = {name: getattr(batch, name) for name in _INPUTS if getattr(batch, name) is not None}
    asked = {field.name: getattr(features, field.name) for field in fields(features)}
    tensors |= {name: value for name, value in asked.items() if isinstance(value, Tensor)} | written
    call = {name: value for name, value in asked.items() if not isinstance(value, Tensor)}
    call |= {"softmax_scale": batch.softmax_scale, "layout": batch.layout.value, "stats": asdict(batch.stats)}
    call |= {name: getattr(batch.stats, name) for name in HINTS}
    return tensors, call


@dataclass(frozen=True)
class Image:
    """A call's tensors by name, their storages, and its other values."""

    tensors: dict[str, Tensor]
    written: frozenset[str]
    storages: list[Tensor]
    place: dict[str, int]
    call: dict[str, Any]

    @classmethod
    def of(cls, batch: PagedBatch, features: Features, written: dict[str, Tensor]) -> "Image":
        """written: out, and lse where asked for, filled with poison."""
        tensors, call = arguments(batch, features, written)
        storages: dict[int, Tensor] = {}
        for tensor in tensors.values():
            storages.setdefault(tensor.untyped_storage().data_ptr(), _bytes(tensor))
        order = list(storages)
        place = {name: order.index(tensor.untyped_storage().data_ptr()) for name, tensor in tensors.items()}
        return cls(tensors, frozenset(written), list(storages.values()), place, call)

    @property
    def num_tokens(self) -> int:
        """How many rows of the written tensors are a sequence's."""
        return int(self.tensors["query_start_loc"][-1])

    def given(self) -> memory.Memory:
        """The storages, consecutively, read-only for everybody else."""
        return memory.holding(memoryview(storage.numpy()) for storage in self.storages)

    def room(self) -> memory.Memory:
        """The same number of bytes, for the child to write."""
        return memory.empty(sum(storage.numel() for storage in self.storages))

    def request(self) -> dict[str, Any]:
        """What the child must know of the storages."""
        described = {
            name: [self.place[name], str(t.dtype).removeprefix("torch."), list(t.shape), list(t.stride()),
                   t.storage_offset()]
            for name, t in self.tensors.items()
        }  # fmt: skip
        return {"storages": [storage.numel() for storage in self.storages], "tensors": described, "call": self.call}

    def returned(self, room: memory.Memory, num_tokens: int) -> tuple[dict[str, Tensor], list[str]]:
        """The written tensors as they came back, and a sentence for each forbidden change.

        Each byte is read once, so that what the child writes meanwhile is not judged twice differently.
        """
        raw, sizes = room.read(), [storage.numel() for storage in self.storages]
        if len(raw) != sum(sizes):
            return {name: self.tensors[name] for name in self.written}, ["did not send its tensors back whole"]
        whole = torch.frombuffer(raw, dtype=torch.uint8)
        # copies, because views of larger dtypes need aligned storages
        back = [part.clone() for part in whole.split(sizes)]
        found = {name: self._view(name, back) for name in self.tensors}
        kept = [storage.clone() for storage in self.storages]
        for name in self.written:
            self._view(name, kept)[:num_tokens] = found[name][:num_tokens]
        others = {place for place in range(len(kept)) if not torch.equal(kept[place], back[place])}
        damaged = []
        for name in (name for name in found if self.place[name] in others):
            first = num_tokens if name in self.written else 0
            if not same_bits(found[name][first:], self.tensors[name][first:]):
                past = f"wrote rows of {name} past query_start_loc[-1] = {num_tokens}"
                damaged.append(past if name in self.written else f"changed its input {name}")
        if not damaged:
            for place in sorted(others):
                names = [name for name, index in self.place.items() if index == place]
                damaged.append(f"wrote outside {', '.join(names)}")
        return {name: found[name] for name in self.written}, damaged

    def _view(self, name: str, storages: list[Tensor]) -> Tensor:
        like = self.tensors[name]
        empty = torch.empty(0, dtype=like.dtype)
        return empty.set_(
            storages[self.place[name]].untyped_storage(), like.storage_offset(), like.shape, like.stride()
        )
