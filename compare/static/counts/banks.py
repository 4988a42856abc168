"""LDS bank conflicts: the clocks that an access takes over the fewest that it could take.

A wave's access is served in phases. In a phase each bank delivers one word of 4 bytes, so lanes that want different
words of one bank wait for each other; lanes that want the same word share it.

gfx942 (gfx90a): 32 banks; a phase takes 32 words: 8 lanes of 16 bytes, 16 of 8, 32 of 4 (Composable Kernel,
"Understanding AMD GPU LDS and bank conflicts"; ROCm blog, "Avoiding LDS bank conflicts"). Reads of 16 bytes pair lanes
0-3 with 20-23, 4-7 with 16-19, 8-11 with 28-31, 12-15 with 24-27 (the same blog). gfx950: 64 banks; reads take two of
these phases at once, writes one (HipKittens, analysis/paper_experiments/phases: 4 phases of ds_read_b128, 2 of
ds_read_b64, 4 of ds_write_b64).
"""

import numpy as np

WORD = 4
BANKS = {"gfx90a": 32, "gfx942": 32, "gfx950": 64}
PHASE = 32  # words
_HALF = [*range(4), *range(20, 24), *range(4, 8), *range(16, 20), *range(8, 12), *range(28, 32), *range(12, 16),
         *range(24, 28)]  # fmt: skip
_HALF_64 = [*range(4), *range(20, 24), *range(12, 16), *range(24, 28), *range(4, 8), *range(16, 20), *range(8, 12),
            *range(28, 32)]  # fmt: skip


def lanes(arch: str, way: str, size: int) -> np.ndarray:
    """int [phases, lanes of a phase]: which lanes of a wave are served together. way: read or write; size: bytes."""
    words = PHASE * (BANKS[arch] // PHASE if way == "read" else 1)
    together = min(words * WORD // max(size, WORD), 64)
    together = 1 << (together.bit_length() - 1)  # 12 bytes a lane: lanes in a power of two
    if way == "read" and size == 16:
        half = np.array(_HALF if BANKS[arch] == 32 else _HALF_64)
        return np.concatenate([half, half + 32]).reshape(-1, together)
    return np.arange(64).reshape(-1, together)


def clocks(arch: str, way: str, size: int, at: np.ndarray, mask: np.ndarray) -> tuple[int, int]:
    """(clocks taken, fewest for so many words). at: int [n, 64], byte addresses; mask: bool [n, 64]."""
    order = lanes(arch, way, size)
    count = max(size // WORD, 1)
    word = (at // WORD)[:, order][..., None] + np.arange(count)
    word = np.where(mask[:, order][..., None], word, -1).reshape(-1, order.shape[1] * count)
    word = np.sort(word, axis=1)
    new = np.ones(word.shape, bool)
    new[:, 1:] = word[:, 1:] != word[:, :-1]
    new &= word >= 0
    row, _ = np.nonzero(new)
    banks = BANKS[arch]
    served = np.bincount(row * banks + word[new] % banks, minlength=len(word) * banks).reshape(len(word), banks)
    wanted = new.sum(1)
    return int(served.max(1).sum()), int((-(-wanted // banks)).sum())
