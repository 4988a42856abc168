"""What `study stress` launches: all that prompts can get from trees and defaults, and a sample of other configs."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from common.gpus import Gpu
from common.serving.grid import reachable_stats
from common.spec import AttentionShape
from common.spec.metadata import SHORT_QUERY, BatchStats
from compare.competitors import registry, sources

KERNELS = "triton/*,helion/*,triton/native.sm90_prefill"
CHOSEN, SAMPLED = "chosen", "sampled"
SOME_SEQS = (1, 2, 4, 8, 16, 64, 256)  # of the grid's: others add three counts of segments, and take minutes more
WGMMA_ROWS, WGMMA_WARPS = 64, 4  # what one product takes of a program; smaller ones cannot have it


@dataclass(frozen=True)
class Subject:
    """A kernel by a config. origin: CHOSEN or SAMPLED. source: the hash of the kernel's files. launches: asked for."""

    kernel: str
    config: dict[str, Any]
    origin: str
    source: str
    workload: str
    launches: int

    @property
    def id(self) -> str:
        """12 hex digits over all that decides the launches but the machine and its versions."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


def subjects(
    kernels: Sequence[str], shape: AttentionShape, gpu: Gpu, workload: str, launches: int, samples: int, seed: int
) -> list[Subject]:
    """The chosen ones of all kernels first. samples: of each kernel's space, the same ones for a seed."""
    points = _prompts()
    chosen, sampled = [], []
    for kernel_id in kernels:
        kernel, source = registry.load(kernel_id), sources.of_kernel(kernel_id)
        known: set[str] = set()
        for origin, configs, found in (
            (CHOSEN, _chosen(kernel_id, kernel, shape, gpu, points), chosen),
            (SAMPLED, _sampled(kernel, shape, gpu, samples, seed), sampled),
        ):
            for plain in map(registry.config_dict, dict.fromkeys(configs)):  # points share configs
                if (key := json.dumps(_for_prompts(plain), sort_keys=True)) not in known:
                    known.add(key)
                    found.append(Subject(kernel_id, plain, origin, source, workload, launches))
    return chosen + sampled


def _prompts() -> list[BatchStats]:
    """Points of the grid with prompts in them, alone or beside decodes."""
    some = [stats for stats in reachable_stats(8192, max(SOME_SEQS), 131072) if stats.num_seqs in SOME_SEQS]
    return [s for s in some if s.max_query_len > SHORT_QUERY and s.num_decodes in (0, s.num_seqs - 1)]


def _chosen(kernel_id: str, kernel: Any, shape: AttentionShape, gpu: Gpu, points: list[BatchStats]) -> Iterator[Any]:
    for heuristics in registry.HEURISTICS:
        for stats in points:
            yield registry.default_config(kernel_id, kernel, shape, stats, gpu, heuristics)[0]
    yield kernel.DEFAULT


def _sampled(kernel: Any, shape: AttentionShape, gpu: Gpu, samples: int, seed: int) -> list[Any]:
    space = list(kernel.space(shape, gpu)) if samples and hasattr(kernel, "space") else []
    able = {json.dumps(_for_prompts(plain), sort_keys=True): one for one in space if _may(plain := _plain(one))}
    return random.Random(seed).sample(list(able.values()), min(samples, len(able)))


def _plain(config: Any) -> dict[str, Any]:
    return registry.config_dict(config) or {}


def _for_prompts(plain: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that long queries take: a prompt launches no other."""
    return plain.get("prefill", plain)


def _may(plain: dict[str, Any]) -> bool:
    part = _for_prompts(plain)
    return part.get("block_m", WGMMA_ROWS) >= WGMMA_ROWS and part.get("num_warps", WGMMA_WARPS) >= WGMMA_WARPS
