"""The cells of the conformance tests by many processes, on every GPU of this machine:

    python tests/conformance/conformance_run.py --out named.jsonl                     every kernel, named case and dtype
    python tests/conformance/conformance_run.py --out large.jsonl --large             the same of the cases of gigabytes
    python tests/conformance/conformance_run.py --out random.jsonl --random 0:2000    random cases, dealt in each family
    python tests/conformance/conformance_run.py --out five.jsonl --random 0:2000 --kernels triton/q_block \
        --set block_m=64,tile_size=64,num_stages=5                                    by one config

A cell is what a test of tests/gpu judges; many processes take a sixth of pytest's time. A line a cell is appended as it
is answered, with the commit, and a repetition goes on behind the cells that the file has of this commit. A process that
dies or hangs is its cell's failure. Exit code: 0 none failed, 1 one did, 2 usage, 3 no GPU, 130 interrupted.
"""

import argparse
import datetime
import fnmatch
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parents[1])]

from conformance_child import SET  # noqa: E402
from conformance_crew import Asked, meet_all  # noqa: E402

LARGE_A_GPU = 3  # a large case takes 40 GB


def named(kernels: Iterable[str], pattern: str, dtypes: str, large: bool) -> Iterator[Asked]:
    """Every kernel with every named case whose name fits; dtypes: own, other or all."""
    from common.cases.named import CASES
    from common.spec.paged_batch import DTYPES

    for kernel in kernels:
        for dtype in DTYPES:
            for case in CASES:
                wanted = dtypes == "all" or (dtype is case.dtype) == (dtypes == "own")
                if wanted and case.large == large and fnmatch.fnmatch(case.name, pattern):
                    yield kernel, case.name, str(dtype).removeprefix("torch.")


def dealt(kernels: Iterable[str], seeds: Iterable[int]) -> Iterator[Asked]:
    """Each random case by one kernel of each family that supports it, in turn."""
    from common.cases.random_cases import random_case
    from compare.competitors import registry
    from kernel_cases import lacking

    families: dict[str, list[str]] = {}
    for kernel in kernels:
        families.setdefault(kernel.partition("/")[0], []).append(kernel)
    for seed in seeds:
        case = random_case(seed)
        for family in families.values():
            if able := [kernel for kernel in family if not lacking(registry.load(kernel), case)]:
                yield able[seed % len(able)], case.name, str(case.dtype).removeprefix("torch.")


def had(out: Path, besides: Iterable[Path], commit: str, changes: str = "") -> set[Asked]:
    """The cells that need not be met: those of `out` at this commit, and those of `besides` at any, by this config."""
    lines = [line for line in _lines(out) if line.get("commit") == commit]
    lines += [line for file in besides for line in _lines(file)]
    same = [line for line in lines if line.get("set", "") == changes]
    return {(line["kernel"], line["case"], line["dtype"]) for line in same if "kernel" in line}


def _lines(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def _seeds(text: str) -> range:
    first, colon, last = text.partition(":")
    if not (colon and first.isdigit() and last.isdigit()):
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed FIRST:LAST, the last one left out")
    return range(int(first), int(last))


def _parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    new.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    new.add_argument("--kernels", default="triton/*,helion/*", help="ids and globs (default: both families)")
    new.add_argument("--cases", default="*", help="a glob of named cases")
    new.add_argument("--dtypes", choices=("own", "other", "all"), default="all", help="of named cases (default all)")
    new.add_argument("--large", action="store_true", help="the large cases in place of the others")
    new.add_argument("--random", type=_seeds, metavar="FIRST:LAST", help="these seeds in place of named cases")
    new.add_argument("--set", default="", metavar="FIELD=VALUE,...", help="of each kernel's DEFAULT, met alone then")
    new.add_argument("--besides", type=Path, action="append", default=[], help="leave out what FILE has, of any commit")
    new.add_argument("--processes", type=int, help=f"default: one a core; --large: {LARGE_A_GPU} a GPU")
    new.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu interprets the kernels")
    new.add_argument("--minutes", type=float, default=1e6, help="no cell begins after so many")
    new.add_argument("--limit", type=float, default=180.0, help="seconds that a cell may take (default 180)")
    return new


def main(argv: list[str] | None = None) -> int:
    asked = _parser().parse_args(argv)
    if asked.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    import torch
    from rich.console import Console
    from rich.progress import track

    from common import interpreter
    from common.process import cores
    from compare.competitors import registry
    from compare.exits import INTERRUPTED, NO_GPU, OK, USAGE, WRONG
    from compare.record import folder as run_folder
    from compare.tune.space import of_default

    interpreter.install()
    gpus = torch.cuda.device_count()
    if asked.device == "cuda" and not gpus:
        print("device: found no GPU, allowed --device cpu, which interprets the kernels", file=sys.stderr)
        return NO_GPU
    try:
        kernels = registry.select(asked.kernels)
        for kernel in kernels if asked.set else ():
            of_default(kernel, asked.set)
    except registry.UnknownKernel as error:
        print(error, file=sys.stderr)
        return USAGE
    except ValueError as error:
        print(f"--set: {error}", file=sys.stderr)
        return USAGE
    os.environ[SET] = asked.set
    met = had(asked.out, asked.besides, commit := run_folder.commit(), asked.set)
    listed = dealt(kernels, asked.random) if asked.random else named(kernels, asked.cases, asked.dtypes, asked.large)
    cells = [cell for cell in listed if cell not in met]
    processes = asked.processes or (LARGE_A_GPU * max(gpus, 1) if asked.large else cores())
    console, counts = Console(stderr=True), Counter()
    console.print(f"{len(cells)} cells to meet, {processes} processes; {len(met)} are had")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    about = {"set": asked.set} if asked.set else {}
    about |= {"commit": commit, "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")}
    try:
        with asked.out.open("a", encoding="utf-8") as out:
            answers = meet_all(cells, processes, asked.device, gpus, asked.limit, asked.minutes * 60)
            for found in track(answers, "cells", total=len(cells), console=console):
                out.write(json.dumps(found | about) + "\n")
                out.flush()
                counts[found["outcome"]] += 1
                if found["outcome"] == "failed":
                    console.print("failed:", *found.values(), markup=False, soft_wrap=True)
    except KeyboardInterrupt:
        console.print("interrupted: the same command goes on here")
        return INTERRUPTED
    finally:
        left = len(cells) - counts.total()
        console.print(f"{dict(counts)}; {left} not met" + ("; the same command goes on here" if left else ""))
    return WRONG if counts["failed"] else OK


if __name__ == "__main__":
    sys.exit(main())
