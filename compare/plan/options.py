"""What a number on a command line may be: the types of options that several commands share."""

from __future__ import annotations

import argparse
import math


def positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"found {text}, allowed a finite number above 0")
    return value


def at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"found {text}, allowed 1 or more")
    return value


def count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"found {text}, allowed 0 or more")
    return value


def share(text: str) -> float:
    """`0.5%` or `0.005`: above 0 and below 1."""
    value = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"found {text}, allowed a share above 0 and below 1, as 0.5%")
    return value
