"""A kernel whose launch dies, hangs, floods or raises, by config."""

import os
import sys
import time
from dataclasses import dataclass

from common.spec import UnsupportedFeature
from common.spec.kernel import Precision

SUPPORTS = frozenset({"causal"})
CONTRACT = Precision()


@dataclass(frozen=True)
class Config:
    how: str = "abort"


DEFAULT = Config()


def workspace(shape, capacity, config):
    return None


def launch(batch, features, out, config, workspace, *, lse=None):
    if config.how == "abort":
        print("last words of the compiler", file=sys.stderr, flush=True)
        os.abort()
    if config.how == "hang":
        time.sleep(60)
    if config.how == "flood":
        for _ in range(2000):
            print("a compiler that dumps its whole IR " * 20)
    if config.how == "raise":
        raise RuntimeError("no registers left\nand a second line")
    if config.how == "refuse":
        raise UnsupportedFeature("probe", "causal", "nothing")
