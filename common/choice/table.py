"""The table that the model reads: a row for each batch and candidate, a column for each thing that may matter.

In: columns of batches and of candidates (common/choice/columns.py), the formula's constants (common/choice/cost.py).
Sizes and counts are logarithms: a batch twice as large is one step further, whatever its size.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from common.choice.columns import DSLS, GATHERS, KERNELS, NEUTRAL, Columns, Launch, batches, configs, launches, moved_us
from common.choice.cost import TERMS, parted, terms
from common.gpus import resolve
from common.spec import AttentionShape
from common.spec.metadata import BatchStats

SMALL = 0.01  # beside which logarithms are taken: a count may be 0
FORMULA = -1  # column of the formula's time, as log2


def table(b: Columns, c: Columns, constants: np.ndarray, launched: tuple[Launch, Launch] | None = None) -> np.ndarray:
    """[batch and candidate, column]: what the model reads. b, c: as `launches`; flattened in C order. constants: of
    the formula (common/choice/cost.py). launched: as columns.launches of them.

    What a config has for queries that a batch lacks is 0.
    """
    long, short = launched or launches(b, c)
    rows = b["longest"] * b["ratio"]
    found = [_log(b[name]) for name in ("seqs", "tokens", "longest", "keys", "all_keys", "page", "ratio", "kv_heads")]
    found += [_log(b[name]) for name in ("head", "lanes", "cache_bytes", "hbm", "shared")] + [_log(rows)]
    found += [_log(b["decodes"] + 1), b["prompts"] > 0, b["all_keys"] / (b["seqs"] * b["keys"]), b["head"] < b["lanes"]]
    found += [_log(b[name] + 1) for name in ("keys_of_prompts", "keys_of_shorts")]
    found += [c["dsl"]] + [c["kernel"] == number for number in range(len(KERNELS))]
    of_long = [*_part(b, c, "long_"), _log(c["long_block_m"] / np.minimum(rows, NEUTRAL["block_m"]))]
    of_long += _launched(b, long)
    of_short = [*_part(b, c, "short_"), *_launched(b, short)]
    at_long, at_short = len(found), len(found) + len(of_long)
    found += of_long + of_short
    moved = moved_us(b, c)
    found += [_log(us) for us in moved]
    found += [_log(parted(constants, terms(b, c, (long, short), moved)).sum(axis=-1))]
    made = np.empty((len(found), *long.span.shape))
    for number, one in enumerate(found):
        made[number] = one[0] if isinstance(one, tuple) else one
    logs = [number for number, one in enumerate(found) if isinstance(one, tuple)]
    made[logs] = np.log2(made[logs] + SMALL)
    made[at_long:at_short] *= b["prompts"] > 0
    made[at_short : at_short + len(of_short)] *= b["shorts"] > 0
    return np.ascontiguousarray(made.reshape(len(found), -1).T, dtype=np.float32)


@lru_cache
def width() -> int:
    """Columns of a table."""
    b = batches([(AttentionShape(), BatchStats(1, 1, 1, 1, 1, 1), resolve("h200"))])
    return table(b, configs([(KERNELS[0], {})], DSLS[0]), np.zeros(len(TERMS))).shape[1]


def _part(b: Columns, c: Columns, part: str) -> list[Any]:
    """Of the config of one launch."""
    found = [_log(c[part + name]) for name in NEUTRAL if name != "registers"]
    found += [c[part + "gather"] == number for number in range(len(GATHERS))]
    found += [c[part + "heads_fastest"], c[part + "registers"] > 0]
    keys = np.minimum(b["keys"], b["keys_of_prompts" if part == "long_" else "keys_of_shorts"])
    return [*found, _log(keys / c[part + "tile_size"] / c[part + "num_segments"])]


def _launched(b: Columns, one: Launch) -> list[Any]:
    """Of one launch's counts."""
    products, instructions = one.span * one.together * one.products_us, one.span * one.together * one.instructions
    counts = [
        one.span,
        one.waves,
        one.together,
        one.held,
        one.filled,
        one.programs / b["units"],
        one.tiles / b["units"],
    ]
    return [_log(count) for count in (*counts, products, instructions)]


def _log(x: np.ndarray) -> tuple[np.ndarray]:
    """A column that `table` takes the logarithm of, with all others at once."""
    return (x,)
