"""Policies that the tuner tries first on a GPU where nothing was measured yet: a static ranking, not run on hardware.

`compare.tune.rank` writes the file; the tuner reads it, times its policies like any other, and trusts none of its
figures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from compare.tune.space import Policy

LABEL = "static ranking, not run on hardware"
FOLDER = Path(__file__).parent / "rankings"


def path(gpu: str) -> Path:
    """Where the ranking for a GPU lies."""
    return FOLDER / f"{gpu}.json"


def of(gpu: str, kernel_id: str) -> list[Policy]:
    """The ranked policies of a kernel, best first; none where no ranking was written."""
    if not path(gpu).exists():
        return []
    ranked = read(gpu)["kernels"].get(kernel_id, [])
    return [Policy.from_dict(one["policy"]) for one in ranked]


def read(gpu: str) -> dict[str, Any]:
    """The file's content. Raises ValueError where it does not say that it is a static ranking."""
    found = json.loads(path(gpu).read_text())
    if found.get("label") != LABEL:
        raise ValueError(f"{path(gpu).name}: found label {found.get('label')!r}, allowed {LABEL!r}")
    return found
