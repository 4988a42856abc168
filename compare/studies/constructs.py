"""Constructs that the kernels wanted and a DSL lacks, with the error that it gives.

docs/capability.md shows all of them (compare.studies.capability), docs/features.md those that features needed
(compare.pages.features).

`probe` names the function of tests/support/refused_helion.py or tests/support/refused_triton.py that provokes the
error: a test runs each, so a version that lifts a refusal, or words it differently, is noticed. Versions: Helion 1.5.0,
Triton 3.7.1.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

IMPOSSIBLE = "impossible"
HELION_ON_GFX942 = "helion, compiled for gfx942"


@dataclass(frozen=True)
class Construct:
    """triton, helion: supported or impossible, followed by how, or by what the kernels do instead.

    error: the beginning of the refusal, type first. probe: (whose, function), HELION_ON_GFX942 where only a compiler
    for the target refuses; None where nothing is refused. cost: of what the kernels do instead, where a feature needed
    the construct.
    """

    what: str
    triton: str
    helion: str
    error: str = ""
    probe: tuple[str, str] | None = None
    cost: str = ""

    @property
    def instead(self) -> str:
        """What the kernels do where this is impossible; Helion's way where it is impossible in both."""
        said = self.helion if self.helion.startswith(IMPOSSIBLE) else self.triton
        return said.removeprefix(f"{IMPOSSIBLE}: ")


CONSTRUCTS: tuple[Construct, ...] = tuple(
    Construct(**one | {"probe": tuple(one["probe"]) if "probe" in one else None})
    for one in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["construct"]
)
