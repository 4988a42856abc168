"""The child that says what a seat's node has, as one line of JSON: the GPU's row, its address, what is installed."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import torch

from common import gpus
from compare.bench.clocks import vendor
from compare.plan import fingerprint


def found(timed: bool) -> dict[str, Any]:
    """gpu: its row of the table, None without one. software: what makes two measurements repetitions."""
    gpu = gpus.detect() if timed else None
    if gpu is None:
        return {"gpu": None, "address": "", "software": fingerprint.software(None)}
    address = vendor().address(torch.device("cuda", 0))
    return {"gpu": dataclasses.asdict(gpu), "address": address, "software": fingerprint.software("cuda:0")}


def main() -> None:
    print(json.dumps(found(sys.argv[1] == "gpu")))


if __name__ == "__main__":
    main()
