"""What compare.run.doctor says of a machine: the GPU and its state, versions, and what would disturb or is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

from common.gpus import Gpu
from compare.bench.clocks import Clocks, uuid_of
from compare.competitors import registry
from compare.record import folder as run_folder

LIMIT_S = 10.0
DISK_BYTES = 2 * 2**30  # of results, figures and compiled code
ASKED = {  # what nvidia-smi calls it: what it is called here
    "driver_version": "driver",
    "clocks.max.sm": "highest SM clock, MHz",
    "power.limit": "power limit, W",
    "temperature.gpu": "temperature, C",
    "persistence_mode": "persistence mode",
}
# What a part can do without, and what is lost: a missing package is named before anything runs.
OPTIONAL = {"helion": "every kernel of dsl_helion", "sklearn": "compare.tune.tune", "matplotlib": "figures"}
# Variables that change what is compiled or which GPU is seen, and why one should know.
TELLING = {
    "TRITON_INTERPRET": "kernels would be interpreted",
    "TRITON_CACHE_DIR": "compiled code lies elsewhere",
    "TRITON_ALWAYS_COMPILE": "no compiled code is kept: processes after the first are no cheaper",
    "CUDA_LAUNCH_BLOCKING": "every launch waits: host time is not what it is",
    "ROCR_VISIBLE_DEVICES": "hides GPUs below HIP's own mask, and both may be set",
    "HIP_VISIBLE_DEVICES": "which GPUs are seen",
    "CUDA_VISIBLE_DEVICES": "which GPUs are seen",
}


def _nvidia_smi(*asked: str) -> str:
    """What nvidia-smi prints; nothing where it is absent or refuses."""
    try:
        command = ["nvidia-smi", *asked, "--format=csv,noheader,nounits"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def of_gpu(gpu: Gpu, device: torch.device) -> dict[str, Any]:
    """Facts of the GPU that is here: names and values, as text or numbers."""
    properties = torch.cuda.get_device_properties(device)
    found: dict[str, Any] = {"GPU": gpu.title, "torch calls it": properties.name, "units": gpu.units}
    found["memory, GiB"] = round(properties.total_memory / 2**30, 1)
    if torch.version.hip is None:
        answer = _nvidia_smi(f"--id={uuid_of(device) or 0}", f"--query-gpu={','.join(ASKED)}").split(",")
        found |= dict(zip(ASKED.values(), map(str.strip, answer), strict=False)) if len(answer) == len(ASKED) else {}
    clocks = Clocks(device)
    clocks.begin()
    state = clocks.end()
    return found | ({"SM clock now, MHz": state["sm_mhz"][1], "throttled by": state["throttle"]} if state else {})


def versions() -> dict[str, str]:
    built = torch.version.cuda or torch.version.hip
    return run_folder.versions() | ({"torch built for": built} if built else {})


def lacking() -> list[str]:
    """One line for each package that is not here and what it costs."""
    found = [f"{name} is not installed: without {lost}" for name, lost in OPTIONAL.items() if not _here(name)]
    try:
        registry.load("baseline/flash_attn3")
    except registry.Unavailable as error:
        found.append(f"FlashAttention 3 is not here: its rows say unavailable ({error})")
    return found


def _here(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def warnings(device: torch.device | None) -> list[str]:
    """One line for each thing that is missing, or that would disturb a measurement. device: None without a GPU."""
    found = lacking()
    found += [f"{name}={os.environ[name]}: {why}" for name, why in TELLING.items() if name in os.environ]
    free = shutil.disk_usage(Path.cwd()).free
    if free < DISK_BYTES:
        found.append(f"{free / 2**30:.1f} GiB of disk are free here: a run needs up to {DISK_BYTES / 2**30:.0f}")
    if device is None or torch.version.hip:
        return found
    others = [line for line in _nvidia_smi("--query-compute-apps=pid,used_memory").splitlines() if line]
    others = [line for line in others if line.split(",")[0].strip() != str(os.getpid())]
    if others:
        found.append(f"{len(others)} other processes use the GPU (pid, MiB): {'; '.join(others)}")
    if not Clocks(device).end():
        found.append("neither pynvml nor nvidia-smi tells the SM clock: throttling would not be seen")
    return found
