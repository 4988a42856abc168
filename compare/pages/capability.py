"""docs/capability.md: what each kernel supports of the named cases, by the committed conformance run."""

from __future__ import annotations

from pathlib import Path

from compare.record.folder import ROOT
from compare.studies.capability import RESULTS, read, render

PAGE = ROOT / "docs" / "capability.md"


def texts() -> dict[Path, str]:
    """The page by its path. Raises NoResults for a file that is no conformance run."""
    return {PAGE: render(read(RESULTS))}
