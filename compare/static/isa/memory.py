"""Global memory: the tensors that were passed, and nothing else."""

import ctypes
from collections.abc import Iterable

import numpy as np

from compare.static.isa.errors import Fault, NotExecutable

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


class Memory:
    """Byte ranges that a kernel may access. Overlapping ones (K and V in one cache) are merged."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        """ranges: (address, bytes) of host memory, which must outlive this."""
        merged: list[list[int]] = []
        for begin, size in sorted(r for r in ranges if r[1]):
            if merged and begin <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], begin + size)
            else:
                merged.append([begin, begin + size])
        self.begins = np.array([begin for begin, _ in merged], np.uint64)
        self.ends = np.array([end for _, end in merged], np.uint64)
        self._views = [self._words(begin, end) for begin, end in merged]

    @staticmethod
    def _words(begin: int, end: int) -> dict[int, tuple[np.ndarray, int]]:
        """Arrays of 1, 2 and 4-byte words over [begin, end), each from an aligned address on, which is returned too."""
        views = {}
        for size, dtype in _WORDS.items():
            aligned = begin // size * size
            count = (end - aligned) // size
            views[size] = np.frombuffer((ctypes.c_char * (count * size)).from_address(aligned), dtype), aligned
        return views

    def placed(self, addresses: np.ndarray) -> np.ndarray:
        """The addresses with each range moved to a multiple of 2^40, as GPUs align allocations, which the host may not.
        Addresses outside all ranges become arbitrary."""
        each = np.maximum(np.searchsorted(self.begins, addresses, "right") - 1, 0)
        return (addresses - self.begins[each]) + (each.astype(np.uint64) << np.uint64(40))

    def _region(self, addresses: np.ndarray, size: int) -> int:
        """The one range that holds all addresses; -1 where there are several. Raises Fault for an address in none."""
        low, high = addresses.min(), addresses.max()
        first = int(np.searchsorted(self.begins, low, "right")) - 1
        if first >= 0 and int(high) + size <= int(self.ends[first]):
            return first
        each = np.searchsorted(self.begins, addresses, "right") - 1
        outside = (each < 0) | (addresses + np.uint64(size) > self.ends[np.maximum(each, 0)])
        if outside.any():
            raise Fault(f"address {int(addresses[outside][0]):#x}, {size} bytes: outside every tensor that was passed")
        return -1

    def _parts(self, addresses: np.ndarray, size: int) -> Iterable[tuple[np.ndarray | slice, np.ndarray, np.ndarray]]:
        """(which addresses, words of their range, index of the first word) for each range."""
        word = next(word for word in (4, 2, 1) if size % word == 0 and not (addresses & np.uint64(word - 1)).any())
        region = self._region(addresses, size)
        each = np.searchsorted(self.begins, addresses, "right") - 1 if region < 0 else None
        for number in np.unique(each) if region < 0 else [region]:
            words, aligned = self._views[number][word]
            which = slice(None) if region >= 0 else each == number
            yield which, words, ((addresses[which] - np.uint64(aligned)) // np.uint64(word)).astype(np.int64)

    def gather(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """uint64 [m] -> uint8 [m, size]. Raises Fault outside the tensors."""
        out = np.empty((len(addresses), size), np.uint8)
        for which, words, index in self._parts(addresses, size) if len(addresses) else ():
            count = size // words.itemsize
            taken = words[index[:, None] + np.arange(count)] if count > 1 else words[index][:, None]
            out[which] = taken.view(np.uint8)
        return out

    def scatter(self, addresses: np.ndarray, data: np.ndarray) -> None:
        """Write uint8 [m, size] to uint64 [m]; of two writes to one address the later wins. Raises Fault."""
        size = data.shape[1]
        for which, words, index in self._parts(addresses, size) if len(addresses) else ():
            count = size // words.itemsize
            words[index[:, None] + np.arange(count)] = np.ascontiguousarray(data[which]).view(words.dtype)

    def atomic(self, operation: str, address: int, value: int) -> int:
        """One lane's 32-bit atomic; returns the old value. operation: the mnemonic behind `atomic_`."""
        ((_, words, index),) = self._parts(np.array([address], np.uint64), 4)
        if words.itemsize != 4:
            raise NotExecutable(f"global_atomic_{operation}", "of an address that is no multiple of 4")
        old = int(words[index[0]])
        signed = lambda x: x - 2**32 if x >= 2**31 else x  # noqa: E731
        new = {
            "add": lambda: old + value, "sub": lambda: old - value, "swap": lambda: value, "or": lambda: old | value,
            "and": lambda: old & value, "xor": lambda: old ^ value, "umax": lambda: max(old, value),
            "umin": lambda: min(old, value), "smax": lambda: max(old, value, key=signed),
            "smin": lambda: min(old, value, key=signed),
        }[operation]()  # fmt: skip
        words[index[0]] = new & 0xFFFFFFFF
        return old
