"""A child that prints its node's GPU, PCI address and installed software as one line of JSON."""

import dataclasses
import json
import sys
from typing import Any

import torch

from common import gpus
from compare.bench.clocks import vendor
from compare.plan import fingerprint


def found(timed: bool) -> dict[str, Any]:
    """The node's GPU as a row of the table, or None, its PCI address, and the software that fingerprints contain."""
    gpu = gpus.detect() if timed else None
    if gpu is None:
        return {"gpu": None, "address": "", "software": fingerprint.software(None)}
    address = vendor().address(torch.device("cuda", 0))
    return {"gpu": dataclasses.asdict(gpu), "address": address, "software": fingerprint.software("cuda:0")}


def main() -> None:
    print(json.dumps(found(sys.argv[1] == "gpu")))


if __name__ == "__main__":
    main()
