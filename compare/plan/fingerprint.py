"""Fingerprints that identify measurements, and the differences between two.

The fingerprint of a cell is known before it runs, and without importing its kernel: workload, source, whose configs and
the files that choose them, GPU, software, spec and timing contract. A finished cell is kept by `--resume`, and two runs
of one are repetitions, exactly where it is the same.
"""

import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from common import gpus
from compare.competitors import registry, sources
from compare.identity import FOLDER, IMPORTED_FROM, plain
from compare.plan.job import Job
from compare.record import folder as run_folder
from compare.record.contract import Contract
from compare.record.records import Record

# Distributions of kernels that are not ours: their source is no file of this project, so their version stands for it.
VENDORS = ("flash-attn-3", "flash-attn", "flashinfer-python", "vllm", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
VENDORS += ("flag-gems", "aiter", "kernels", "conch-triton-kernels", "sglang", "lmdeploy", "xformers")


def of_cells(
    jobs: Sequence[Job],
    gpu: str | None,
    device: str | None,
    contract: Contract,
    heuristics: str = "tree",
    found: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The fingerprint of every planned cell, by its id. gpu: the one that is meant; device: where cells are timed, None
    where they are not. heuristics: whose configs. found: the software of the machine that runs them, None for
    this one's."""
    common = {
        "gpu": gpu,
        "measured": device is not None,
        "spec": run_folder.spec_hash(),
        "contract": contract.name,
        "software": software(device) if found is None else dict(found),
    }
    return {
        cell.id: of(
            workload=cell.workload.id,
            kernel=cell.kernel,
            source=source(cell.kernel),
            choice=choice(cell.kernel, heuristics, common["gpu"]),
            **common,
        )
        for job in jobs
        for cell in job.cells
    }


def of(**parts: Any) -> str:
    """16 hex digits over named parts in plain values, the same whatever their order. Raises TypeError for others."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def software(device: str | None) -> dict[str, str]:
    """Versions of what is installed, and of the GPU's own where one is measured."""
    found = run_folder.versions()
    found |= {name: version for name in VENDORS if (version := _version(name))}
    if device and torch.device(device).type == "cuda":
        found["device"] = torch.cuda.get_device_name(torch.device(device))
        found["cuda" if torch.version.cuda else "rocm"] = str(torch.version.cuda or torch.version.hip)
    return found


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def source(kernel_id: str) -> str:
    """What `compare.competitors.sources.sha` says of a kernel, found by its module's name and not by importing it;
    empty where there is no such file."""
    path = _file(registry.module_path(kernel_id)[0])
    return sources.sha_of(sources.files(path)) if path else ""


def _file(module: str) -> Path | None:
    """The file that importing a module would read."""
    parts = module.split(".")
    for folder in map(Path, dict.fromkeys([str(IMPORTED_FROM), *(place or "." for place in sys.path)])):
        for path in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
            if path.is_file():
                return path
    return None


@cache
def choice(kernel_id: str, heuristics: str, gpu: str | None) -> str:
    """What decides the config of a kernel of the DSL folders: whose configs, and the files that say so, the user's
    winners among them. Those of other GPUs do not count."""
    if not registry.is_own(kernel_id):
        return ""
    dsl = plain(registry.package(kernel_id.split("/")[0]))
    others = {f"{name}.json" for name in gpus.TABLE if name != gpu}
    data = {file for file in _heuristics(dsl).rglob("*.json") if file.name not in others}
    mine = registry.winners_file(kernel_id.split("/")[0], gpus.resolve(gpu)) if gpu in gpus.TABLE else None
    data |= {mine} if mine and mine.exists() else set()
    return of(heuristics=heuristics, files=sources.sha_of(sorted({*_choosing(dsl), *data})))


@cache
def _choosing(dsl: str) -> tuple[Path, ...]:
    """The heuristics of a DSL, all that they and the registry's default_config import, and the data beside them. No
    kernel is among them: its Config stands in its own source."""
    starts = [FOLDER / "compare" / "competitors" / "registry.py", *_heuristics(dsl).rglob("*.py")]
    kernels = {plain(registry.module_path(kernel)[0]) for kernel in registry.OWN}
    return tuple(sources.read_by(starts, ("common", dsl), kernels, FOLDER))


def _heuristics(dsl: str) -> Path:
    return FOLDER / dsl / "heuristics"


def changed(before: Record, after: Record) -> tuple[str, ...]:
    """The differences between two rows of a cell beside times: source, config and its origin."""
    found = []
    if before.source_sha != after.source_sha:
        found.append(f"source {before.source_sha or 'unknown'} -> {after.source_sha or 'unknown'}")
    found += [f"{name} {a} -> {b}" for name, a, b in pairs_that_differ(before.config or {}, after.config or {})]
    if before.config_origin != after.config_origin:
        found.append(f"config of {before.config_origin or 'nobody'} -> {after.config_origin or 'nobody'}")
    return tuple(found)


def pairs_that_differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(name, before, after) for each difference; `none` where a side lacks the name."""
    found = [(name, before.get(name, "none"), after.get(name, "none")) for name in dict.fromkeys([*before, *after])]
    return [each for each in found if each[1] != each[2]]
