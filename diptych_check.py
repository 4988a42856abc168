"""The command `diptych-check`: its options, and the judge's own `common` wherever it is called.

A module of its own, outside of the packages, that imports the standard library alone: it also runs in a repository
whose own folder is called `common`.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import runpy
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Of a wheel, or of a checkout.
COMMON = next(folder for folder in (HERE / "diptych" / "common", HERE / "common") if folder.is_dir())
EPILOG = "exit codes: 0 right, 1 wrong, 2 usage or no such kernel, 5 nothing was judged, 130 interrupted"
INTERRUPTED = 130
SEED, MOST_SEED = 0, 2**63 - 1
MOST_PROCESSES = 64
SLOW = ("torch", "torch.fx.experimental.symbolic_shapes")  # with all that torch imports when it is first called
NOWHERE = os.path.join(os.devnull, "none")  # below a device there is no folder, and nobody can make one


def seed(text: str) -> int | str:
    """A seed, or `random`."""
    if text == "random":
        return text
    value = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= value <= MOST_SEED:
        raise argparse.ArgumentTypeError(f"found {text:.40}, allowed random, or an integer from 0 to 2^63 - 1")
    return value


def seconds(text: str) -> float:
    """A finite time above 0, of a year at most."""
    try:
        value = float(text) if text.isascii() else math.nan
    except ValueError:
        value = math.nan
    if not 0.0 < value <= 3e7:
        raise argparse.ArgumentTypeError(f"found {text:.40}, allowed seconds above 0 and up to 3e7")
    return value


def processes(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    if not 1 <= value <= MOST_PROCESSES:
        raise argparse.ArgumentTypeError(f"found {text:.40}, allowed an integer from 1 to {MOST_PROCESSES}")
    return value


# name -> (default, type, what it is)
OPTIONS: dict[str, tuple[object, object, str]] = {
    "level": (None, str, "first, smoke or full; else first for a kernel that is interpreted, and smoke for others"),
    "seed": (SEED, seed, "of the values (default 0); random: drawn, and printed"),
    "adapter": ("auto", str, "paged, flash_attn_varlen, flash_attn_kvcache or protocol; auto looks at the parameters"),
    "device": ("auto", str, "cuda, cpu or auto"),
    "interpret": ("auto", str, "on or off: Triton's interpreter, and its repairs, in the child; auto: on a CPU"),
    "supports": (None, str, "comma-separated features, in place of the kernel's SUPPORTS"),
    "limits": (None, str, "a JSON file in place of the kernel's LIMITS"),
    "time-limit": (
        None,
        seconds,
        "seconds of one call; else 60, and more where a slow kernel needs more",
    ),
    "processes": (None, processes, "that run cases at once; else as many as cores, 4 at most, and 1 on a GPU"),
    "report": (None, str, "a JSON file of what became of each case"),
}
FLAGS = {
    "strict": "a case without an answer in time, which is not judged, fails the run",
    "no-minimise": "do not look for the smallest failing case",
}


def parser() -> argparse.ArgumentParser:
    usage = "diptych-check [OPTION ...] PACKAGE.MODULE:NAME"
    made = argparse.ArgumentParser("diptych-check", usage, description="A kernel against the spec.", epilog=EPILOG)
    made.add_argument("kernel", metavar="PACKAGE.MODULE:NAME", help="the callable, or a module with launch")
    made.add_argument("--case", action="append", default=[], help="this case alone; may be given again")
    made.add_argument("--list", action="store_true", help="print the cases; run none")
    made.add_argument("-x", "--exitfirst", action="store_true", help="stop at the first failure")
    for name, (default, kind, what) in OPTIONS.items():
        made.add_argument(*["-n"] * (name == "processes"), f"--{name}", default=default, type=kind, help=what)
    for name, what in FLAGS.items():
        made.add_argument(f"--{name}", action="store_true", help=what)
    return made


def admit(versions: dict[str, Any], of_kernel: list[str]) -> None:
    """Raise Unsuitable unless what judges, and what the kernel's process will import, will both do.

    The judge's goes first: what metadata imports when it is first asked is then here, and is not looked for on the
    kernel's path."""
    versions["ensure"]("check")
    versions["here"].cache_clear()
    of_judge, sys.path[:] = list(sys.path), of_kernel
    try:
        versions["admit"]("check")
    finally:
        sys.path[:] = of_judge


def main(words: list[str] | None = None) -> int:
    """The exit code of a command line; that of Ctrl-C also before the first case and behind the last."""
    try:
        return judged(parser().parse_args(words))
    except KeyboardInterrupt:
        return INTERRUPTED


def judged(asked: argparse.Namespace) -> int:
    """The exit code of parsed words, with Diptych's own `common`.

    The judge's modules are compiled anew: one that was here before could have written compiled code beside them, and
    Python would believe it. torch, which would take long, is imported before."""
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]  # a kernel's, perhaps
    of_kernel = list(sys.path)
    sys.path.sort(key=lambda path: path in given)
    sys.path.insert(0, str(HERE))
    versions = runpy.run_path(str(COMMON / "versions.py"))  # its source: what is compiled may be a kernel's
    try:
        admit(versions, of_kernel)
    except versions["Unsuitable"] as error:
        print(error, file=sys.stderr)
        return 2
    for name in SLOW:
        importlib.import_module(name)
    sys.dont_write_bytecode, sys.pycache_prefix = True, NOWHERE
    return importlib.import_module("common.conformance").run(asked)


if __name__ == "__main__":
    sys.exit(main())
