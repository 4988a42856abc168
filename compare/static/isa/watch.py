"""What an observer of the model is told while code runs. The model itself counts little and has no caches."""

import numpy as np


class Watch:
    """Override to count (compare.static.counts). `groups`: int [n], each wave's workgroup, numbered in the order in
    which the hardware starts them: x fastest."""

    def ran(self, begin: int, end: int, groups: np.ndarray) -> None:
        """These waves execute instructions [begin, end) of the listing, without a branch inside."""

    def touched(self, way: str, size: int, groups: np.ndarray, where: np.ndarray, inside: np.ndarray) -> None:
        """A vector access of global memory. way: load or store; size: bytes a lane; where: uint64 [n, 64], addresses,
        each tensor at an aligned one (Memory.placed); inside: bool [n, 64], lanes that reach memory."""

    def shared(self, way: str, size: int, at: np.ndarray, mask: np.ndarray) -> None:
        """An access of LDS. way: read or write; size: bytes a lane; at: int [n, 64], addresses in the workgroup's
        bytes; mask: bool [n, 64], active lanes."""

    def waited(self, under_way: np.ndarray, left: int) -> None:
        """An s_waitcnt of vector memory. under_way: int [n], loads in flight before it; left: how many may stay in
        flight."""
