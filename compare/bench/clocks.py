"""Read the SM clock and throttle state of a GPU between rounds; {} where nothing here can tell.

Through the vendor's library (NVML, amdsmi: under 1 ms a reading), else by its tool (nvidia-smi, amd-smi: far slower).
A reader that fails is not asked again.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from compare.bench import amd, nvidia
from compare.bench.reading import Reading

LIBRARY_EVERY_S, TOOL_EVERY_S = 0.2, 2.0  # seconds between readings: a round is held up by less than 3%


def vendor() -> ModuleType:
    """The module that knows the GPU that torch was built for."""
    return amd if torch.version.hip else nvidia


def readers(device: torch.device) -> list[tuple[str, float, Callable[[], Callable[[], Reading]]]]:
    """(source, seconds between readings, its maker) for a device, the best first; none for a CPU."""
    if device.type != "cuda":
        return []
    where = vendor().address(device)
    if torch.version.hip:
        return [
            ("amdsmi", LIBRARY_EVERY_S, lambda: amd.by_library(where)),
            ("amd-smi", TOOL_EVERY_S, lambda: amd.by_amd_smi(where)),
        ]
    return [
        ("nvml", LIBRARY_EVERY_S, lambda: nvidia.by_library(where)),
        ("nvidia-smi", TOOL_EVERY_S, lambda: nvidia.by_nvidia_smi(where, "clocks_event_reasons.active")),
        # before driver 535
        ("nvidia-smi", TOOL_EVERY_S, lambda: nvidia.by_nvidia_smi(where, "clocks_throttle_reasons.active")),
    ]


@dataclass
class Clocks:
    """Clock readings of one device around the rounds of a job."""

    device: torch.device
    _read: Callable[[], Reading] | None = None
    _source: str = ""
    _every_s: float = 0.0
    _last: float = -1e9
    _readings: list[Reading] = field(default_factory=list)

    def __post_init__(self) -> None:
        for source, every_s, make in readers(self.device):
            try:
                read = make()
                read()
            except Exception:  # no package, no tool, no permission: try the next
                continue
            self._read, self._source, self._every_s = read, source, every_s
            return

    def begin(self) -> None:
        """Forget earlier readings and take one."""
        self._readings, self._last = [], -1e9
        self.sample()

    def sample(self) -> None:
        """Take a reading, unless the last is younger than the source allows."""
        if self._read is None or time.monotonic() - self._last < self._every_s:
            return
        try:
            self._readings.append(self._read())
        except Exception:  # the tool has disappeared
            self._read = None
        self._last = time.monotonic()

    def end(self) -> dict[str, Any]:
        """Take a last reading; returns all of them as a record holds them: lowest, median and highest MHz, every
        throttle reason."""
        self._last = -1e9
        self.sample()
        if not self._readings:
            return {}
        found = [reading.sm_mhz for reading in self._readings]
        known = [reading.throttle for reading in self._readings if reading.throttle is not None]
        throttle = sorted(frozenset().union(*known)) if known else None
        mhz = [min(found), statistics.median(found), max(found)]
        return {"source": self._source, "sm_mhz": mhz, "throttle": throttle, "readings": len(found)}
