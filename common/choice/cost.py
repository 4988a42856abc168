"""Microseconds of a candidate by what it waits for: a formula over counts, with one constant a term.

The formula says how long a batch takes and which term limits it; the net (common/choice/model.py) says by how much
its candidates differ, which takes more than counting. Constants are fitted to logs by `python -m compare tune --fit`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.choice.columns import Columns, Launch, launches, moved_us

# us: a call; K, V, queries and outputs at HBM's peak; of the slot that ends last products at the matrix units' peak,
# tiles and starts of programs; partial results, written and merged; the copy out of the pages
TERMS = ("launch", "bytes", "matrix", "tiles", "waves", "merge", "copy")
BYTES, TILES = TERMS.index("bytes"), slice(TERMS.index("matrix"), TERMS.index("waves"))


def terms(
    b: Columns, c: Columns, launched: tuple[Launch, Launch] | None = None, moved: Sequence[np.ndarray] | None = None
) -> np.ndarray:
    """[..., term] of batches and candidates that broadcast, each to be multiplied by its constant. launched, moved: as
    columns.launches and moved_us of them."""
    long, short = launched or launches(b, c)
    kv, parts, copy = moved or moved_us(b, c)
    matrix = sum(one.span * one.products_us * one.together for one in (long, short))
    waves = np.where(long.tiles > 0, long.waves, 0.0) + np.where(short.tiles > 0, short.waves, 0.0)
    made = np.empty((*matrix.shape, len(TERMS)))
    for number, one in enumerate((1.0, kv, matrix, long.span + short.span, waves, parts, copy)):
        made[..., number] = one
    return made


def parted(constants: np.ndarray, found: np.ndarray) -> np.ndarray:
    """[..., term]: microseconds. Bytes and tiles overlap: of the shorter nothing is left."""
    us = found * constants
    of_bytes, of_tiles = us[..., BYTES], us[..., TILES].sum(axis=-1)
    us[..., BYTES] = np.where(of_bytes >= of_tiles, of_bytes, 0.0)
    us[..., TILES] *= (of_bytes < of_tiles)[..., None]
    return us
