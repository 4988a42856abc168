"""Facts, clocks and users of an NVIDIA GPU, from the library NVML, or from nvidia-smi where NVML's package is
missing."""

import subprocess
from collections.abc import Callable
from typing import Any

import torch

from compare.bench.reading import Reading, said

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
ASKED = {  # nvidia-smi's name: the doctor's name
    "driver_version": "driver",
    "clocks.max.sm": "highest SM clock, MHz",
    "power.limit": "power limit, W",
    "temperature.gpu": "temperature, C",
    "persistence_mode": "persistence mode",
}


def address(device: torch.device) -> str:
    """`GPU-...`, by which NVIDIA's tools know a GPU whatever its index; torch's number where torch does not tell it."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", "")
    return f"GPU-{uuid}" if uuid else str(device.index or 0)


def reasons(mask: int) -> frozenset[str]:
    """The names of the bits that are set."""
    return frozenset(name for bit, name in REASONS.items() if mask & bit)


def by_library(uuid: str) -> Callable[[], Reading]:
    """Raises ImportError without pynvml, pynvml.NVMLError where the driver refuses."""
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read() -> Reading:
        mask = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)
        return Reading(float(pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM)), reasons(int(mask)))

    return read


def energy(device: torch.device) -> Callable[[], float]:
    """Reads the joules that the GPU has taken since its driver was loaded. Raises as `by_library` does."""
    import pynvml

    pynvml.nvmlInit()
    found = pynvml.nvmlDeviceGetHandleByUUID(address(device))
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(found) / 1e3


def by_nvidia_smi(uuid: str, mask_field: str) -> Callable[[], Reading]:
    def read() -> Reading:
        asked = f"--query-gpu=clocks.sm,{mask_field}"
        clock, mask = said(["nvidia-smi", f"--id={uuid}", asked, "--format=csv,noheader,nounits"]).split(",")
        return Reading(float(clock), reasons(int(mask.strip(), 16)))

    return read


def _table(*asked: str) -> str:
    """What nvidia-smi prints; empty where it is absent or refuses."""
    try:
        return said(["nvidia-smi", *asked, "--format=csv,noheader,nounits"]).strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def facts(device: torch.device) -> dict[str, Any]:
    """What nvidia-smi knows of a GPU and torch does not, for the doctor; {} without nvidia-smi."""
    answer = _table(f"--id={address(device)}", f"--query-gpu={','.join(ASKED)}").split(",")
    return dict(zip(ASKED.values(), map(str.strip, answer), strict=True)) if len(answer) == len(ASKED) else {}


def disturbing() -> list[str]:
    """A line for each host setting that disturbs times: none is known."""
    return []


def users(where: str) -> list[tuple[int, int]]:
    """(pid, MiB) of what uses the GPU at this address; [] without nvidia-smi."""
    told = _table(f"--id={where}", "--query-compute-apps=pid,used_memory")
    lines = [line.split(",") for line in told.splitlines() if line]
    return [(int(pid), int(memory) if memory.strip().isdigit() else 0) for pid, memory in lines]
