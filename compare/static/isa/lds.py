"""LDS: bytes shared by a workgroup's waves, with a record of who accessed them since the last barrier.

The model's waves run in step, so a missing barrier would not change values. Instead, an access that depends on an order
which the hardware may choose is a race and a Fault: a read of what another wave wrote since the last common barrier, or
a write that changes what another wave has read or written since. A write that changes nothing is no race.
"""

import numpy as np

from compare.static.isa.errors import Fault

GRANULE = 4  # bytes of one record: two waves may write the halves of a word


class Lds:
    """`groups` workgroups with `size` bytes and `per_group` waves each. Filled with 0xA5: nobody may rely on zeros."""

    def __init__(self, groups: int, size: int, per_group: int) -> None:
        self.size = -(-max(size, 4) // 16) * 16
        self.limit, self.per_group = size, per_group
        self.bytes = np.full(groups * self.size, 0xA5, np.uint8)
        self.views = {n: self.bytes.view(d) for n, d in ((1, np.uint8), (2, np.uint16), (4, np.uint32))}
        self.epoch = np.ones(groups * per_group, np.int32)  # barriers that each wave has passed, plus 1
        notes = (per_group, groups * self.size // GRANULE) if per_group > 1 else (1, 0)
        self.read_at, self.written_at = np.zeros(notes, np.int32), np.zeros(notes, np.int32)
        self.latest: tuple[bool, np.ndarray, np.ndarray] | None = None  # (reading, waves, granules) of the last access

    def _flat(self, waves: np.ndarray, at: np.ndarray, size: int) -> tuple[np.ndarray, int]:
        """Index of the first word of each access in the view of that word's size, int [m]. Raises Fault outside."""
        if len(at) and int(at.max()) + size > self.limit:
            raise Fault(f"LDS address {int(at.max())}, {size} bytes: outside the {self.limit} bytes of the workgroup")
        word = next(word for word in (4, 2, 1) if size % word == 0 and not (at & (word - 1)).any())
        return (at + waves // self.per_group * self.size) // word, word

    def _granules(self, index: np.ndarray, word: int, size: int) -> np.ndarray:
        first = index * word // GRANULE
        return first[:, None] + np.arange((size + GRANULE - 1) // GRANULE)

    def load(self, waves: np.ndarray, at: np.ndarray, size: int) -> np.ndarray:
        """waves, at: int [m] -> uint8 [m, size]. Raises Fault for a race or outside the workgroup's bytes."""
        index, word = self._flat(waves, at, size)
        if self.per_group > 1:
            granules = self._granules(index, word, size)
            self.latest = True, waves, granules
            self._compare(waves, granules, reading=True)
            self.read_at[(waves % self.per_group)[:, None], granules] = self.epoch[waves][:, None]
        return self.views[word][index[:, None] + np.arange(size // word)].view(np.uint8)

    def store(self, waves: np.ndarray, at: np.ndarray, data: np.ndarray) -> None:
        """data: uint8 [m, size]. Raises Fault."""
        size = data.shape[1]
        index, word = self._flat(waves, at, size)
        spots, values = index[:, None] + np.arange(size // word), np.ascontiguousarray(data).view(f"u{word}")
        if self.per_group > 1:
            granules = self._granules(index, word, size)
            self.latest = False, waves, granules
            changed = (self.views[word][spots] != values).any(1)
            self._compare(waves[changed], granules[changed], reading=False, parts=size < GRANULE)
            self.written_at[(waves % self.per_group)[:, None], granules] = self.epoch[waves][:, None]
        self.views[word][spots] = values

    def _compare(self, waves: np.ndarray, granules: np.ndarray, reading: bool, parts: bool = False) -> None:
        """Raise Fault where another wave's access since the last barrier conflicts. parts: of a granule."""
        slot, epoch = waves % self.per_group, self.epoch[waves][:, None]
        for distance in range(1, self.per_group):
            other = ((slot + distance) % self.per_group)[:, None]
            race = (self.written_at[other, granules] == epoch) if reading or not parts else False
            if not reading:
                race |= self.read_at[other, granules] == epoch
            if np.any(race):
                i, _ = np.argwhere(race)[0]
                where = int(granules[race][0]) * GRANULE % self.size
                what = "reads" if reading else "overwrites"
                raise Fault(
                    f"race in LDS: wave {int(slot[i])} {what} address {where}, which wave {int(other[i, 0])} "
                    f"{'wrote' if reading else 'used'} since the last barrier"
                )

    def unproved(self, note: tuple[bool, np.ndarray, np.ndarray]) -> None:
        """An access that no wait had completed when its waves passed a barrier also counts after the barrier."""
        reading, waves, granules = note
        notes = self.read_at if reading else self.written_at
        notes[(waves % self.per_group)[:, None], granules] = self.epoch[waves][:, None]
