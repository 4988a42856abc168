"""The committed speeds of the GPU that was measured: what a run without a GPU shows beside its own verdicts.

In: docs/results/figures.toml, which an installation without the sources lacks.
"""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from compare.analysis.standing import KINDS
from compare.record.folder import ROOT

TABLE = ROOT / "docs" / "results" / "figures.toml"
GPU = "NVIDIA H200"  # that of the headline: the one to show where there is none
KERNELS = {"triton": "Triton", "helion": "Helion", "gluon": "Gluon (Hopper only)", "vllm": "vLLM's Triton"}


class Committed(NamedTuple):
    """gpu: its title. day: of the newest run, as 2026-11-28. body: a line for each class, as COLUMNS."""

    gpu: str
    day: str
    body: list[list[str]]


COLUMNS = (("class", False), ("rows", True), *((title, True) for title in KERNELS.values()), ("FA3", True))


@lru_cache(maxsize=1)
def headline() -> Committed | None:
    """The headline by class, FlashAttention 3 = 1; None where no table is committed here."""
    if not TABLE.is_file():
        return None
    figures: Mapping[str, Any] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    body = []
    for kind in KINDS:
        own = [figures.get(f"headline.{kind}.{short}") for short in KERNELS]
        if own[0]:
            cells = [f"{one['value']:.2f} ({one['worst']:.2f})" if one else "" for one in own]
            body.append([kind, str(own[0]["rows"]), *cells, "1"])
    days = [one["day"] for name, one in figures.items() if name.startswith("headline.") and one.get("day")]
    return Committed(GPU, max(days, default="an unknown day"), body) if body else None
