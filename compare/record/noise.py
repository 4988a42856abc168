"""The noise floor of a GPU, by how much equal things differ, as compare.run.doctor measured it and wrote to
`noise.json`.

    {"schema": 1, "gpu": "h200", "contract": "graph-cold-interleaved/2", "kernel": "triton/q_block", "processes": 3,
     "within": 0.002, "between": 0.006, "measured": "2026-11-21T18:50:00+00:00", "commit": "62d22cc",
     "versions": {...}, "rows": [{"workload": "q1s2k", "within": 0.001, ...}]}

`within`, `between`: relative, 0.01 is 1%; the largest over the rows. A difference below `between` of two runs, or below
`within` of two kernels of one process, is one that identical code shows.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from compare.record import plain
from compare.record.fields import AMOUNT, COUNT, OBJECTS, TEXT, WORDS, checked
from compare.record.whole import put

SCHEMA = 1
_NEEDED = ("gpu", "contract", "kernel", "processes", "within", "between")
_FIELDS = dict.fromkeys(("gpu", "contract", "kernel", "measured", "commit"), TEXT)
_FIELDS |= {"processes": COUNT, "within": AMOUNT, "between": AMOUNT, "versions": WORDS, "rows": OBJECTS}
_FIELDS |= {"schema": (lambda found: found == SCHEMA, f"{SCHEMA}")}


class NotNoise(ValueError):
    """A file that is not a noise floor; the message names it and the field."""


@dataclass(frozen=True)
class Noise:
    """within: |ratio - 1| of two copies of one kernel, timed side by side in one process. between: of the medians of
    one kernel in two fresh processes. rows: per workload these two, and the verdicts (compare.run.doctor.judge)."""

    gpu: str
    contract: str
    kernel: str
    processes: int
    within: float
    between: float
    measured: str = ""
    commit: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    rows: tuple[dict[str, Any], ...] = ()
    schema: int = SCHEMA

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path, json.dumps(asdict(self), indent=1, allow_nan=False) + "\n")


def read(path: Path) -> Noise:
    """The noise floor in a file. Raises NotNoise for anything else, OSError where it cannot be read."""
    try:
        said = checked(plain.loads(path.read_text(encoding="utf-8")), _FIELDS, "noise", _NEEDED)
        return Noise(**said | {"rows": tuple(said.get("rows", ()))})
    except (ValueError, TypeError, RecursionError) as error:
        raise NotNoise(f"noise: found {path} with {error}, allowed what compare.run.doctor wrote") from error


def kept(gpu: str) -> Path:
    """Where a GPU's last noise floor lies, below the working directory."""
    return Path("results") / f"noise_{gpu}.json"


def carry(folder: Path, gpu: str, contract: str) -> None:
    """Copy the last noise floor of this GPU and contract into a run's folder, unless it has one."""
    if (folder / "noise.json").exists() or not kept(gpu).exists():
        return
    try:
        found = read(kept(gpu))
    except (NotNoise, OSError):  # a run goes on without a floor: reports say that there is none
        return
    if (found.gpu, found.contract) == (gpu, contract):
        found.write(folder / "noise.json")
