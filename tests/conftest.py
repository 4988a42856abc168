"""Where there is no GPU, kernels are interpreted; the switch must be set before anything imports triton."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from common import interpreter

interpreter.install()
