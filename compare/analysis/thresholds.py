"""From which size on a change between two runs is one, and the options that say so."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from compare.record.noise import Noise

# FA3's binary, measured on an H200 in two sessions, moved by 2% in the median row of 23 and by 6%
# in the worst: below 5% a change says more of the machine than of the kernel.
RELATIVE = 0.05
ABSOLUTE_US = 0.5  # the resolution of an event, and about what the launch of a graph's node varies by


class Incomparable(ValueError):
    """Two runs whose figures mean different things; the message names both."""


@dataclass(frozen=True)
class Thresholds:
    """relative: 0.05 is 5%. absolute_us: microseconds. floor: of the noise between processes, 0 where unknown."""

    relative: float = RELATIVE
    absolute_us: float = ABSOLUTE_US
    floor: float = 0.0

    def of(self, us: float) -> float:
        """The threshold of a cell that took `us` before, relative."""
        return max(self.relative, self.floor, self.absolute_us / us)

    def with_noise(self, noise: Noise) -> Thresholds:
        return Thresholds(self.relative, self.absolute_us, noise.between)


def share(text: str) -> float:
    """`5%` or `0.05`. Raises argparse.ArgumentTypeError for anything else, and for what is not in [0, 10]."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 10.0:
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed a share such as 5% or 0.05, at most 10")
    return value


def microseconds(text: str) -> float:
    """Raises argparse.ArgumentTypeError for what is no number from 0 to a second."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1e6:
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed microseconds from 0 to 1e6")
    return value


def add_options(new: argparse._ActionsContainer) -> None:
    """--fail-on, --relative, --absolute-us and --noise, which compare.analysis.diff and compare.run share."""
    new.add_argument("--fail-on", choices=["regress"], help="exit 4 where a cell is slower, or was right and now fails")
    percent = f"threshold (default {100 * RELATIVE:g}%%)"
    new.add_argument("--relative", type=share, default=RELATIVE, metavar="SHARE", help=percent)
    new.add_argument(
        "--absolute-us", type=microseconds, default=ABSOLUTE_US, metavar="US", help=f"threshold (default {ABSOLUTE_US})"
    )
    new.add_argument(
        "--noise",
        type=Path,
        metavar="FILE",
        help="noise.json of compare.run.doctor (default: that of either run's folder)",
    )


def of(asked: argparse.Namespace) -> Thresholds:
    """What the options say; the noise floor is not read here."""
    return Thresholds(asked.relative, asked.absolute_us)
