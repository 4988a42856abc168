"""Configs as compilers tell them apart: few numbers of segments, and the parts of a choice that are compiled alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from common.choice.legal import MOST_SEGMENTS
from common.serving.grid import KEYS, power_of_two
from common.spec import AttentionShape
from common.spec.metadata import SHORT_QUERY, BatchStats

# Partial results of short queries that a choice may ask scratch for: 85 segments of 96 sequences of up to 16 tokens
# would be 2.1 GB of 32 heads of 128, for programs that fill an H200 ten times.
MOST_PARTS_BYTES = 2**28


def few_segments(config: Any, shape: AttentionShape, stats: BatchStats) -> Any:
    """`config` and its parts with the nearest number of segments of KEYS, by ratio, and few enough for
    MOST_PARTS_BYTES of partial results; what is no dataclass stays as it is."""
    tokens = max(stats.num_seqs, 1) * min(max(stats.max_query_len, 1), SHORT_QUERY)
    most = MOST_PARTS_BYTES // (4 * tokens * shape.num_query_heads * (shape.value_lanes + 2))
    return _with_segments(config, max(min(most, MOST_SEGMENTS), 1))


def pieces(choice: Any) -> list[tuple[str, str, Any]]:
    """What the launches of a choice (common/serving/choice.py) are compiled for: (kernel, part, its config), or the
    whole where there are no parts.

    A part is of the kernel whose Config it is: the decodes of unpaged and of adjustable_tile are both launches of
    parallel_softmax, compiled once. So are numbers of segments (a Config's RUN_TIME) that round up to one power of two,
    which is what their merge is compiled for, and that 16 divides alike, which Triton asks of Helion's integers.
    """
    config = _compiled(choice.config)
    names = [field.name for field in dataclasses.fields(config)] if dataclasses.is_dataclass(config) else []
    parts = {name: getattr(config, name) for name in names}
    if not any(map(dataclasses.is_dataclass, parts.values())):
        return [(choice.kernel, "", config)]
    rest = tuple((name, value) for name, value in parts.items() if not dataclasses.is_dataclass(value))
    launched = {name: value for name, value in parts.items() if dataclasses.is_dataclass(value)}
    return [(type(value).__module__, name, (value, rest)) for name, value in launched.items()]


def _kind(number: int) -> int:
    """The power of two that is no smaller; where 16 divides that and not the number, one less, which no choice has."""
    power = power_of_two(number)
    return power - 1 if power >= 16 and number % 16 else power


@lru_cache(4096)
def _compiled(config: Any) -> Any:
    return changed(config, lambda part: getattr(part, "RUN_TIME", ()), _kind)


@lru_cache(4096)
def _with_segments(config: Any, most: int) -> Any:
    allowed = [n for n in KEYS if n <= most]

    def nearest(wanted: int) -> int:
        return min(allowed, key=lambda n: abs(math.log(n / wanted)))

    return changed(config, lambda _: ("num_segments",), nearest)


def changed(config: Any, names: Callable[[Any], Sequence[str]], change: Callable[[int], int]) -> Any:
    """`config` with `change` of each field that `names` gives for it and for each of its parts; what is no dataclass
    stays as it is."""
    if not dataclasses.is_dataclass(config):
        return config
    changes = {}
    for name in (one.name for one in dataclasses.fields(config)):
        value = getattr(config, name)
        if name in names(config):
            changes[name] = change(value)
        elif dataclasses.is_dataclass(value):
            changes[name] = changed(value, names, change)
    return dataclasses.replace(config, **changes) if changes else config
