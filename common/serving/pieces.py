"""The parts of a choice that are compiled separately, and the short list of numbers of segments."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from common.choice.legal import MOST_SEGMENTS
from common.serving.grid import KEYS, power_of_two
from common.spec import AttentionShape
from common.spec.metadata import SHORT_QUERY, BatchStats

# The most scratch for partial results. Without a limit many segments of many sequences would ask for gigabytes, though
# far fewer programs fill a GPU.
MOST_PARTS_BYTES = 2**28


def few_segments(config: Any, shape: AttentionShape, stats: BatchStats) -> Any:
    """Round num_segments of a config and its parts to the nearest of KEYS, within MOST_PARTS_BYTES of scratch. Where
    one launch serves all queries, those of prompts leave partial results too.

    What is no dataclass is returned as it is.
    """
    longest = max(stats.max_query_len, 1)
    longest = longest if hasattr(config, "num_segments") else min(longest, SHORT_QUERY)
    tokens = max(stats.num_seqs, 1) * longest
    most = MOST_PARTS_BYTES // (4 * tokens * shape.num_query_heads * (shape.value_lanes + 2))
    return _with_segments(config, max(min(most, MOST_SEGMENTS), 1))


def pieces(choice: Any) -> list[tuple[str, str, Any]]:
    """Return what the launches of a choice compile: (kernel, part, config of the part), one entry without parts.

    A part names the kernel whose Config it is: the decodes of `unpaged` and of `adjustable_tile` are both launches of
    `parallel_softmax`, which compiles once. Two numbers of segments (a Config's RUN_TIME) share code if both round up
    to the same power of two, for which the merge is compiled, and if 16 divides both or neither, on which Triton
    specialises.
    """
    config = _compiled(choice.config)
    names = [field.name for field in dataclasses.fields(config)] if dataclasses.is_dataclass(config) else []
    fields = [(name, getattr(config, name)) for name in names]
    rest = tuple((name, value) for name, value in fields if not dataclasses.is_dataclass(value))
    launched = [(type(part).__module__, name, (part, rest)) for name, part in fields if dataclasses.is_dataclass(part)]
    return launched or [(choice.kernel, "", config)]


def distinct(choices: Sequence[Any]) -> list[Any]:
    """The first choice of each kernel and config, in order."""
    found: dict[tuple, Any] = {}
    for one in choices:
        found.setdefault((one.kernel, one.config), one)
    return list(found.values())


def reads_new_kv(piece: tuple) -> bool:
    """Whether the code of a piece may read a step's new K and V beside the pages: its config has `new_kv`."""
    config = piece[2]
    return getattr(config[0] if isinstance(config, tuple) else config, "new_kv", False)


def _kind(number: int) -> int:
    """One number of segments that stands for all that share its code: the next power of two, or one less where 16
    divides that power but not the number."""
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
    """Apply `change` to the named fields of a config and of its parts. names: gives the fields of a Config.

    What is no dataclass is returned as it is.
    """
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
