"""A reading of a GPU's clock, and the call of a vendor's tool."""

import subprocess
from dataclasses import dataclass

LIMIT_S = 5.0


@dataclass(frozen=True)
class Reading:
    """sm_mhz: megahertz; throttle: names of what held the clock down, None where the tool does not tell."""

    sm_mhz: float
    throttle: frozenset[str] | None = None


def said(command: list[str]) -> str:
    """What a tool prints. Raises OSError where it is missing, subprocess.SubprocessError where it fails or hangs."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout
