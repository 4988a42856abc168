"""The SM clock and throttle state of a GPU, read when nothing is timed: {} where nobody here can tell.

Through NVML where its Python package is installed (under 1 ms a reading), else `nvidia-smi` (about 50 ms), and on AMD
`amd-smi`, then `rocm-smi`. A reader that fails once is not asked again.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

LIMIT_S = 5.0
NVML_EVERY_S, TOOL_EVERY_S = 0.2, 2.0  # seconds between readings: a round is not held up by more than 3%
REASONS = {  # bits of NVML's clock event reasons; idle (0x1) says nothing of work
    0x002: "application_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
}


@dataclass(frozen=True)
class Reading:
    """sm_mhz: megahertz; throttle: names of REASONS, None where the tool does not say."""

    sm_mhz: float
    throttle: frozenset[str] | None = None


def reasons(mask: int) -> frozenset[str]:
    """The names of the bits that are set."""
    return frozenset(name for bit, name in REASONS.items() if mask & bit)


def _nvml(uuid: str) -> Callable[[], Reading]:
    """Raises ImportError without pynvml, pynvml.NVMLError where the driver refuses."""
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read() -> Reading:
        mask = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)
        return Reading(float(pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM)), reasons(int(mask)))

    return read


def _said(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout


def _nvidia_smi(uuid: str, mask_field: str) -> Callable[[], Reading]:
    def read() -> Reading:
        asked = f"--query-gpu=clocks.sm,{mask_field}"
        clock, mask = _said(["nvidia-smi", f"--id={uuid}", asked, "--format=csv,noheader,nounits"]).split(",")
        return Reading(float(clock), reasons(int(mask.strip(), 16)))

    return read


def _amd_smi(index: int) -> Callable[[], Reading]:
    def read() -> Reading:
        plain = json.loads(_said(["amd-smi", "metric", "--gpu", str(index), "--clock", "--json"]))
        plain = plain.get("gpu_data", plain) if isinstance(plain, dict) else plain
        gpu = plain[0] if isinstance(plain, list) else plain
        clocks = [part["clk"]["value"] for name, part in gpu["clock"].items() if name.startswith("gfx")]
        return Reading(float(max(clock for clock in clocks if isinstance(clock, int | float))))

    return read


def _rocm_smi(index: int) -> Callable[[], Reading]:
    def read() -> Reading:
        said = _said(["rocm-smi", "-d", str(index), "--showclocks", "--json"])
        found = re.search(r'"sclk clock speed:?": *"\((\d+)Mhz\)"', said, re.IGNORECASE)
        if found is None:
            raise ValueError("no sclk")
        return Reading(float(found[1]))

    return read


def uuid_of(device: torch.device) -> str:
    """`GPU-...`, by which the vendor's tools know a GPU whatever its index; empty where torch does not say."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", "")
    return f"GPU-{uuid}" if uuid else ""


def readers(device: torch.device) -> list[tuple[str, float, Callable[[], Callable[[], Reading]]]]:
    """(source, seconds between readings, its maker) for a device, the best first; none for a CPU."""
    if device.type != "cuda":
        return []
    index = device.index or 0
    if torch.version.hip:
        tools = (("amd-smi", _amd_smi), ("rocm-smi", _rocm_smi))
        return [(name, TOOL_EVERY_S, lambda make=make: make(index)) for name, make in tools]
    uuid = uuid_of(device) or str(index)
    return [
        ("nvml", NVML_EVERY_S, lambda: _nvml(uuid)),
        ("nvidia-smi", TOOL_EVERY_S, lambda: _nvidia_smi(uuid, "clocks_event_reasons.active")),
        ("nvidia-smi", TOOL_EVERY_S, lambda: _nvidia_smi(uuid, "clocks_throttle_reasons.active")),  # before driver 535
    ]


@dataclass
class Clocks:
    """Readings of one device around the rounds of one job after another."""

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
            except Exception:  # no package, no tool, no right to ask: the next may know
                continue
            self._read, self._source, self._every_s = read, source, every_s
            return

    def begin(self) -> None:
        """Forget earlier readings and take one."""
        self._readings, self._last = [], -1e9
        self.sample()

    def sample(self) -> None:
        """A reading, unless the last is younger than the source allows."""
        if self._read is None or time.monotonic() - self._last < self._every_s:
            return
        try:
            self._readings.append(self._read())
        except Exception:  # the tool that answered before is gone
            self._read = None
        self._last = time.monotonic()

    def end(self) -> dict[str, Any]:
        """A last reading, and all as a record holds them: lowest, median and highest MHz, every reason seen."""
        self._last = -1e9
        self.sample()
        if not self._readings:
            return {}
        found = [reading.sm_mhz for reading in self._readings]
        known = [reading.throttle for reading in self._readings if reading.throttle is not None]
        throttle = sorted(frozenset().union(*known)) if known else None
        mhz = [min(found), statistics.median(found), max(found)]
        return {"source": self._source, "sm_mhz": mhz, "throttle": throttle, "readings": len(found)}
