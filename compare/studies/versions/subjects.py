"""What compare.studies.versions.versions compiles: every config that the committed heuristics choose, and two rebuilt
regressions; and by which pairs of Triton and Helion."""

from __future__ import annotations

import hashlib
import itertools
import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from common.gpus import Gpu
from common.spec import AttentionShape
from common.spec.metadata import BatchStats
from compare.competitors import registry, sources
from compare.static.compile import Compilation
from compare.workloads import Workload, parse_lens

RELEASES = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")  # of Triton
HELIONS = ("1.5.0", "1.5.1")
TARGETS = {
    "sm_80": "a100",
    "sm_90": "h200",
    "sm_100": "b200",
    "gfx942": "mi300",
    "gfx950": "mi350",
}  # arch: the GPU that configs are for
KERNELS = "triton/*,helion/*,triton/native.sm90_prefill"
ROWS = ("q1s2k", "32q1s2k", "128q1s8k", "8q4s4k", "q512", "q8k", "16q1s2k_16q512s1536")  # each class of batch
SHAPES = {"32:8:128": AttentionShape(32, 8, 128, 16, torch.bfloat16)}
WIDE = {"32:8:256": AttentionShape(32, 8, 256, 16, torch.bfloat16)}
NATIVE_FOR = "sm_90"
COMPILED = ((40, 90), (1, 70))  # lengths that make every launch of a kernel happen; no length is in the code


@dataclass(frozen=True)
class Pair:
    """What compiles. helion: "" for kernels that are no Helion."""

    triton: str
    helion: str = ""


def pairs(releases: Sequence[str], helions: Sequence[str]) -> list[Pair]:
    """Every Triton by the newest Helion, the newest Triton by every Helion: a change has one cause."""
    newest = [Pair(releases[-1], helion) for helion in helions[:-1]]
    return [Pair(release, helions[-1]) for release in releases] + newest


@dataclass(frozen=True)
class Step:
    """From one release to the next, the other package as it is."""

    package: str
    before: Pair
    after: Pair

    @property
    def versions(self) -> tuple[str, str]:
        return getattr(self.before, self.package), getattr(self.after, self.package)

    def __str__(self) -> str:
        return f"{self.package} {self.versions[0]} to {self.versions[1]}"

    def of(self, is_helion: bool) -> tuple[Pair, Pair]:
        """As the lines of a kernel have it."""
        return (self.before, self.after) if is_helion else (Pair(self.before.triton), Pair(self.after.triton))


def steps(releases: Sequence[str], helions: Sequence[str]) -> list[Step]:
    """Newest first, Helion's before Triton's."""
    of_helion = [Step("helion", Pair(releases[-1], a), Pair(releases[-1], b)) for a, b in itertools.pairwise(helions)]
    of_triton = [Step("triton", Pair(a, helions[-1]), Pair(b, helions[-1])) for a, b in itertools.pairwise(releases)]
    return of_helion[::-1] + of_triton[::-1]


@dataclass(frozen=True)
class Subject:
    """One config to compile. options: of the compiler, beside the config's. rebuilt: the report it stands for. source:
    the hash of the kernel's files, so that no line of an older source passes for one of today's."""

    kernel: str
    shape: str
    config: dict[str, Any]
    options: dict[str, Any]
    rebuilt: str = ""
    source: str = ""

    @property
    def is_helion(self) -> bool:
        return self.kernel.startswith("helion/")

    @property
    def id(self) -> str:
        """12 hex digits over all that decides the code but the target and the release."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, the id among them."""
        return {"id": self.id} | asdict(self)

    def job(self) -> Compilation:
        """To compile in a child."""
        row = Workload(self.shape, COMPILED, (SHAPES | WIDE)[self.shape])
        return Compilation(row, self.kernel, self.config, options=self.options or None)


# Two published regressions, as the nearest configs of ours: q_block at head size 256, for the originals' accumulators
# are 256 and 512 wide. Theirs: aiter's unified attention, BLOCK_M 128 and waves_per_eu 2; sglang's extend attention,
# 64 x 64 by 4 warps at head sizes 576 and 512, whose accumulator a lane holds as 128 x 256 by 2 warps would twice over.
# Not every config of theirs shows it in ours: 64 x 32 by 2 warps with waves_per_eu 2 spills 86 on 3.6.0, 88 on 3.7.1.
_WIDE_ROWS = {"block_m": 128, "tile_size": 64, "num_warps": 4, "num_stages": 1}
REBUILT: dict[str, tuple[Subject, ...]] = {
    "gfx950": (
        Subject("triton/q_block", "32:8:256", _WIDE_ROWS, {"waves_per_eu": 2}, "ROCm/aiter#4137"),
        Subject("triton/q_block", "32:8:256", _WIDE_ROWS | {"num_warps": 2}, {}, "sgl-project/sglang#34741"),
    )
}


def subjects(gpu: Gpu, kernels: Sequence[str]) -> list[Subject]:
    """Every distinct config of these kernels for `gpu`, by each heuristics there is, and the rebuilt regressions.

    `auto` has no config of its own; baselines are not compiled; a native kernel for its own machine alone.
    """
    found: dict[str, Subject] = {}
    kernels = [one for one in kernels if registry.is_own(one) and not one.endswith("auto")]
    kernels = [one for one in kernels if one not in registry.NATIVE or gpu.arch == NATIVE_FOR]
    hashes = {kernel_id: sources.of_kernel(kernel_id) for kernel_id in kernels}
    chosen = [one for one in REBUILT.get(gpu.arch, ()) if one.kernel in kernels]
    rebuilt = [replace(one, source=hashes[one.kernel]) for one in chosen]
    for kernel_id in kernels:
        kernel = registry.load(kernel_id)
        for name, shape in SHAPES.items():
            for row in ROWS:
                stats = BatchStats.of(parse_lens(row))
                for heuristics in registry.HEURISTICS:
                    with warnings.catch_warnings(action="ignore", category=UserWarning):  # a GPU without a tree
                        config, origin = registry.default_config(kernel_id, kernel, shape, stats, gpu, heuristics)
                    if origin != "DEFAULT":
                        one = Subject(kernel_id, name, registry.config_dict(config), {}, source=hashes[kernel_id])
                        found.setdefault(one.id, one)
    return rebuilt + list(found.values())
