"""Facts, clocks and users of an AMD GPU, from the library amdsmi, or its clock from amd-smi where it is not installed.

A GPU is named by its address on the bus: torch's number counts what HIP_VISIBLE_DEVICES left, the tools count all GPUs.
amdsmi answers "N/A" for what a GPU or a release does not tell.
"""

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from compare.bench.reading import Reading, said

NUMA_BALANCING = Path("/proc/sys/kernel/numa_balancing")
UNTOLD = 0xFFFF  # the driver's N/A, as some releases return it
# Fields of gpu_metrics, from MI300 on, which count time below the requested clock -> what held it down.
_HELD_BY = {
    "prochot_residency_acc": "processor_hot",
    "ppt_residency_acc": "sw_power_cap",
    "socket_thm_residency_acc": "hw_thermal_slowdown",
    "vr_thm_residency_acc": "voltage_regulator_hot",
    "hbm_thm_residency_acc": "memory_hot",
}


def address(device: torch.device) -> str:
    """`0000:1d:00.0`, the address by which AMD's tools know a GPU; torch's number where torch does not tell it."""
    properties = torch.cuda.get_device_properties(device)
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None in parts:
        return str(device.index or 0)
    return "{:04x}:{:02x}:{:02x}.0".format(*parts)


def _library(where: str) -> tuple[Any, Any]:
    """The library and its handle of a GPU. Raises ImportError without amdsmi, and the library's errors where a driver
    refuses."""
    import amdsmi

    amdsmi.amdsmi_init()
    if ":" in where:
        return amdsmi, amdsmi.amdsmi_get_processor_handle_from_bdf(where)
    return amdsmi, amdsmi.amdsmi_get_processor_handles()[int(where)]


def _number(value: Any) -> float | None:
    """The number in an answer, with or without a unit; None for N/A."""
    value = value.get("value") if isinstance(value, Mapping) else value
    return float(value) if isinstance(value, int | float) and value != UNTOLD else None


def _highest(values: list[Any]) -> float:
    """The clock of the fastest die: the others wait for work. Raises ValueError where none is told."""
    return max(found for value in values if (found := _number(value)) is not None)


def by_library(where: str) -> Callable[[], Reading]:
    """Raises as _library."""
    amdsmi, handle = _library(where)
    before: dict[str, float] = {}

    def read() -> Reading:
        metrics = amdsmi.amdsmi_get_gpu_metrics_info(handle)
        clocks = metrics.get("current_gfxclks", "N/A")
        if isinstance(clocks, str):
            told = amdsmi.amdsmi_get_clock_info(handle, amdsmi.AmdSmiClkType.GFX)
            clocks = [told.get("clk", told.get("cur_clk"))]  # before ROCm 6.2
        spent = {name: at for name in _HELD_BY if (at := _number(metrics.get(name))) is not None}
        held = frozenset(_HELD_BY[name] for name, at in spent.items() if at > before.get(name, at))
        before.update(spent)
        return Reading(_highest(clocks), held if spent else None)

    return read


def by_amd_smi(where: str) -> Callable[[], Reading]:
    def read() -> Reading:
        plain = json.loads(said(["amd-smi", "metric", "--gpu", where, "--clock", "--json"]))
        plain = plain.get("gpu_data", plain) if isinstance(plain, dict) else plain
        gpu = plain[0] if isinstance(plain, list) else plain
        graphics = [part for name, part in gpu["clock"].items() if name.startswith("gfx") and isinstance(part, dict)]
        return Reading(_highest([part.get("clk") for part in graphics]))

    return read


def facts(device: torch.device) -> dict[str, Any]:
    """What amdsmi knows of a GPU and torch does not, for the doctor; {} without amdsmi. What is not told is left
    out."""
    try:
        amdsmi, handle = _library(address(device))
    except Exception:  # no package, no driver, no right to ask
        return {}
    asked: dict[str, Callable[[], Any]] = {
        "driver": lambda: amdsmi.amdsmi_get_gpu_driver_info(handle)["driver_version"],
        "highest SM clock, MHz": lambda: amdsmi.amdsmi_get_clock_info(handle, amdsmi.AmdSmiClkType.GFX)["max_clk"],
        "power limit, W": lambda: _watts(amdsmi.amdsmi_get_power_cap_info(handle)["power_cap"]),
        "temperature, C": lambda: amdsmi.amdsmi_get_temp_metric(
            handle, amdsmi.AmdSmiTemperatureType.JUNCTION, amdsmi.AmdSmiTemperatureMetric.CURRENT
        ),
        "compute partition": lambda: amdsmi.amdsmi_get_gpu_compute_partition(handle),
        "memory partition": lambda: amdsmi.amdsmi_get_gpu_memory_partition(handle),
    }
    found: dict[str, Any] = {}
    for name, ask in asked.items():
        try:
            value = ask()
        except Exception:  # this release or this GPU does not tell it
            continue
        if value not in (None, "N/A", ""):
            found[name] = value
    return found


def _watts(cap: Any) -> Any:
    """The power cap in watts; amdsmi counts microwatts."""
    number = _number(cap)
    return cap if number is None else round(number / 1e6) if number > 1e5 else round(number)


def disturbing() -> list[str]:
    """A line for each host setting that, by AMD's guides for MI300, disturbs times."""
    found = []
    if os.environ.get("HIP_FORCE_DEV_KERNARG") != "1":
        found.append("HIP_FORCE_DEV_KERNARG is not 1: each launch reads its arguments from the host's memory")
    with contextlib.suppress(OSError):
        if NUMA_BALANCING.read_text().strip() != "0":
            found.append(f"{NUMA_BALANCING} is not 0: moving pages may hold the GPU up")
    return found


def users(where: str) -> list[tuple[int, int]]:
    """(pid, MiB) of what uses the GPU at this address. Raises as _library."""
    amdsmi, handle = _library(where)
    found = []
    for one in amdsmi.amdsmi_get_gpu_process_list(handle):
        one = one if isinstance(one, Mapping) else amdsmi.amdsmi_get_gpu_process_info(handle, one)  # before ROCm 6.2
        memory = one.get("memory_usage", {}).get("vram_mem", one.get("mem", 0))
        found.append((int(one["pid"]), int(_number(memory) or 0) >> 20))
    return found
