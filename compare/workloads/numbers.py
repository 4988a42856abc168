"""Parsers of numbers on a command line, for every command: ASCII digits, within a range. And of a file to write."""

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path


def number(text: str) -> float:
    """A number in the digits of ASCII. Raises ArgumentTypeError."""
    try:
        return float(text if text.isascii() else "")
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text:.40}, allowed a number") from None


def integer(low: int, high: int) -> Callable[[str], int]:
    """A parser of integers from `low` to `high`, in ASCII digits."""

    def read(text: str) -> int:
        digits = text.removeprefix("-")
        value = int(text) if digits.isascii() and digits.isdigit() and len(digits) < 30 else None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"found {text:.40}, allowed an integer from {low} to {high}")
        return value

    return read


MOST_SEED = 2**62  # torch's generators take 64 bits, and rows add to the seed
MOST_SECONDS = 3e7  # a year
MOST_WINDOW, MOST_PAGE, MOST_COUNT = 2**31 - 1, 2**16, 2**31 - 1  # a page of 2^16 tokens is 256 MiB of Llama-3-8B
at_least_one, count, seed = integer(1, MOST_COUNT), integer(0, MOST_COUNT), integer(0, MOST_SEED)
window, page = integer(1, MOST_WINDOW), integer(1, MOST_PAGE)


def count_or_all(text: str) -> int | None:
    """How many; None for all."""
    try:
        return None if text == "all" else at_least_one(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or all") from None


def new_file(text: str) -> Path:
    """A file to write when the work is done, in a folder that may be new. Raises ArgumentTypeError for a folder, and
    where no file can be made."""
    path = Path(text)
    there = next(one for one in (*path.parents, Path()) if one.exists())
    if path.is_dir() or not there.is_dir() or not os.access(there, os.W_OK):
        raise argparse.ArgumentTypeError(f"found {text:.80}, allowed a file, new or not, where one can be written")
    return path


def positive(text: str) -> float:
    value = number(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"found {text:.40}, allowed a finite number above 0")
    return value


def seconds(text: str) -> float:
    """Seconds of a call, as diptych-check takes them."""
    value = number(text)
    if not 0.0 < value <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"found {text:.40}, allowed seconds above 0 and up to {MOST_SECONDS:.0e}")
    return value


def share(text: str) -> float:
    """`0.5%` or `0.005`: above 0 and below 1."""
    value = number(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"found {text:.40}, allowed a share above 0 and below 1, as 0.5%")
    return value
