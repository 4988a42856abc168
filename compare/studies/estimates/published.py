"""What others published of paged attention on AMD GPUs, predicted before their values were put beside it.

    python -m compare study published

reads docs/results/published_workloads.jsonl (workloads and configs, no value), compiles our nearest kernel and config
for each with the Triton that runs this command, and writes docs/results/mi300/predictions.jsonl. The values are in
docs/results/published_timings.jsonl, under the same ids: history shows which of the two files came first. What was
predicted once stands: only rows without a prediction get one. Exit codes: 0; 1 where a row could not be predicted.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from common import gpus
from compare.competitors import registry
from compare.identity import plain
from compare.record import folder as run_folder
from compare.static.compile import Compilation, compile_in_child
from compare.static.estimate import NoEstimate, estimate
from compare.workloads import Ask, Workload, parse_lens, parse_shape

HELP = "the model's word on what others published for AMD GPUs"

RESULTS = run_folder.ROOT / "docs" / "results"
WORKLOADS = RESULTS / "published_workloads.jsonl"
PREDICTIONS = RESULTS / "mi300" / "predictions.jsonl"
TIMINGS = RESULTS / "published_timings.jsonl"
MODEL = ("estimate.py", "estimate_work.py")  # what a prediction follows from, beside the facts
SAMPLE = 4  # sequences that are enough to compile for: their number is no constant of any kernel


@dataclass(frozen=True)
class Published:
    """One published measurement without its value. `theirs`, `versions`, `uncertain`: as the source has it.

    match: `config` where our kernel has the same rows, tile, warps and stages, `algorithm` where theirs are not known.
    distinct_keys: keys that lie at different addresses, where sequences share pages. key: the row within the source.
    """

    id: str
    gpu: str
    workload: str
    shape: str
    block_size: int
    dtype: str
    window: int | None
    distinct_keys: int | None
    theirs: str
    versions: dict[str, str]
    kernel: str
    config: dict[str, Any] | None
    match: str
    key: str
    url: str
    commit: str
    uncertain: str

    def to_workload(self) -> Workload:
        """The workload in the project's own terms."""
        shape = parse_shape(self.shape, self.block_size, self.dtype)
        return Workload(self.workload, parse_lens(self.workload), shape, Ask(sliding_window=self.window))

    @property
    def distinct_bytes(self) -> int | None:
        """Of K and V."""
        shape = self.to_workload().shape
        item = 2 * shape.num_kv_heads * shape.head_size * shape.dtype.itemsize
        return None if self.distinct_keys is None else self.distinct_keys * item


@dataclass(frozen=True)
class Prediction:
    """What the model said of one published row. model: of the files that said it. triton: whose code it read."""

    id: str
    config: dict[str, Any]
    floor_us: float
    us: float
    limiter: str
    launches: list[dict[str, Any]]
    facts: list[dict[str, Any]]
    triton: str
    model: str


def read_published(path: Path = WORKLOADS) -> list[Published]:
    """Raises ValueError naming the line of a broken row."""
    return [Published(**row) for row in _rows(path)]


def read_predictions(path: Path = PREDICTIONS) -> dict[str, Prediction]:
    """By id. Raises ValueError naming the line of a broken row."""
    return {row["id"]: Prediction(**row) for row in _rows(path)}


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error


def model_sha() -> str:
    """The first 16 hex digits of SHA-256 over the files of the model."""
    digest = hashlib.sha256()
    for name in MODEL:
        digest.update(plain((run_folder.ROOT / "compare" / "static" / name).read_text(encoding="utf-8")).encode())
    return digest.hexdigest()[:16]


def _job(row: Published) -> Compilation:
    """To compile: the config of the whole batch, for a few of its sequences."""
    workload, kernel = row.to_workload(), registry.load(row.kernel)
    default, _ = registry.default_config(
        row.kernel, kernel, workload.shape, workload.stats, gpus.resolve(row.gpu), "default"
    )
    config = registry.config_dict(default) | (row.config or {})
    return Compilation(dataclasses.replace(workload, lens=workload.lens[:SAMPLE]), row.kernel, config)


FACTS = ("kernel", "num_warps", "num_stages", "registers", "spills", "shared_bytes", "instructions", "sha256")


def predict(rows: Sequence[Published], limit_s: float) -> Iterator[Prediction | str]:
    """One prediction a row, or the reason why there is none, GPU by GPU in the order of the rows."""
    triton, model = run_folder.versions()["triton"], model_sha()
    for gpu in map(gpus.resolve, dict.fromkeys(row.gpu for row in rows)):
        mine = [row for row in rows if row.gpu == gpu.name]
        for row, done in zip(mine, compile_in_child([_job(r) for r in mine], gpu, limit_s=limit_s), strict=True):
            if done.status != "ok":
                yield f"{row.id}: {done.status}: {done.reason}"
                continue
            try:
                found = estimate(row.to_workload(), row.kernel, done.config, done.facts, gpu, row.distinct_bytes)
            except NoEstimate as error:
                yield f"{row.id}: {error}"
                continue
            launches = [dataclasses.asdict(one) for one in found.launches]
            facts = [{name: fact[name] for name in FACTS} for fact in done.facts]
            yield Prediction(
                row.id, done.config, found.floor_us, found.us, found.limiter, launches, facts, triton, model
            )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=PREDICTIONS, metavar="FILE", help="the file of predictions")
    parser.add_argument(
        "--limit", type=float, default=300.0, metavar="S", help="of one row's compiling (default 300 s)"
    )


def main(args: argparse.Namespace) -> int:
    """0, or 1 where a row could not be predicted."""
    stands = set(read_predictions(args.out)) if args.out.exists() else set()
    rows = [row for row in read_published() if row.id not in stands]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    missed = 0
    with open(args.out, "a", encoding="utf-8") as file:
        shown = Console(stderr=True)
        for said in track(predict(rows, args.limit), "compiling and predicting", len(rows), console=shown):
            if isinstance(said, str):
                missed += 1
                print(said, file=sys.stderr)
            else:
                file.write(json.dumps(dataclasses.asdict(said)) + "\n")
                file.flush()
    print(f"{args.out}: {len(rows) - missed} of {len(rows)} new rows predicted, {len(stands)} stand")
    return int(missed > 0)
