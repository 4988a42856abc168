"""A run without torch: fake kernels over fake rows, every finished cell appended to a store and told on stdout.

`python row_producer.py FOLDER ROWS [FILL]`: goes on where the cells in FOLDER end. FILL: characters of each log tail.
"""

import sys
from pathlib import Path

from compare.record.records import Record, Status, WorkloadInfo
from compare.record.store import Store, load

KERNELS = {"fake/honest": Status.OK, "fake/lies": Status.INCORRECT, "fake/dies": Status.CRASH}


def record(number: int, fill: int = 0) -> Record:
    kernel = list(KERNELS)[number % len(KERNELS)]
    status = KERNELS[kernel]
    load_ = WorkloadInfo(f"w{number}", f"{number}q1s64", "decode", 1, 1, 1, 1, 64, 64, 4, 2, 64, 16, "bfloat16")
    evidence = {"evidence": ("interpreted",)} if status is Status.OK else {"reason": "as planned"}
    return Record("run", f"cell{number}", load_, kernel, status, log_tail="x" * fill, **evidence)


def main(folder: Path, rows: int, fill: int) -> None:
    path = folder / "cells.jsonl"
    with Store(path) as store:
        done = {r.cell_id for r in load(path).records}
        for number in range(rows):
            if f"cell{number}" not in done:
                store.append(record(number, fill))
                print(f"cell{number}", flush=True)
    assert "torch" not in sys.modules


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
