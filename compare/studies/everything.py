"""`make gpu`: run all measurements of this project on the GPU, one part after another, each into its own folder.

    python -m compare study everything [--minutes 10] [--only doctor,peers]

It installs nothing: it runs with the current Python and prints which packages that lacks. Runs go on where they
stopped, and time again only cells whose code or versions have changed. Exit codes: 0 all parts ended well; 1 a wrong or
crashed cell; 2 usage; 3 no such GPU; 4 a goal missed; 130 interrupted.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from common import gpus
from compare.exits import INTERRUPTED, NO_GPU, refusing
from compare.plan.situation import situation
from compare.run import doctor

HELP = "all that is measured on the GPU that is here (`make gpu`)"

PROMPTS = "q512,q2k,q8k,8q1k~,q32k"
SERVING = "triton/auto,triton/static_grid,triton/native.auto,helion/auto,helion/static_grid,baseline/flash_attn3"
NEW_KV = "triton/auto,triton/split,helion/auto,helion/split,baseline/flash_attn3"
FIGURES = {
    "fig6": "Figure 6: the rungs by length and decode share",
    "fig7": "Figure 7: tiles of a page and of their own",
    "fig8": "Figure 8: untuned, Listing 2, the measured tree",
    "fig9": "Figure 9: decode behind a growing output",
}


@dataclass(frozen=True)
class Part:
    """One command of the protocol: the words after `python -m compare`; `--out` and its folder are added."""

    name: str
    words: tuple[str, ...]
    what: str


def parts(gpu: str) -> tuple[Part, ...]:
    """The parts, the most important first. gpu: a name of the table, or `auto` for a GPU outside it.

    With `--minutes 10` an H200 finishes doctor, peers and serving; the next call continues.
    """
    run = ("run", "--gpu", gpu, "--max-time", "0.6", "--resume")
    floor = ("doctor", "--gpu", gpu, "--max-time", "0.5")
    prompts = (*run, "--suite", "peers", "--workload", PROMPTS, "--new-kv", "--kernels", NEW_KV)
    return (
        Part("doctor", floor, "noise floor: equal twins, one 5% slower"),
        Part("peers", (*run, "--suite", "peers"), "every rung, auto, FA3 and SDPA on the peers rows"),
        Part("serving", (*run, "--suite", "serving", "--kernels", SERVING), "what engines meet"),
        Part("host", ("study", "host", "--gpu", gpu), "host time of a call"),
        Part("new_kv", prompts, "prompts whose K and V the step hands over"),
        *(Part(name, (*run, "--suite", name), f"the paper's {what}") for name, what in FIGURES.items()),
    )


def _run(part: Part, folder: Path) -> int:
    """Run the part and return its exit status."""
    command = [sys.executable, "-m", "compare.__main__", *part.words, "--out", str(folder)]
    return subprocess.run(command, check=False).returncode


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--gpu", default="auto", help="assert that this GPU is here (default: the one that is)")
    new.add_argument("--out", type=Path, help="folder of the parts' folders (default results/protocol_<gpu>)")
    new.add_argument("--only", help="comma-separated names of parts")
    new.add_argument("--minutes", type=float, default=10.0, help="no part begins after so many (default 10)")


@refusing(ValueError)
def main(asked: argparse.Namespace) -> int:
    console, now = Console(), situation(asked.gpu, None)
    if not now.measure:
        console.print(f"{now.line}: nothing to measure", markup=False)
        return NO_GPU
    known = {part.name: part for part in parts(now.name if now.name in gpus.TABLE else "auto")}
    wanted = known if asked.only is None else asked.only.split(",")
    if unknown := sorted(set(wanted) - set(known)):
        raise ValueError(f"--only: found {', '.join(unknown)}, allowed {', '.join(known)}")
    for line in doctor.lacking():
        console.print(f"[yellow]{line}[/]")
    chosen = [part for name, part in known.items() if name in wanted]
    return _protocol(console, chosen, asked.out or Path("results") / f"protocol_{now.name}", asked.minutes * 60)


def _protocol(console: Console, chosen: Sequence[Part], out: Path, seconds: float) -> int:
    began, worst = time.monotonic(), 0
    for number, part in enumerate(chosen, 1):
        folder, label = out / part.name, f"[{number}/{len(chosen)}] {part.name}: {part.what}"
        if time.monotonic() - began > seconds:
            console.print(f"{label} - not begun: the time is up; the same command goes on here", markup=False)
        else:
            console.print(label, markup=False, style="bold")
            try:
                worst = max(worst, _run(part, folder))
            except KeyboardInterrupt:
                console.print("interrupted: the same command goes on with this part")
                return INTERRUPTED
    console.print(f"reports: {out}/*/report.*", markup=False)
    return worst
